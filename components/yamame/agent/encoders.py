"""Two encoders over one batch: the actor's and the critics'.

Reads what either reads from a TensorDict ``[B, L]``; writes ``context``, the actor's, and
``critic_context``, both ``[B, L, D]``, and whatever else the actor's encoder writes.
"""

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from yamame.checks import require
from yamame.trajectory import TrajectoryEncoder


@torch.no_grad()
def check_encoder(encoder: Any, in_features: int) -> None:
    """Take one step from a fresh memory, without random numbers and without changing the encoder.

    Raises:
        ArgumentError: ``encoder`` is not a `TrajectoryEncoder`, or the width of its context is not
            its ``out_features``.
    """
    name = type(encoder).__name__
    is_encoder = isinstance(encoder, TrajectoryEncoder)
    condition = "be a yamame.trajectory.TrajectoryEncoder"
    require("InContextAgent", "trajectory_encoder", name, is_encoder, condition)
    modes = {module: module.training for module in encoder.modules()}
    example = next((parameter for parameter in encoder.parameters()), torch.zeros(()))
    x = torch.zeros(1, in_features, device=example.device)
    start = torch.ones(1, dtype=torch.bool, device=example.device)
    with torch.random.fork_rng(devices=[]):
        encoder.eval()
        memory = encoder.grow(encoder.init_memory(1, device=example.device))
        context, _ = encoder.step(
            x, memory, start, torch.zeros(1, dtype=torch.int64, device=example.device)
        )
    for module, mode in modes.items():
        module.training = mode
    shape = list(context.shape)
    expected = [1, encoder.out_features]
    condition = f"return a context {expected} for one env from {name}.step, as its out_features say"
    require("InContextAgent", "trajectory_encoder", shape, shape == expected, condition)


class SeparateEncoders(TensorDictModuleBase):
    """Runs an encoder for the actor and one for the critics, for `yamame.losses.SeparateREDQLoss`.

    Args:
        actor: Writes the actor's ``context``.
        critic: Writes the critics' context, as ``context`` as well.
    """

    def __init__(self, actor: TensorDictModuleBase, critic: TensorDictModuleBase) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic
        self.in_keys = list(dict.fromkeys([*actor.in_keys, *critic.in_keys]))
        self.out_keys = ["context", "critic_context"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes both contexts and returns ``tensordict``."""
        context = self.critic(tensordict.copy())["context"]
        return self.actor(tensordict).set("critic_context", context)
