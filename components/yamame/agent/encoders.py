"""Separate encoders for the actor and the critics, and a check of trajectory encoders."""

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from yamame.checks import require
from yamame.trajectory import TrajectoryEncoder


@torch.no_grad()
def check_encoder(encoder: Any, in_features: int) -> None:
    """Check an encoder by one step from an empty memory, which changes nothing of it.

    Args:
        encoder: Encoder to check.
        in_features: Width of its input.

    Raises:
        ArgumentError: It is not a `yamame.trajectory.TrajectoryEncoder`, or its context is not
            ``out_features`` wide.
    """
    name = type(encoder).__name__
    is_encoder = isinstance(encoder, TrajectoryEncoder)
    condition = "be a yamame.trajectory.TrajectoryEncoder"
    require("InContextAgent", "trajectory_encoder", name, is_encoder, condition)

    modes = {module: module.training for module in encoder.modules()}
    example = torch.zeros(())
    for parameter in encoder.parameters():
        example = parameter
        break
    device = example.device
    x = torch.zeros(1, in_features, device=device)
    start = torch.ones(1, dtype=torch.bool, device=device)
    step_index = torch.zeros(1, dtype=torch.int64, device=device)
    # The generator is restored: the weights of later parts depend on it.
    with torch.random.fork_rng(devices=[]):
        encoder.eval()
        memory = encoder.grow(encoder.init_memory(1, device=device))
        context, _ = encoder.step(x, memory, start, step_index)
    for module, mode in modes.items():
        module.training = mode

    shape = list(context.shape)
    expected = [1, encoder.out_features]
    condition = f"return a context {expected} for one env from {name}.step, as in its out_features"
    require("InContextAgent", "trajectory_encoder", shape, shape == expected, condition)


class SeparateEncoders(TensorDictModuleBase):
    """Runs an encoder for the actor and one for the critics, for `yamame.losses.SeparateREDQLoss`.

    Reads from a TensorDict ``[B, L]`` the keys that either encoder reads. Writes ``context`` of the
    actor and ``critic_context``, both ``[B, L, D]``, and everything else that the actor's encoder
    writes.

    Args:
        actor: Writes the actor's ``context``.
        critic: Writes the critics' context, as ``context`` as well.
    """

    def __init__(self, actor: TensorDictModuleBase, critic: TensorDictModuleBase) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic
        # Each key once, in order.
        self.in_keys = list(dict.fromkeys([*actor.in_keys, *critic.in_keys]))
        self.out_keys = ["context", "critic_context"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write both contexts and return ``tensordict``."""
        # In this order: dropout draws from one generator.
        critic_context = self.critic(tensordict.copy())["context"]
        return self.actor(tensordict).set("critic_context", critic_context)
