"""Every k-th trial of a long history, as if these trials had been played one after the other.

Reads and moves every entry of a right-padded batch ``[B, L]`` with bool ``mask`` and
``trial_start`` ``[B, L(, 1)]``. ``step_index`` and ``time`` count anew; ``prev_action`` and
``prev_reward`` at the first timestep of a trial are those of the last step of the trial that is
kept before it, and zero at the very first, where ``is_init`` is set. So the result looks like a
trajectory of an environment of ``length`` steps. Law: with ``every=1`` and that very length, the
identity.
"""

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import require_at_least
from yamame.keys import ARRIVAL
from yamame.replay.gather import BatchTransform, clear_transitions, gather_timesteps


class TrialSubsampling(BatchTransform):
    """Keeps every k-th trial and cuts what is longer than an episode (algorithm distillation, arXiv
    2210.14215).

    What learns from the result learns to improve k times as fast as the history did. Which of the
    first k trials is the first kept is drawn anew for every trajectory. In a `TransformedEnv` it
    does nothing.

    Args:
        every: k, at least 1.
        length: Steps of an episode: at most ``length + 1`` timesteps are kept.
        generator: Source of all draws; torch's own if None.

    Raises:
        ValueError: If a number is below 1; in use, if the batch lacks ``trial_start``.
    """

    def __init__(
        self, every: int, *, length: int, generator: torch.Generator | None = None
    ) -> None:
        require_at_least("TrialSubsampling", 1, every=every, length=length)
        super().__init__(in_keys=["mask", "trial_start"], out_keys=["mask", "trial_start"])
        self.every, self.length, self.generator = every, length, generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the kept timesteps ``[B, L']``; the batch given is left as it is."""
        mask, starts = (
            entry.reshape(tensordict.shape)
            for entry in self.entries(tensordict, ["mask", "trial_start"])
        )
        step, real = self._choose(mask, starts)
        source = (
            tensordict.shape[1] * torch.arange(len(step), device=step.device).unsqueeze(-1) + step
        )
        out = gather_timesteps(tensordict, source, real)
        # A trial begins with what was received on arrival after the timestep that was kept before.
        before = torch.zeros_like(source)
        before[:, 1:] = source[:, :-1] + 1
        column = torch.arange(step.shape[1], device=step.device)
        later = real & (column > 0)
        out.update(gather_timesteps(tensordict.select(*ARRIVAL, strict=False), before, later))
        shape = out.get("is_init").shape
        index = torch.where(real, column, 0).reshape(shape)
        out.set("is_init", (index == 0) & real.reshape(shape))
        if "step_index" in out.keys():
            out.set("step_index", index)
        if "time" in out.keys():
            out.set("time", (index / self.length).to(out.get("time").dtype))
        return clear_transitions(out, real.sum(-1) - 1)

    def _choose(self, mask: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The timesteps ``[B, L']`` that are kept, and which of them are real."""
        trial = (starts & mask).cumsum(-1) - 1
        offset = torch.randint(self.every, (len(mask), 1), generator=self.generator).to(mask.device)
        # A history with fewer trials than that keeps its first.
        offset = torch.minimum(offset, trial.amax(-1, keepdim=True).clamp(min=0))
        kept = mask & (trial >= offset) & ((trial - offset) % self.every == 0)
        kept &= kept.cumsum(-1) <= self.length + 1
        num = kept.sum(-1, keepdim=True)
        width = int(num.max())
        source = (~kept).to(torch.uint8).argsort(dim=-1, stable=True)[:, :width]
        return source, torch.arange(width, device=mask.device) < num
