"""Environments that were written with the former names of hooks still play, for one version."""

import warnings

import pytest
import torch
from torchrl.data import Bounded, Categorical
from yamame_envs import BatchedEnv, MazeRunner, PassiveTMaze
from yamame_envs.streams import fold, integers
from yamame_envs.testing import check_env


def define():
    class Former(BatchedEnv):
        """Guess a number, with the hooks of the version before."""

        _identity = ("answer",)

        def __init__(self, *, num_envs=1, seed=0, device="cpu"):
            spec = Bounded(0.0, 9.0, shape=(1,), dtype=torch.float32, device=device)
            super().__init__(
                num_envs=num_envs,
                time_limit=5,
                action=Categorical(3),
                observations={"observation": spec},
                seed=seed,
                device=device,
            )

        def _draw_tasks(self, task_seed):
            return {"answer": integers(fold(task_seed, 0), 3)}

        def _begin(self, task):
            return {}

        def _transition(self, task, state, action):
            last = state["step_index"] + 1 >= self._horizon
            right = (action == task["answer"]).unsqueeze(-1)
            return {}, right.float(), right & last

        def _observe(self, task, state):
            return {"observation": state["step_index"].float()}

        def _limit(self, task):
            return super()._limit(task)

        def tasks(self):
            return self._env_state.task["answer"], self._time_limit

    return Former


def test_former_hooks_play_and_say_their_new_names():
    with pytest.warns(FutureWarning) as warned:
        former = define()
    text = " ".join(str(warning.message) for warning in warned)
    for name in ("draw_tasks", "begin", "transition", "observe", "task_limit", "identity"):
        assert f"is now called {name};" in text
    check_env(former, num_steps=16)
    env = former(num_envs=2)
    env.reset()
    answer, limit = env.tasks()
    assert (answer.shape, limit) == ((2,), 5)


def test_new_names_do_not_warn_and_answer_to_the_former_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Short(PassiveTMaze):
            def task_limit(self, task):
                return super().task_limit(task)

        class Still(MazeRunner):
            def move(self, task, state, action):
                return super()._move(task, state, action)

    assert Short._limit is Short.task_limit
    assert torch.equal(Short(length=4)._horizon, Short(length=4).horizon)
    Still(size=5).rollout(3)
