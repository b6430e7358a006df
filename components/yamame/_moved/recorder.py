"""Former name of `yamame.execution.recorder`."""

import warnings

from yamame.execution import recorder as _module

Recorder = _module.Recorder
CudaRecorder = _module.CudaRecorder
tensors_of = _module.tensors_of
cuda_recorder = _module.cuda_recorder
Compiled = _module.Compiled
missing_compiler = _module.missing_compiler
check_compiler = _module.check_compiler
structure = _module.structure

warnings.warn(
    "yamame.recorder is deprecated, import yamame.execution.recorder instead",
    DeprecationWarning,
    stacklevel=2,
)
