"""Subsampling: every k-th trial of a long history, as if these trials followed each other.

Moves every entry of a right-padded batch ``[B, L]`` with bool ``mask`` and ``trial_start``
``[B, L(, 1)]``. ``step_index`` and ``time`` are counted anew. ``prev_action`` and ``prev_reward``
at the first timestep of a trial are those of the last step of the previous retained trial, and zero
at the very first timestep, where ``is_init`` is set. The result thus looks like a trajectory of an
environment of ``length`` steps. Law: with ``every=1`` and that very length, the identity.
"""

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import PositiveInt, check_bounds, require
from yamame.keys import ARRIVAL
from yamame.replay.gather import BatchTransform, clear_transitions, gather_timesteps


class TrialSubsampling(BatchTransform):
    """Retains every k-th trial and cuts the result to an episode (AD, arXiv 2210.14215).

    A model of the result learns to improve k times as fast as the learner of the history did. The
    first retained trial is drawn among the first k trials for every trajectory. Without effect in a
    `TransformedEnv`.

    Args:
        every: k.
        length: Steps of an episode: at most ``length + 1`` timesteps are retained.
        generator: Generator of all draws; None: torch's global one.

    Raises:
        ArgumentError: A number is below 1; in use, the batch lacks ``trial_start``, is not packed,
            or holds several episodes in a row.
    """

    @check_bounds
    def __init__(
        self, every: PositiveInt, *, length: PositiveInt, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(in_keys=["mask", "trial_start"], out_keys=["mask", "trial_start"])
        self.every = every
        self.length = length
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the retained timesteps ``[B, L']`` in a new batch."""
        mask, starts = self.entries(tensordict, ["mask", "trial_start"])
        self.check_shape(tensordict)
        shape = tensordict.shape
        mask = mask.reshape(shape)
        self.check_packed(tensordict, mask)
        self._check_one_episode(tensordict, mask)
        step, real = self._choose(mask, starts.reshape(shape))
        first = shape[1] * torch.arange(len(step), device=step.device)
        source = first.unsqueeze(-1) + step
        out = gather_timesteps(tensordict, source, real)

        # The timestep after the previous retained one holds what that step led to. At the first
        # timestep of a trial, this is what the last step of the previous retained trial led to.
        arrived_at = torch.zeros_like(source)
        arrived_at[:, 1:] = source[:, :-1] + 1
        column = torch.arange(step.shape[1], device=step.device)
        is_later = real & (column > 0)
        arrival = tensordict.select(*ARRIVAL, strict=False)
        out.update(gather_timesteps(arrival, arrived_at, is_later))

        flags = out.get("is_init").shape
        index = torch.where(real, column, 0).reshape(flags)
        out.set("is_init", (index == 0) & real.reshape(flags))
        if "step_index" in out.keys():
            out.set("step_index", index)
        if "time" in out.keys():
            out.set("time", (index / self.length).to(out.get("time").dtype))
        return clear_transitions(out, real.sum(-1) - 1)

    def _check_one_episode(self, batch: TensorDictBase, mask: Tensor) -> None:
        """Raise if an episode begins within a row: its trials are not those of the one before."""
        is_init = batch.get("is_init", None)
        if is_init is None or not mask.is_cpu:
            return
        is_one = not bool((is_init.reshape(mask.shape) & mask)[:, 1:].any())
        got = "another episode within a row"
        remedy = "split rows at ends of episodes with yamame.replay.pack(rollout)"
        require("TrialSubsampling", "a row", got, is_one, "hold one episode", remedy=remedy)

    def _choose(self, mask: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the timesteps to retain ``[B, L']``, and return which of them are real."""
        trial = (starts & mask).cumsum(-1) - 1
        offset = torch.randint(self.every, (len(mask), 1), generator=self.generator).to(mask.device)
        # A history with fewer trials retains its last one.
        last_trial = trial.amax(-1, keepdim=True).clamp(min=0)
        offset = torch.minimum(offset, last_trial)

        retained = mask & (trial >= offset) & ((trial - offset) % self.every == 0)
        retained &= retained.cumsum(-1) <= self.length + 1
        count = retained.sum(-1, keepdim=True)
        width = int(count.max())
        # A stable sort moves the retained timesteps to the front and keeps their order.
        order = (~retained).to(torch.uint8).argsort(dim=-1, stable=True)
        real = torch.arange(width, device=mask.device) < count
        return order[:, :width], real
