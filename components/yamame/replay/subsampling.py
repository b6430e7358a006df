"""Every k-th trial of a long history, as if these trials had been played one after the other.

Reads and moves every entry of a right-padded batch ``[B, L]`` with bool ``mask`` and ``trial_start`` ``[B, L(, 1)]``.
``step_index`` and ``time`` count anew; ``prev_action`` and ``prev_reward`` at the first timestep of a trial are those
of the last step of the trial that is kept before it, and zero at the very first, where ``is_init`` is set. So the
result looks like a trajectory of an environment of ``length`` steps. Law: with ``every=1`` and that very length, the
identity.
"""

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.replay.window import end_windows

_ARRIVAL = ("prev_action", "prev_reward")


class TrialSubsampling(Transform):
    """Keeps every k-th trial and cuts what is longer than an episode (algorithm distillation, arXiv 2210.14215).

    What learns from the result learns to improve k times as fast as the history did. Which of the first k trials
    is the first kept is drawn anew for every trajectory. In a `TransformedEnv` it does nothing.

    Args:
        every: k, at least 1.
        length: Steps of an episode: at most ``length + 1`` timesteps are kept.
        generator: Source of all draws; torch's own if None.

    Raises:
        ValueError: If a number is below 1; in use, if the batch lacks ``trial_start``.
    """

    def __init__(self, every: int, *, length: int, generator: torch.Generator | None = None) -> None:
        for name, value in (("every", every), ("length", length)):
            if value < 1:
                raise ValueError(f"TrialSubsampling: {name} must be at least 1, got {value}")
        super().__init__(in_keys=["mask", "trial_start"], out_keys=["mask", "trial_start"])
        self.every = every
        self.length = length
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the kept timesteps ``[B, L']``; the batch given is left as it is."""
        if tensordict.get("trial_start", None) is None:
            held = list(tensordict.keys())
            raise ValueError(f"TrialSubsampling: the batch must hold 'trial_start', got {held}")
        mask, starts = (tensordict.get(key).reshape(tensordict.shape) for key in ("mask", "trial_start"))
        source, real = self._choose(mask, starts)
        row = torch.arange(len(source), device=source.device).unsqueeze(-1)

        def move(value: Tensor) -> Tensor:
            out = value[row, source]
            out[~real] = 0
            return out

        out = tensordict.apply(move, batch_size=source.shape)
        for key in _ARRIVAL:
            if key in out.keys():
                out.set(key, _arrivals(tensordict.get(key), row, source, real))
        self._count_anew(out, real)
        return end_windows(out, real.sum(-1) - 1, ("action", "next"))

    def _choose(self, mask: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Where the kept timesteps ``[B, L']`` come from, and which of them are real."""
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

    def _count_anew(self, out: TensorDictBase, real: Tensor) -> None:
        shape = out.get("is_init").shape
        step = torch.where(real, torch.arange(real.shape[1], device=real.device), 0).reshape(shape)
        out.set("is_init", ((step == 0) & real.reshape(shape)))
        if "step_index" in out.keys():
            out.set("step_index", step)
        if "time" in out.keys():
            out.set("time", (step / self.length).to(out.get("time").dtype))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict


def _arrivals(value: Tensor, row: Tensor, source: Tensor, real: Tensor) -> Tensor:
    """What was received on arrival at the timestep after the one kept before: ``[B, L', *]``, zero at the first."""
    out = torch.zeros_like(value[:, : source.shape[1]])
    after = (source[:, :-1] + 1).clamp(max=value.shape[1] - 1)
    out[:, 1:] = value[row, after]
    out[~real] = 0
    return out
