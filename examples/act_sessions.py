"""Act with a shipped agent in several sessions: python act_sessions.py [agent].

Prints for each visitor of a T-maze whether it took the right turn.
"""

import sys

import torch
import yamame
from yamame_envs import PassiveTMaze

LENGTH = 100
VISITORS = 4


def main(source: str = "zoo:cpu_tmaze") -> None:
    """Let visitors start one after the other, each in its own corridor and session."""
    agent = yamame.load(source, max_sessions=VISITORS)
    corridors = [PassiveTMaze(num_envs=1, length=LENGTH, seed=seed) for seed in range(VISITORS)]
    states = {}
    for time in range(LENGTH + VISITORS):
        if time < VISITORS:
            states[time] = corridors[time].reset()
            agent.reset(sessions=[time])

        # One call decides for all visitors that are in their corridors.
        present = sorted(states)
        observation = torch.cat([states[visitor]["observation"] for visitor in present])
        reward = torch.cat([states[visitor]["prev_reward"][:, 0] for visitor in present])
        actions = agent.act(observation, reward=reward, sessions=present)

        for visitor, action in zip(present, actions, strict=True):
            timestep = states[visitor].set("action", action.reshape(1))
            following = corridors[visitor].step(timestep)["next"]
            states[visitor] = following.exclude("reward")
            if following["done"].any():
                is_right = following["reward"].item() > 0
                print(visitor, "turned right" if is_right else "took the wrong turn")
                agent.forget([visitor])
                del states[visitor]


if __name__ == "__main__":
    main(*sys.argv[1:])
