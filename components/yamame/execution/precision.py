"""Precision of matrix products, and devices that compute fast in bfloat16."""

from typing import Literal

import torch

from yamame.checks import require_choice
from yamame.distributed import is_rank0
from yamame.system.messages import print_stderr

Precision = Literal["bfloat16", "auto"] | None
"""Precision of matrix products: bfloat16, ``"auto"`` or None for that of the weights.

``"auto"`` is bfloat16 on devices with `multiplies_bfloat16`.
"""


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for products in bfloat16.

    A device without them emulates such products, far slower than products in float32.

    >>> multiplies_bfloat16(torch.device("meta"))
    True
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities()
    # "bf16" is the name on ARM.
    names = ("amx_bf16", "avx512_bf16", "bf16")
    return any(capabilities.get(name, False) for name in names)


def instructions() -> str:
    """Return the instruction set of this processor, such as ``AVX512 with bfloat16``."""
    name = torch.backends.cpu.get_cpu_capability()
    if multiplies_bfloat16(torch.device("cpu")):
        return f"{name} with bfloat16"
    return name


def check_precision(owner: str, precision: Precision, device: torch.device | None = None) -> None:
    """Check a precision, and warn on rank 0 if the device would emulate it.

    Args:
        owner: Class that is configured, for messages.
        precision: Precision of matrix products.
        device: Device of the weights; None if it is not known yet.

    Raises:
        ValueError: The precision does not exist.
    """
    require_choice(owner, "autocast", precision, (None, "bfloat16", "auto"))
    if precision != "bfloat16" or device is None or not is_rank0():
        return
    if not multiplies_bfloat16(device):
        print_stderr(
            f"{owner}: autocast=bfloat16 is slow on this {device.type}, which emulates it; "
            "set auto or null"
        )


def in_precision(
    device: torch.device, precision: Precision, *, cache: bool = True
) -> torch.autocast:
    """Return the context in which a device computes in a precision.

    Args:
        device: Device of the weights.
        precision: Precision of matrix products.
        cache: Keep weights that were cast until the context ends.
    """
    enabled = is_lower(device, precision)
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=cache)


def is_lower(device: torch.device, precision: Precision) -> bool:
    """Return whether a device computes in bfloat16 in a precision."""
    if precision == "auto":
        return multiplies_bfloat16(device)
    return precision == "bfloat16"
