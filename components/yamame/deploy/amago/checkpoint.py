"""Weights that AMAGO has saved: a file of a policy, or the folder of a state of accelerate.

Only files of weights are opened. The other files of a state (optimizer, random numbers) are pickles
that no agent needs.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from yamame.checks import UsageError
from yamame.files.paths import inside, open_regular, read_regular, typed_file
from yamame.files.schema import check_archive, check_content
from yamame.system.messages import format_value, one_line, printable

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of the weights in the folder of a state, first those that are looked for first."""
_WRAPPED = "module."
"""Prefix of all names in states that several processes have written."""
_CONFIG = "config.txt"


def read_weights(source: Path) -> dict[str, Tensor]:
    """Read the weights of a policy, as float32 on the CPU.

    Args:
        source: ``policy_epoch_*.pt``, ``policy.pt``, ``model.safetensors``, or the folder of a
            state.

    Raises:
        UsageError: There is no such file, it is damaged, or it holds anything but named tensors of
            finite numbers.
    """
    file = _weights_of(source)
    try:
        tensors = _read(file)
    except (UsageError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{source}: must be an existing file or folder") from error
    except UnpicklingError as error:  # its message is a page
        raise UsageError(
            f"{file}: must hold tensors alone, it is damaged or holds objects of Python, which "
            "could run code and are not read",
            remedy="save the state_dict of the policy by torch.save",
        ) from error
    except Exception as error:  # damaged files make zipfile, torch and safetensors raise anything
        raise UsageError(
            f"{file}: must hold the weights of an agent, it cannot be read: {one_line(error)}"
        ) from error

    weights = {}
    for name, value in tensors.items():
        is_named = isinstance(name, str) and isinstance(value, Tensor)
        if not is_named or not value.is_floating_point():
            shown = format_value(name)
            raise UsageError(
                f"{file}: must hold tensors of real numbers by name, {shown} is no such tensor"
            )
        value = value.detach().to(torch.float32)
        if not bool(value.isfinite().all()):
            raise UsageError(f"{file}: {printable(name)} must be finite, it has NaN or Inf")
        own_name = name.removeprefix(_WRAPPED)
        if own_name in weights:
            raise UsageError(f"{file}: must hold {printable(own_name)} once, it does twice")
        weights[own_name] = value
    return weights


def _weights_of(source: Path) -> Path:
    """Return the file of weights that a path names."""
    if not source.is_dir():
        return typed_file(source)
    for name in WEIGHTS:
        if os.path.lexists(source / name):
            return inside(source, name)
    raise UsageError(
        f"{source}: must be a file of weights or the folder of a state, it has no {WEIGHTS[0]}",
        remedy="AMAGO writes policy_weights/policy_epoch_*.pt and training_states/*_epoch_*",
    )


def _read(file: Path) -> Mapping[Any, Any]:
    if file.suffix == ".safetensors":
        loaded: dict[str, Tensor] = load(read_regular(file))
        return loaded
    with open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        check_archive(opened)
        opened.seek(0)
        content = torch.load(opened, map_location="cpu", weights_only=True)
    check_content(content, size)
    if not isinstance(content, Mapping):
        raise ValueError(f"it holds {type(content).__name__}")
    return content


def find_config(source: Path) -> Path | None:
    """Return AMAGO's ``config.txt`` of a checkpoint; None if there is none.

    It lies in the folder ``ckpts`` of the run, one or two levels above the weights.

    Args:
        source: As for `read_weights`.
    """
    place = source.absolute()
    if not place.is_dir():
        place = place.parent
    for folder in (place, *list(place.parents)[:2]):
        if os.path.lexists(folder / _CONFIG):
            return folder / _CONFIG
    return None
