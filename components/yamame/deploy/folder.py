"""Folder of an agent, to be stored and shared.

``model.safetensors`` holds the weights, ``config.json`` everything else with the checksums of the
weights and of itself, and ``README.md`` is the model card. A new folder appears as a whole or not
at all. In an existing folder files are replaced one by one, ``config.json`` last. If that is
interrupted, the checksum of the weights does not match and the folder does not load.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from yamame.checks import ArgumentError, UsageError, at_source
from yamame.deploy.card import model_card
from yamame.deploy.interface import Interface
from yamame.deploy.saved import SavedAgent
from yamame.files.atomic import (
    atomic_writer,
    flush_folder,
    json_safe,
    make_folder,
    read_json,
    write_json,
)
from yamame.files.identity import BOOKKEEPING
from yamame.files.paths import check_tree, new_folder, read_regular
from yamame.files.schema import SchemaError, check_form
from yamame.system.installed import version_of
from yamame.system.messages import format_value, one_line

FORMAT = 2
_WITHOUT_CHECKSUM = 1
"""An earlier format, whose configuration has no checksum."""
_CHECKSUM = "config_sha256"
_PACKAGE = Path(__file__).resolve().parents[1]
ZOOS = (_PACKAGE / "zoo", _PACKAGE.parents[1] / "zoo")
"""Folders of the agents that come with the package: in a wheel, and in a checkout."""
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"
_NUMBER = int | float | None
_FORM = {
    "config": {str: object},
    "about": {
        "step?": int | None,
        "results?": {str: object},
        "versions?": {str: object},
        "cpu_s?": _NUMBER,
        "evaluated_on?": str | None,
        "revision?": str | None,
        "origin?": str | None,
    },
}
"""Plain data of ``config.json``, see `yamame.files.schema`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write_folder(saved: SavedAgent, folder: Path) -> Path:
    """Write the folder of an agent.

    Raises:
        UsageError: The folder holds other files.
        OSError: A file could not be written.
    """
    if folder.exists() and not _is_ours(folder):
        raise UsageError(
            f"save_pretrained: {folder} must be new, empty, or written by save_pretrained; "
            "it holds other files"
        )
    if folder.is_dir() and any(folder.iterdir()):
        _write(saved, folder, folder)
        return folder

    # A new folder is written beside its place and renamed, so that it is never incomplete.
    parent = folder.absolute().parent
    make_folder(parent)
    with new_folder(folder) as scratch:
        _write(saved, scratch, folder)
    flush_folder(parent)
    return folder


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is empty or was written by `write_folder`."""
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        config = read_json(folder / CONFIG)
    except (OSError, UsageError):
        return False
    return isinstance(config.get("yamame_format"), int)


def _write(saved: SavedAgent, folder: Path, final: Path) -> None:
    """Write the files of an agent.

    Args:
        saved: The agent.
        folder: Folder of the files for now.
        final: Path of the folder in the end, which the model card names.
    """
    is_in_zoo = final.absolute().parent in ZOOS
    source = f"zoo:{final.name}" if is_in_zoo else final.name
    tensors = {}
    for name, value in saved.weights.items():
        tensors[name] = value.contiguous()  # safetensors accepts nothing else
    weights = save(tensors)
    settings = {}
    for name, value in saved.config.items():
        # Paths and names of the author's machine do not belong to the agent.
        if name not in BOOKKEEPING:
            settings[name] = value
    config = {
        "yamame_format": FORMAT,
        "yamame_version": version_of("yamame"),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        **saved.interface.encode(),
        "about": saved.about,
        "config": settings,
    }
    with atomic_writer(folder / WEIGHTS) as file:
        file.write(weights)
    with atomic_writer(folder / CARD) as file:
        file.write(model_card(saved, source).encode())
    # Last, because its checksum marks the folder as complete.
    write_json(folder / CONFIG, sealed(json_safe(config)))


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json`` with its checksum added or replaced."""
    rest = dict(data)
    rest.pop(_CHECKSUM, None)
    # A round trip makes the values those that a reader of the file gets. Sorted keys make the
    # checksum independent of order and spaces.
    rest = json.loads(json.dumps(rest))
    content = json.dumps(rest, sort_keys=True).encode()
    return {**rest, _CHECKSUM: hashlib.sha256(content).hexdigest()}


def read_folder(folder: Path) -> SavedAgent:
    """Read a folder that `write_folder` wrote.

    Raises:
        UsageError: A file is missing, damaged or of a later version.
    """
    path = folder / CONFIG
    check_tree(folder)
    data = read_json(path) if path.exists() else {}
    _check_config(folder, data)
    try:
        check_form(data, _FORM, path.name)
    except SchemaError as error:
        raise UsageError(f"load: {path} does not describe an agent: {one_line(error)}") from error
    config = data["config"]
    about = data["about"]
    weights = _read_weights(folder / WEIGHTS, data.get("weights_sha256"))
    with at_source(f"load: {path}"):
        interface = Interface.decode(data)
    return SavedAgent(str(folder), config, interface, weights, about)


def _check_config(folder: Path, data: dict[str, Any]) -> None:
    """Check the format and the checksum of a configuration."""
    version = data.get("yamame_format")
    # A flag equals the number 1, which is a format.
    if isinstance(version, bool) or version not in (_WITHOUT_CHECKSUM, FORMAT):
        found = f"yamame_format {format_value(version)}" if data else f"no {CONFIG}"
        raise UsageError(
            f"load: {folder} must be a folder of save_pretrained with yamame_format {FORMAT}, "
            f"it has {found}"
        )
    if version == FORMAT and data.get(_CHECKSUM) != sealed(data)[_CHECKSUM]:
        raise UsageError(
            f"load: {folder / CONFIG} does not match its checksum", remedy="write the folder again"
        )


def _read_weights(path: Path, checksum: Any) -> dict[str, Any]:
    """Read the weights, after comparing their checksum."""
    try:
        content = read_regular(path)
        if hashlib.sha256(content).hexdigest() != checksum:
            raise UsageError(
                f"load: {path} does not match its checksum in {CONFIG}",
                remedy="write the folder again",
            )
        weights: dict[str, Any] = load(content)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"load: {path} must hold weights, it cannot be read: {one_line(error)}"
        ) from error
    return weights


def zoo_folder(name: str) -> Path:
    """Return the folder of an agent in the zoo, see `ZOOS`.

    Raises:
        ArgumentError: No agent has this name.
    """
    folders = {}
    for zoo in ZOOS:
        for file in sorted(zoo.glob(f"*/{CONFIG}")):
            folders[file.parent.name] = file.parent
    # The pattern keeps names such as ".." from being looked up as paths.
    if not _NAME.fullmatch(name) or name not in folders:
        known = ", ".join(f"zoo:{each}" for each in folders)
        condition = f"be one of {known}" if known else "be a path, because the zoo is empty"
        raise ArgumentError("load", "source", f"zoo:{name}", condition)
    return folders[name]
