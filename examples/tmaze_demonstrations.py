"""Write demonstrations of the T-maze: python examples/tmaze_demonstrations.py demos.npz 500 100

The numbers are those of the episodes and of the steps in the corridor.
"""

import sys

import numpy as np
from tensordict import TensorDict
from yamame_envs import PassiveTMaze

RIGHT, UP, DOWN = 0, 1, 3


def demonstrator(length: int):
    """Return a policy that walks to the junction and turns as the sign of the first step shows."""
    sign = None

    def act(timestep: TensorDict) -> TensorDict:
        nonlocal sign
        if sign is None:
            sign = timestep["observation"][:, 1]
        at_junction = timestep["step_index"].squeeze(-1) == length
        turn = (sign < 0) * (DOWN - UP) + UP
        return timestep.set("action", turn.long().where(at_junction, RIGHT))

    return act


def main(path: str, num_episodes: int = 500, length: int = 100) -> None:
    """Play all episodes in parallel, and write their steps one episode after the other."""
    env = PassiveTMaze(num_envs=num_episodes, length=length, seed=1)
    steps = env.rollout(length + 1, demonstrator(length)).flatten()
    np.savez(
        path,
        observations=steps["observation"],
        actions=steps["action"],
        rewards=steps["next", "reward"].squeeze(-1),
        terminated=steps["next", "terminated"].squeeze(-1),
        truncated=steps["next", "truncated"].squeeze(-1),
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
