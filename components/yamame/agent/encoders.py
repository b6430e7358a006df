"""Two encoders over one batch: the actor's and the critics'.

Reads what either reads from a TensorDict ``[B, L]``; writes ``context``, the actor's, and ``critic_context``, both
``[B, L, D]``, and whatever else the actor's encoder writes.
"""

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase


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
