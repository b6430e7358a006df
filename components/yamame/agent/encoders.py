"""Two encoders over one batch: the actor's and the critics'.

Reads what either reads from a TensorDict ``[B, L]``; writes ``context``, the actor's, and
``critic_context``, both ``[B, L, D]``, and whatever else the actor's encoder writes.
"""

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from yamame.checks import UsageError
from yamame.trajectory import TrajectoryEncoder


@torch.no_grad()
def check_encoder(encoder: Any, in_features: int) -> None:
    """Takes one step from a fresh memory, which draws no random number and changes nothing of the
    encoder.

    Raises:
        UsageError: It is no trajectory encoder, or its context is not as wide as it says.
    """
    name = type(encoder).__name__
    if not isinstance(encoder, TrajectoryEncoder):
        raise UsageError(f"encoder: must be a yamame.trajectory.TrajectoryEncoder, got {name}")
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
    if (got := list(context.shape)) != (wanted := [1, encoder.out_features]):
        raise UsageError(
            f"encoder: {name}.step must give a context {wanted} for one env, as its out_features say, got {got}"
        )


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
