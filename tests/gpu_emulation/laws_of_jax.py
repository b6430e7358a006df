"""Games written in JAX are played for tensors on a GPU as for those of the host."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "envs/jax_games/support"))

from jax_sources import CATCH


@pytest.fixture
def play(own_module):
    pytest.importorskip("jax")
    from yamame_envs import JaxEnv

    own_module("mylab", CATCH)

    def played(device: str, *, saved_on: str | None = None):
        def make(where: str) -> JaxEnv:
            return JaxEnv(id="mylab:Catch", tasks="own", num_envs=3, seed=4, device=where)

        env = make(device)
        current = env.reset()
        steps = []
        for time in range(16):
            if saved_on is not None and time == 4:
                other = make(saved_on)
                other.load_state_dict(env.state_dict())
                env, current = other, other.present()
            action = torch.full((3, 2), 0.1 * time, device=env.device)
            step, current = env.step_and_maybe_reset(current.set("action", action))
            assert step.device == env.device
            assert all(value.device.type == env.device.type for value in step.values(True, True))
            steps.append(step.to("cpu").clone())
        return torch.stack(steps)

    return played


def test_a_game_is_played_alike_on_both_devices_and_its_state_moves_between_them(play):
    here = play("cpu")
    assert here["next", "done"].sum() > 3
    assert (play("cuda") == here).all()
    assert (play("cuda", saved_on="cpu") == here).all()
    assert (play("cpu", saved_on="cuda") == here).all()
