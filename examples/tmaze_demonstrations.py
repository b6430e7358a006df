"""Writes demonstrations of the T-Maze into a .npz file:  python examples/tmaze_demonstrations.py
demos.npz 500 100
"""

import sys

import numpy as np
from tensordict import TensorDict
from yamame_envs import PassiveTMaze


def demonstrator(length: int):
    """A policy that reads the sign at the first step, walks right to the junction and turns there
    as the sign said.
    """
    sign = None

    def act(timestep: TensorDict) -> TensorDict:
        nonlocal sign
        step = timestep["step_index"].squeeze(-1)
        if sign is None:
            sign = timestep["observation"][:, 1]
        turn = (sign < 0) * 2 + 1  # 1: up, 3: down
        return timestep.set("action", (step == length) * turn.long())  # 0: right

    return act


def main(path: str, num_episodes: int = 500, length: int = 100) -> None:
    """Plays every episode once, side by side, and writes all steps one after the other."""
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
