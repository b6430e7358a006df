"""The loss of an actor and critics that share nothing: an encoder each, and target copies of everything."""

import copy
from typing import ClassVar

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import nn

from yamame.losses.redq import MultiGammaREDQLoss
from yamame.losses.sequence import Contexts


class SeparateREDQLoss(MultiGammaREDQLoss):
    """The update of `MultiGammaREDQLoss` where actor and critics each have a sequence model of their own.

    With one discount and without cloning this is off-policy recurrent actor-critic learning (recurrent model-free
    RL, arXiv 2110.05038), the baseline of a shared encoder. All arguments and terms are those of
    `MultiGammaREDQLoss`; only where contexts come from differs:

    * ``encoder`` writes ``context``, which the actor reads, and ``critic_context``, which the critics read, from
      parts without a common parameter, see `yamame.agent.SeparateEncoders`. So ``loss_critic`` trains the critics
      and their encoder, ``loss_online`` and ``loss_cloning`` the actor and its encoder.
    * the targets are computed by target copies of both encoders and of the heads, which
      ``torchrl.objectives.SoftUpdate`` moves alike. A target encoder is in evaluation mode (no dropout) and has
      the running statistics of the encoder it follows: input normalisation means the same in both.

    Raises:
        ValueError: as `MultiGammaREDQLoss`, and if the encoder writes no context for the critics.
    """

    shares_encoder: ClassVar[bool] = False

    encoder_network: nn.Module
    encoder_network_params: TensorDictParams
    target_encoder_network_params: TensorDictParams

    def _register_encoder(self, encoder: TensorDictModuleBase) -> None:
        super()._register_encoder(encoder)
        self.convert_to_functional(encoder, "encoder_network", create_target_params=True)
        # What target parameters are put into: not a submodule, so that it stays in evaluation mode.
        self.__dict__["_target_encoder"] = copy.deepcopy(encoder).eval()

    def _encode(self, tensordict: TensorDictBase) -> Contexts:
        return self._contexts(self.encoder(tensordict.copy()))

    @torch.no_grad()
    def _encode_following(self, tensordict: TensorDictBase, contexts: Contexts) -> Contexts:
        params = self.target_encoder_network_params
        for name, statistic in self.encoder.named_buffers(remove_duplicate=False):
            params.get(tuple(name.split("."))).copy_(statistic)
        with params.to_module(self._target_encoder, preserve_module_state=False):
            return self._contexts(self._target_encoder(tensordict.copy())).rows(slice(1, None))

    def _contexts(self, encoded: TensorDictBase) -> Contexts:
        keys = self.tensor_keys
        critic = encoded.get(keys.critic_context, None)
        if critic is None:
            raise ValueError(
                f"{type(self).__name__}: encoder must write {keys.critic_context!r} for the critics beside "
                f"{keys.context!r} for the actor, got {sorted(map(str, encoded.keys(True)))}"
            )
        return Contexts(encoded[keys.context], critic)
