"""Decisions recorded as CUDA graphs: the host launches a whole one at once instead of every kernel.

A graph repeats the same kernels on the same memory. So there is one for every structure of what is seen and of what
is remembered (a Transformer's memory grows by doubling, and a graph reads all of it). The first decisions of a
structure are ordinary ones: they are the warm-up that a capture needs. A capture executes nothing.
"""

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.capturing import Recorder, recording, structure
from yamame.trajectory import TrajectoryEncoder

Decide = Callable[[TensorDictBase, Tensor], Tensor]
"""What was seen ``[N]`` and which rows start ``[N]`` -> parameters of the distribution ``[N, P]``."""


class RecordedDecision:
    """Decisions of one structure.

    Args:
        decide: See `RecordedDecisions`.
        encoder: See `RecordedDecisions`.
        recorder: See `RecordedDecisions`.
        seen: What one of them sees.
        starts: Which of its rows start.
    """

    def __init__(
        self,
        decide: Decide,
        encoder: TrajectoryEncoder,
        recorder: Recorder,
        seen: TensorDictBase,
        starts: Tensor,
    ) -> None:
        self._encoder = encoder
        self._seen, self._starts, self._memory = seen.clone(), starts.clone(), dict(encoder.memory)
        with recording():
            record = recorder.record(lambda: {"params": decide(self._seen, self._starts)})
        self._run, self._results = record

    def __call__(self, seen: TensorDictBase, starts: Tensor) -> Tensor:
        """The parameters of another."""
        self._encoder.move_memory(self._memory)
        self._seen.update_(seen)
        self._starts.copy_(starts)
        self._run()
        return self._results["params"].clone()  # the next run overwrites them


class RecordedDecisions:
    """Decides, and records decisions of structures that come again.

    Weights may change where they are: they are read anew in every run.

    Args:
        decide: A decision of rows for which the encoder's memory is ready.
        encoder: Whose memory it reads and goes on with.
        recorder: Runs and records.
        dtype: Of the matrix products of encoders; None for that of the weights.
        warmup: Ordinary decisions of a structure before it is recorded.
    """

    def __init__(
        self,
        decide: Decide,
        encoder: TrajectoryEncoder,
        recorder: Recorder,
        *,
        dtype: torch.dtype | None = None,
        warmup: int = 3,
    ) -> None:
        self._decide, self._encoder, self._recorder = decide, encoder, recorder
        self._dtype, self._warmup = dtype, warmup
        self._made: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, RecordedDecision] = {}

    @torch.no_grad()
    def __call__(self, seen: TensorDictBase) -> Tensor:
        """Parameters of the distributions of the actions, ``[N, P]``, from the entries that encoders read ``[N]``."""
        starts = self._encoder.rows_that_start(seen)
        # What a recording casts it casts anew in every run.
        lower = self._dtype is not None
        with torch.autocast(starts.device.type, self._dtype, enabled=lower, cache_enabled=False):
            return self._params(seen, self._encoder.make_ready(starts))

    def _params(self, seen: TensorDictBase, starts: Tensor) -> Tensor:
        key = structure(seen), structure(TensorDict(self._encoder.memory))
        if key not in self._recorded:
            if self._made[key] < self._warmup:
                self._made[key] += 1
                return self._recorder.warm(lambda: self._decide(seen, starts))
            self._recorded[key] = RecordedDecision(self._decide, self._encoder, self._recorder, seen, starts)
        return self._recorded[key](seen, starts)
