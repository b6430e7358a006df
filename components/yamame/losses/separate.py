"""Loss of an actor and critics with an encoder each, and target copies of all networks."""

from typing import ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.losses.redq import MultiGammaREDQLoss
from yamame.losses.sequence import ARRIVAL
from yamame.trajectory.sigma import copy_statistics


class SeparateREDQLoss(MultiGammaREDQLoss):
    """`MultiGammaREDQLoss` for an actor and critics that have a sequence model each.

    With one discount and without cloning this is off-policy recurrent actor-critic learning
    (recurrent model-free RL, arXiv 2110.05038), the baseline of a shared encoder. Arguments and
    terms are those of `MultiGammaREDQLoss`. Two things differ:

    * ``encoder`` writes ``context`` for the actor and ``critic_context`` for the critics, from
      parts without a common parameter, see `yamame.agent.SeparateEncoders`. ``loss_critic`` trains
      the critics and their encoder, ``loss_online`` and ``loss_cloning`` the actor and its encoder.
    * Target copies of both encoders and of the heads compute the targets, and `update_targets`
      moves all of them.

    Raises:
        ArgumentError: As `MultiGammaREDQLoss`, or the encoder writes no context for the critics.
    """

    shares_encoder: ClassVar[bool] = False

    def _followed(self) -> nn.ModuleDict:
        return nn.ModuleDict({**super()._followed(), "encoder": self.encoder})

    @torch.no_grad()
    def _arrival_contexts(
        self, tensordict: TensorDictBase, actor_context: Tensor, critic_context: Tensor
    ) -> tuple[Tensor, Tensor]:
        encoder = self._targets["encoder"]
        # Normalised inputs must mean the same to an encoder and its target copy.
        copy_statistics(self.encoder, encoder)
        contexts = self._contexts(encoder, tensordict)
        return contexts[0][:, ARRIVAL], contexts[1][:, ARRIVAL]
