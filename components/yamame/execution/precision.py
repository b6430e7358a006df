"""Which precision a device computes fast in."""

from typing import Literal

import torch

from yamame.checks import require_choice
from yamame.distributed import is_rank0
from yamame.system.messages import print_stderr

Precision = Literal["bfloat16", "auto"] | None
"""Of matrix products: bfloat16; ``"auto"``, which is bfloat16 where `multiplies_bfloat16`; or that
of the weights.
"""


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for it; without, it imitates them, far slower than float32.

    >>> multiplies_bfloat16(torch.device("meta"))
    True
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    can = torch.cpu.get_capabilities()
    return any(
        can.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16")
    )  # the last is ARM's


def instructions() -> str:
    """What this processor computes with, as ``AVX2`` or ``AVX512 with bfloat16``."""
    lower = " with bfloat16" if multiplies_bfloat16(torch.device("cpu")) else ""
    return f"{torch.backends.cpu.get_cpu_capability()}{lower}"


def check_precision(owner: str, precision: Precision, device: torch.device | None = None) -> None:
    """Raises ValueError for what is none, and says where a device would imitate the one that is
    asked for.
    """
    require_choice(owner, "autocast", precision, (None, "bfloat16", "auto"))
    if precision != "bfloat16" or device is None or not is_rank0():
        return
    if not multiplies_bfloat16(device):
        print_stderr(
            f"{owner}: autocast=bfloat16 is slow on this {device.type}, which imitates it; set auto or null"
        )


def in_precision(
    device: torch.device, precision: Precision, *, cache: bool = True
) -> torch.autocast:
    """The context in which a device computes in a precision; ``cache`` keeps weights that were
    cast.
    """
    lower = precision == "bfloat16" or (precision == "auto" and multiplies_bfloat16(device))
    return torch.autocast(device.type, torch.bfloat16, enabled=lower, cache_enabled=cache)
