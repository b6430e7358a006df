"""Relabels trajectories by what they reached: python relabel_goals.py. Prints how often goals are
reached in replay.
"""

import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from yamame.replay import Relabel, pack
from yamame_envs import MazeRunner


def main() -> None:
    """Random walks in mazes, with two goals to be found in order."""
    torch.manual_seed(0)
    walks = pack(MazeRunner(num_envs=64, num_goals=2).rollout(100, break_when_any_done=False))
    for strategy in ("none", "some", "all"):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(walks)), transform=Relabel(strategy), batch_size=64
        )
        buffer.extend(walks.clone())
        sample = buffer.sample()
        print(
            strategy, f"{sample['next', 'reward'].sum().item() / len(sample):.2f} goals in a walk"
        )


if __name__ == "__main__":
    main()
