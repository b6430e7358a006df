"""Two encoders over one batch: the actor's and the critics'.

Reads what either reads from a TensorDict ``[B, L]``; writes ``context``, the actor's, and ``critic_context``, both
``[B, L, D]``, and whatever else the actor's encoder writes.
"""

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey


class SeparateEncoders(TensorDictModuleBase):
    """Runs an encoder for the actor and one for the critics, for `yamame.losses.SeparateREDQLoss`.

    Args:
        actor: Writes the actor's context.
        critic: Writes the critics' context, under the same key.
        context_key: Where both write, and where the actor's context is found.
        critic_context_key: Where the critics' context is found.
    """

    def __init__(
        self,
        actor: TensorDictModuleBase,
        critic: TensorDictModuleBase,
        *,
        context_key: NestedKey = "context",
        critic_context_key: NestedKey = "critic_context",
    ) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic
        self.context_key = context_key
        self.critic_context_key = critic_context_key
        self.in_keys = list(dict.fromkeys([*actor.in_keys, *critic.in_keys]))
        self.out_keys = [context_key, critic_context_key]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes both contexts and returns ``tensordict``."""
        context = self.critic(tensordict.copy())[self.context_key]
        return self.actor(tensordict).set(self.critic_context_key, context)
