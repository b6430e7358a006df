"""JAX as this package uses it: settings before its first import, devices, and tensors.

Settings of the user, in the environment or in ``jax.config``, take precedence.
"""

import hashlib
import os
import platform
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from yamame_envs.adapters.extras import import_extra

KEY_TYPE = "threefry2x32"
"""Generator of all keys: its numbers are the same on every device and in a batch of any size."""


@cache
def load_jax(extra: str = "jax") -> Any:
    """Import JAX and return it.

    Args:
        extra: Extra to install where it is missing.

    Memory of a GPU is not reserved in advance, since torch needs it, too. Kernels use one thread
    and compiled programs are stored in the cache of the user, unless the user has set otherwise.

    Raises:
        MissingExtra: JAX is not installed.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        # The compiler reports every operation that it takes seconds for, in many lines.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if not {"NPROC", "PJRT_NPROC", "XLA_FLAGS"} & os.environ.keys():
            # Kernels of small games lose more by threads than they gain.
            os.environ["PJRT_NPROC"] = "1"
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    jax = import_extra("jax", extra=extra, owner="JaxEnv")
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(_cache_dir()))
    return jax


def _cache_dir() -> Path:
    """Return the folder of compiled programs, one for each kind of processor.

    Homes are shared by machines, and a program of one may end the process on another.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    features = platform.processor() + platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith(("flags", "Features", "model name")):
            features += line
        elif not line:
            break  # the other processors are alike
    name = hashlib.sha256(features.encode()).hexdigest()[:16]
    return Path(home) / "yamame" / "jax" / name


def jaxpr_as_function(program: Any) -> Any:
    """Return the function of arrays that computes a traced program."""
    load_jax()
    return import_module("jax.extend.core").jaxpr_as_fun(program)


def load_numpy() -> Any:
    """Return ``jax.numpy``."""
    return load_jax().numpy


def jax_device(device: torch.device) -> Any:
    """Return the device on which games run for tensors on a device.

    It is the same GPU, if JAX has it, or else the CPU; tensors are then copied.
    """
    jax = load_jax()
    if device.type == "cuda":
        try:
            return jax.devices("gpu")[device.index or 0]
        except (RuntimeError, IndexError):
            pass
    return jax.devices("cpu")[0]


def to_jax(tensor: Tensor, device: Any) -> Any:
    """Return an array on a device of JAX that shares no memory with a tensor.

    Whole numbers of 64 bits become such of 32, those that JAX computes with.
    """
    jax = load_jax()
    if tensor.dtype == torch.int64:
        tensor = tensor.to(torch.int32)
    else:
        # A later step of the policy may write into its tensor while the game still reads it.
        tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if device.platform == "cpu":
        tensor = tensor.cpu()
    return jax.dlpack.from_dlpack(tensor)


def to_torch(array: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on a device that shares no memory with an array.

    Args:
        array: Array, which the caller has waited for.
        device: Device of the tensor.
        dtype: Dtype of the tensor; None for that of the array.
    """
    shared = from_dlpack(array)
    # The array may be part of the state of the game as well, and tensors may be changed in place.
    return shared.to(device, dtype or shared.dtype, copy=True)


def is_plain(dtype: Any) -> bool:
    """Return whether NumPy and torch have a dtype of real numbers or flags, unlike bfloat16."""
    numpy_dtype = np.dtype(dtype)
    return numpy_dtype.kind in "biuf" and numpy_dtype.isbuiltin == 1


def is_key(value: Any) -> bool:
    """Return whether an array holds typed keys of ``jax.random``."""
    jax = load_jax()
    return bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))
