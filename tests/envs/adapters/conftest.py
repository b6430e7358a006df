import sys
from pathlib import Path

import pytest
import torch
from yamame_envs import HostedEnv, Workers

sys.path.insert(0, str(Path(__file__).parent / "support"))  # spawned processes get the same path


def _steps(env, actions, *, td=None, fused=True):
    """Plays actions [S, N, ...]; returns the timesteps, stacked [N, S], and the one after them."""
    from torchrl.envs import EnvBase

    td = env.reset() if td is None else td.clone()
    seen = []
    for action in actions:
        td.set("action", action.clone())
        step = (
            env.step_and_maybe_reset if fused else lambda td: EnvBase._step_and_maybe_reset(env, td)
        )
        played, td = step(td)
        seen.append(played.clone())
    return torch.stack(seen, 1), td


def _walks(
    num_envs=3,
    *,
    seed=0,
    time_limit=None,
    tells_success=True,
    device="cpu",
    workers=None,
    **settings,
):
    from functools import partial

    from faulty_envs import Walk

    return HostedEnv(
        partial(Walk, **settings) if settings else Walk,
        num_envs=num_envs,
        seed=seed,
        time_limit=time_limit,
        success="success" if tells_success else None,
        device=device,
        workers=Workers() if workers is None else workers,
    )


@pytest.fixture(scope="session")
def steps():
    return _steps


@pytest.fixture(scope="session")
def walks():
    """Builds a hosted environment of random walks."""
    return _walks


@pytest.fixture(scope="session")
def equal():
    def check(a, b, *, skip=()):
        keys = set(a.keys(True, True)) - set(skip)
        assert keys == set(b.keys(True, True)) - set(skip)
        for key in keys:
            assert a[key].dtype == b[key].dtype, key
            assert torch.equal(a[key], b[key]), key

    return check
