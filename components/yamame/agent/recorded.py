"""Decisions recorded as CUDA graphs: the host launches a whole one at once instead of every kernel.

A graph repeats the same kernels on the same memory. So there is one for every structure of
observation and memory (a Transformer's cache grows, and a graph reads all of it). The first
decisions of a structure are ordinary ones: they are the warm-up that a capture needs. A capture
executes nothing.
"""

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from yamame.execution.capturing import recording
from yamame.execution.recorder import Recorder, structure, tensors_of

Decide = Callable[[TensorDictBase, TensorDict], tuple[Tensor, TensorDict]]
"""Observations and memory ``[N]`` -> parameters of the distributions ``[N, P]`` and the next
memory.
"""


class RecordedDecisions:
    """Decides, and records decisions of structures that come again.

    Parameters and buffers may change in place: every run reads them anew.

    Args:
        decide: What is recorded; it reads nothing back.
        recorder: Runs and records.
        policy: The module whose parameters and buffers ``decide`` reads.
        warmup: Ordinary decisions of a structure before it is recorded.
    """

    def __init__(
        self, decide: Decide, recorder: Recorder, policy: nn.Module, *, warmup: int = 3
    ) -> None:
        self._decide, self._recorder, self._policy, self._warmup = decide, recorder, policy, warmup
        self._decisions: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, Decide] = {}

    @torch.no_grad()
    def __call__(
        self, observations: TensorDictBase, memory: TensorDict
    ) -> tuple[Tensor, TensorDict]:
        """Return the result of ``decide``."""
        key = structure(observations), structure(memory)
        if key not in self._recorded:
            if self._decisions[key] < self._warmup:
                self._decisions[key] += 1
                return self._recorder.warm(lambda: self._decide(observations, memory))
            self._recorded[key] = self._record(observations, memory)
        return self._recorded[key](observations, memory)

    def _record(self, observations: TensorDictBase, memory: TensorDict) -> Decide:
        """Records the decision of one structure; it owns the tensors that every run reads and
        writes.
        """
        own_observations, own_memory = observations.clone(), memory.clone()

        def decide() -> dict[str, Tensor]:
            params, next_memory = self._decide(own_observations, own_memory)
            own_memory.update_(next_memory)
            return {"params": params}

        inputs = [*own_observations.values(True, True), *own_memory.values(True, True)]
        with recording():
            run, results = self._recorder.record(decide, reads=[*tensors_of(self._policy), *inputs])

        def decide_again(
            observations: TensorDictBase, memory: TensorDict
        ) -> tuple[Tensor, TensorDict]:
            own_observations.update_(observations)
            if memory is not own_memory:
                own_memory.update_(memory)
            run()
            return results["params"].clone(), own_memory  # the next run overwrites the parameters

        return decide_again
