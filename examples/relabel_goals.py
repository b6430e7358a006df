"""Relabel trajectories with goals that they reached: python relabel_goals.py.

Prints how many goals a trajectory reaches in replay, for three strategies.
"""

import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from yamame.replay import Relabel, pack
from yamame_envs import MazeRunner


def main() -> None:
    """Relabel random walks through mazes, with two goals to reach in order."""
    torch.manual_seed(0)
    walks = pack(MazeRunner(num_envs=64, num_goals=2).rollout(100, break_when_any_done=False))
    for strategy in ("none", "some", "all"):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(walks)), transform=Relabel(strategy), batch_size=64
        )
        buffer.extend(walks.clone())
        sample = buffer.sample()
        reached = sample["next", "reward"].sum().item() / len(sample)
        print(strategy, f"{reached:.2f} goals per walk")


if __name__ == "__main__":
    main()
