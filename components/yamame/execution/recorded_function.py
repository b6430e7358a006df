"""A function with a state, recorded as CUDA graphs."""

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from yamame.execution.capturing import recording
from yamame.execution.recorder import Recorder, structure, tensors_of
from yamame.execution.recordings import Recordings

Function = Callable[[TensorDictBase, TensorDict], tuple[Tensor, TensorDict]]
"""Function ``(inputs, state) -> (output, next state)``."""


class RecordedFunction:
    """Executes a function, and records it for structures of its arguments that come again.

    The host launches a recorded call at once instead of every kernel. There is one recording for
    every structure of inputs and state, such as for every size of a Transformer's cache.

    Args:
        function: Function to record; it reads nothing back from the device.
        recorder: Runs and records.
        module: Module whose parameters and buffers the function reads. They may change in place.
        warmup: Ordinary calls with a structure before it is recorded.
    """

    def __init__(
        self, function: Function, recorder: Recorder, module: nn.Module, *, warmup: int = 3
    ) -> None:
        self._function = function
        self._recorder = recorder
        self._module = module
        self._recordings: Recordings[Function] = Recordings(
            warmup=warmup, before_drop=recorder.wait
        )

    @property
    def num_recordings(self) -> int:
        """Number of structures that are recorded."""
        return len(self._recordings)

    @torch.no_grad()
    def __call__(self, inputs: TensorDictBase, state: TensorDict) -> tuple[Tensor, TensorDict]:
        """Return the result of the function."""
        key = structure(inputs), structure(state)
        if not self._recordings.is_warm(key):
            self._recordings.count(key)
            return self._recorder.warm(lambda: self._function(inputs, state))
        recorded = self._recordings.get(key, record=lambda: self._record(inputs, state))
        return recorded(inputs, state)

    def _record(self, inputs: TensorDictBase, state: TensorDict) -> Function:
        # A graph repeats its kernels on the same memory: arguments are copied into these tensors.
        static_inputs = inputs.clone()
        static_state = state.clone()

        def call() -> dict[str, Tensor]:
            output, next_state = self._function(static_inputs, static_state)
            static_state.update_(next_state)
            return {"output": output}

        reads = tensors_of(self._module)
        reads.extend(static_inputs.values(True, True))
        reads.extend(static_state.values(True, True))
        with recording():
            run, results = self._recorder.record(call, reads=reads)

        def call_again(inputs: TensorDictBase, state: TensorDict) -> tuple[Tensor, TensorDict]:
            static_inputs.update_(inputs)
            # The state of the previous call is in place already, unless it was reset or loaded.
            if state is not static_state:
                static_state.update_(state)
            run()
            # The next run overwrites the output.
            return results["output"].clone(), static_state

        return call_again
