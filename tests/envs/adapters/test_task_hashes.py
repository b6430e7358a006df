"""Tasks are counted alike in this process and in worker processes."""

import pytest
import torch
from yamame.evaluation import evaluate
from yamame_envs import Gym, Workers


def played(num_processes):
    env = Gym(
        id="own_envs:own/Numbered-v0",
        tasks="own",
        num_envs=12,
        time_limit=None,
        workers=Workers(num_processes=num_processes),
    )
    result = evaluate(
        lambda timestep: timestep.set("action", torch.zeros(12, dtype=torch.int64)), env, seed=3
    )
    env.close()
    return result


@pytest.mark.parametrize("num_processes", [0, 2])
def test_worker_processes_tell_the_tasks_that_they_play(num_processes):
    result = played(num_processes)
    assert result.summary().get("num_tasks") == len(result.returns.unique())
    assert 1 < len(result.returns.unique()) < 12
