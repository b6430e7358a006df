"""Acts with a shipped agent for several visitors: python act_sessions.py [agent]. Prints who turned
right.
"""

import sys

import torch
import yamame
from yamame_envs import PassiveTMaze

LENGTH = 100


def main(source: str = "zoo:cpu_tmaze") -> None:
    """Four visitors come one after the other, each walks through a corridor of its own, and
    leaves.
    """
    agent = yamame.load(source, max_sessions=4)
    corridors = [PassiveTMaze(num_envs=1, length=LENGTH, seed=visitor) for visitor in range(4)]
    state = {}
    for time in range(LENGTH + 4):
        if time < 4:  # one more comes
            state[time] = corridors[time].reset()
            agent.reset(sessions=[time])
        here = sorted(state)
        seen = torch.cat([state[visitor]["observation"] for visitor in here]).numpy()
        earned = torch.cat([state[visitor]["prev_reward"][:, 0] for visitor in here]).numpy()
        actions = agent.act(seen, reward=earned, sessions=here)
        for visitor, action in zip(here, actions, strict=True):
            after = corridors[visitor].step(
                state[visitor].set("action", torch.tensor([int(action)]))
            )["next"]
            state[visitor] = after.exclude("reward")
            if after["done"].any():
                print(
                    visitor, "turned right" if after["reward"].item() > 0 else "took the wrong turn"
                )
                agent.forget([visitor])
                del state[visitor]


if __name__ == "__main__":
    main(*sys.argv[1:])
