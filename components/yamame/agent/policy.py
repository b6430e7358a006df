"""Acting: one decision per call from the whole history, remembered inside the trajectory encoder.

Reads the timestep encoder's keys, ``step_index``, ``is_init`` and, where the environment has one, ``action_mask``
from a TensorDict ``[N]``; writes ``action`` and nothing else, so that neither features nor memory reach a rollout.
Rows whose ``is_init`` is set start with an empty memory.
"""

import copy
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.nn import functional as F
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.agent.recorded import RecordedDecisions
from yamame.capturing import Recorder
from yamame.heads import ActorHead
from yamame.preparable import Preparable
from yamame.trajectory import SigmaReparamLinear, TrajectoryEncoder


class InContextPolicy(TensorDictModuleBase):
    """Encodes the current timestep, updates the memory and picks an action of one of the trained policies.

    Samples under `ExplorationType.RANDOM` (and without a setting), takes the distribution's mode under
    `ExplorationType.DETERMINISTIC` and `ExplorationType.MODE`.

    Args:
        timestep_encoder: Writes the features of one timestep.
        trajectory_encoder: Turns them into the context, with its own acting memory.
        actor: Head over the context, with one policy per gamma.
        gamma_index: Which of the actor's G policies acts.
        action_key: Where the action is written.
        action_mask_key: Where the mask of allowed actions is read, when the input has one.

    Raises:
        ValueError: If ``gamma_index`` is not an index into the actor's gammas.
    """

    def __init__(
        self,
        timestep_encoder: TensorDictModuleBase,
        trajectory_encoder: TrajectoryEncoder,
        actor: ActorHead,
        *,
        gamma_index: int = -1,
        action_key: NestedKey = "action",
        action_mask_key: NestedKey = "action_mask",
    ) -> None:
        super().__init__()
        if not -actor.num_gammas <= gamma_index < actor.num_gammas:
            raise ValueError(
                f"InContextPolicy: gamma_index must index one of {actor.num_gammas} gammas, got {gamma_index}"
            )
        self.timestep_encoder = timestep_encoder
        self.trajectory_encoder = trajectory_encoder
        self.actor = actor
        self.gamma_index = gamma_index
        self.action_key = action_key
        self.action_mask_key = action_mask_key
        produced = set(timestep_encoder.out_keys)
        needed = [*timestep_encoder.in_keys, *trajectory_encoder.in_keys]
        self.in_keys = [key for key in dict.fromkeys(needed) if key not in produced]
        self.out_keys = [action_key]
        self._recorded: RecordedDecisions | None = None

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action of every row of ``tensordict`` ``[N]`` and returns it."""
        if self._recorded is None:
            scratch = self.trajectory_encoder(self.timestep_encoder(tensordict.copy()))
            params = self._params(scratch.get(self.trajectory_encoder.out_keys[0]))
        else:
            params = self._recorded(tensordict.select(*self.in_keys, strict=False))
        space = self.actor.action_space
        distribution = space.distribution(params, tensordict.get(self.action_mask_key, None))
        deterministic = exploration_type() in (ExplorationType.DETERMINISTIC, ExplorationType.MODE)
        encoded = distribution.mode() if deterministic else distribution.sample()
        return tensordict.set(self.action_key, space.decode(encoded))

    def prepare(self, dtype: torch.dtype | None = None, *, compiled: bool = False) -> None:
        """Makes decisions cheaper until weights change; see `Preparable.prepare`. Nothing for recorded ones."""
        if self._recorded is not None:
            return
        for encoder in (self.timestep_encoder, self.trajectory_encoder):
            if isinstance(encoder, Preparable):
                encoder.prepare(dtype, compiled=compiled)

    def record(self, recorder: Recorder, dtype: torch.dtype | None = None) -> None:
        """Records decisions from now on, all but the draw of the action; copies and pickles do not.

        Weights may change in place, and the memory of acting may be loaded and reset.

        Args:
            recorder: What records.
            dtype: Of the matrix products of the encoders; None for that of the weights.
        """

        def decide(seen: TensorDictBase, starts: Tensor) -> Tensor:
            context = self.trajectory_encoder.encode_step(self.timestep_encoder(seen.copy()), starts)
            with torch.autocast(context.device.type, enabled=False):
                return self._params(context.to(next(self.actor.parameters()).dtype))

        self._recorded = RecordedDecisions(decide, self.trajectory_encoder, recorder, dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorded": None}

    def _params(self, context: Tensor) -> Tensor:
        """``[*, D] -> [*, P]``, of the policy that acts: no more of the last layer is computed."""
        last: Any
        *hidden, last = self.actor.mlp
        for layer in hidden:
            context = layer(context)
        size = self.actor.action_space.num_params
        first = self.gamma_index % self.actor.num_gammas * size
        return F.linear(context, last.weight[first : first + size], last.bias[first : first + size])


_FEW_ROWS = 32


def acting_copy(
    policy: InContextPolicy,
    *,
    num_rows: int,
    dtype: torch.dtype | None = None,
    compiled: bool = False,
    recorder: Recorder | None = None,
) -> InContextPolicy:
    """A copy that acts for ``num_rows`` rows: in eval mode, without gradients and memory, and prepared or recorded.

    Where rows are few and on a CPU, its matrices have the same values and shapes but lie in memory column by
    column, which such products read faster. Writing weights into it keeps them so; call ``prepare`` afterwards.

    Args:
        policy: What is copied.
        num_rows: How many rows it will act for.
        dtype: As for `InContextPolicy.prepare`.
        compiled: As for `InContextPolicy.prepare`.
        recorder: As for `InContextPolicy.record`; None to prepare it.
    """
    actor = copy.deepcopy(policy).requires_grad_(False).eval()
    for module in actor.modules():
        if num_rows < _FEW_ROWS and isinstance(module, nn.Linear | SigmaReparamLinear | nn.GRU):
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 2 and parameter.is_cpu:
                    parameter.data = parameter.data.t().contiguous().t()
    if recorder is None:
        actor.prepare(dtype, compiled=compiled)
    else:
        actor.record(recorder, dtype)
    return actor
