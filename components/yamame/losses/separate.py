"""The loss of an actor and critics that share nothing: an encoder each, and target copies of
everything.
"""

from typing import ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.losses.redq import MultiGammaREDQLoss
from yamame.losses.sequence import ARRIVAL
from yamame.trajectory.sigma import copy_statistics


class SeparateREDQLoss(MultiGammaREDQLoss):
    """The update of `MultiGammaREDQLoss` where actor and critics each have a sequence model of
    their own.

    With one discount and without cloning this is off-policy recurrent actor-critic learning
    (recurrent model-free RL, arXiv 2110.05038), the baseline of a shared encoder. All arguments and
    terms are those of `MultiGammaREDQLoss`; only where contexts come from differs:

    * ``encoder`` writes ``context``, which the actor reads, and ``critic_context``, which the
      critics read, from parts without a common parameter, see `yamame.agent.SeparateEncoders`. So
      ``loss_critic`` trains the critics and their encoder, ``loss_online`` and ``loss_cloning`` the
      actor and its encoder.
    * the targets are computed by target copies of both encoders and of the heads, which
      `update_targets` moves alike. A target encoder has the running statistics of the encoder it
      follows: input normalisation means the same in both.

    Raises:
        ValueError: as `MultiGammaREDQLoss`, and if the encoder writes no context for the critics.
    """

    shares_encoder: ClassVar[bool] = False

    def _followed(self) -> nn.ModuleDict:
        return nn.ModuleDict({**super()._followed(), "encoder": self.encoder})

    @torch.no_grad()
    def _arrival_contexts(
        self, tensordict: TensorDictBase, actor_context: Tensor, critic_context: Tensor
    ) -> tuple[Tensor, Tensor]:
        encoder = self._targets["encoder"]
        copy_statistics(self.encoder, encoder)
        contexts = self._contexts(encoder, tensordict)
        return contexts[0][:, ARRIVAL], contexts[1][:, ARRIVAL]
