"""Write a trajectory encoder and check its laws: python own_encoder.py."""

import torch
from tensordict import TensorDict
from torch import nn
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import TrajectoryEncoder


class FadingMean(TrajectoryEncoder):
    """Moving average of the features, with a learned rate for each of them."""

    def __init__(self, in_features: int, *, out_features: int = 32) -> None:
        super().__init__(in_features, out_features)
        self.keep = nn.Parameter(torch.zeros(in_features))
        self.out = nn.Linear(in_features, out_features)

    def init_memory(self, num_envs, *, capacity=None, device=None):
        """Return averages of zero. A memory that grows would use ``capacity``."""
        mean = self.keep.new_zeros(num_envs, self.in_features, device=device)
        return TensorDict({"mean": mean}, [num_envs], device=mean.device)

    def step(self, x, memory, is_init, step_index=None):
        """Encode one timestep of every environment."""
        self.check_step(x, memory, is_init)
        # A new episode must not depend on the last one.
        mean = memory["mean"].masked_fill(is_init.unsqueeze(-1), 0.0)
        keep = self.keep.sigmoid()
        mean = keep * mean + (1 - keep) * x
        return self.out(mean), TensorDict({"mean": mean}, memory.batch_size, device=memory.device)


def main() -> None:
    """Check the encoder; an error names the law that does not hold."""
    encoder = FadingMean(6)
    check_trajectory_encoder(encoder)
    context, _ = encoder.step(torch.ones(2, 6), encoder.init_memory(2), torch.tensor([True, True]))
    print("all laws hold, contexts have shape", tuple(context.shape))


if __name__ == "__main__":
    main()
