"""The folder of an agent, to be sent and kept: weights, what builds it, and a page that says what
it is.

``model.safetensors`` has the weights, ``config.json`` everything else and the checksums of the
weights and of itself, ``README.md`` is the model card. A new folder is there wholly or not at all.
In one that was written before, files are replaced one by one, ``config.json`` last: cut off between
two of them, it is refused by its checksum.
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from yamame.checks import UsageError, at_source
from yamame.deploy.card import model_card
from yamame.deploy.interface import Interface
from yamame.deploy.saved import SavedAgent
from yamame.files.atomic import (
    TEMPORARY_SUFFIX,
    atomic_writer,
    flush_folder,
    json_safe,
    make_folder,
    read_json,
    write_json,
)
from yamame.files.identity import BOOKKEEPING
from yamame.system.installed import version_of
from yamame.system.messages import format_value, one_line

FORMAT = 2
_WITHOUT_CHECKSUM = 1
"""An earlier format, whose configuration has no checksum."""
_CHECKSUM = "config_sha256"
_PACKAGE = Path(__file__).resolve().parents[1]
ZOOS = (_PACKAGE / "zoo", _PACKAGE.parents[1] / "zoo")
"""Where agents lie that come with the package: in a wheel, in a checkout."""
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def write_folder(saved: SavedAgent, folder: Path) -> Path:
    """Writes the folder of an agent.

    Raises:
        UsageError: There is something else at this place.
        OSError: It could not be written.
    """
    if folder.exists() and not _is_ours(folder):
        raise UsageError(
            f"save_pretrained: {folder} must be new, empty, or written by save_pretrained; it holds other files"
        )
    if folder.is_dir() and any(folder.iterdir()):
        _write(saved, folder, folder)
        return folder
    make_folder(folder.absolute().parent)
    beside = folder.absolute().with_name(f".{folder.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        beside.mkdir()
        _write(saved, beside, folder)
        beside.rename(folder)  # also onto an empty one
        flush_folder(folder.absolute().parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _is_ours(folder: Path) -> bool:
    """Whether a folder is empty or one that `write_folder` has written."""
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        return isinstance(read_json(folder / CONFIG).get("yamame_format"), int)
    except (OSError, UsageError):
        return False


def _write(saved: SavedAgent, folder: Path, final: Path) -> None:
    """Writes the files into a folder, which will have the place ``final``."""
    source = f"zoo:{final.name}" if final.absolute().parent in ZOOS else final.name
    weights = save({name: value.contiguous() for name, value in saved.weights.items()})
    config = {
        "yamame_format": FORMAT,
        "yamame_version": version_of("yamame"),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        **saved.interface.encode(),
        "about": saved.about,
        "config": {name: value for name, value in saved.config.items() if name not in BOOKKEEPING},
    }
    with atomic_writer(folder / WEIGHTS) as file:
        file.write(weights)
    with atomic_writer(folder / CARD) as file:
        file.write(model_card(saved, source).encode())
    write_json(folder / CONFIG, sealed(json_safe(config)))


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """The content of ``config.json`` with the checksum of all the rest of it, whatever the order
    and the spaces.
    """
    rest = json.loads(
        json.dumps({name: value for name, value in data.items() if name != _CHECKSUM})
    )
    return {
        **rest,
        _CHECKSUM: hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest(),
    }


def read_folder(folder: Path) -> SavedAgent:
    """What `write_folder` wrote.

    Raises:
        UsageError: A file is missing, damaged or of a later version.
    """
    data = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    given = data.get("yamame_format")
    if given not in (_WITHOUT_CHECKSUM, FORMAT) or isinstance(given, bool):
        what = f"yamame_format {format_value(given)}" if data else f"no {CONFIG}"
        raise UsageError(
            f"load: {folder} must be a folder of save_pretrained with yamame_format {FORMAT}, it has {what}"
        )
    if given == FORMAT and data.get(_CHECKSUM) != sealed(data)[_CHECKSUM]:
        raise UsageError(
            f"load: {folder / CONFIG} must be as it was written, its checksum is another; write the folder again"
        )
    config, about = data.get("config"), data.get("about")
    if not isinstance(config, dict) or not isinstance(about, dict):
        raise UsageError(f"load: {folder / CONFIG} must hold config and about, it does not")
    if (folder / WEIGHTS).exists() and not (
        folder / WEIGHTS
    ).is_file():  # a pipe would be waited for
        raise UsageError(f"load: {folder / WEIGHTS} must hold weights, it is no file")
    try:
        content = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(content).hexdigest() != data.get("weights_sha256"):
            raise UsageError(
                f"load: {folder / WEIGHTS} must be the weights that {CONFIG} speaks of, its checksum is another; "
                "write the folder again"
            )
        weights = load(content)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"load: {folder / WEIGHTS} must hold weights, it cannot be read: {one_line(error)}"
        ) from error
    with at_source(f"load: {folder / CONFIG}"):
        interface = Interface.decode(data)
    return SavedAgent(str(folder), config, interface, weights, about)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def zoo_folder(name: str) -> Path:
    """The folder of an agent that comes with the package, see `ZOOS`.

    Raises:
        UsageError: There is none of this name.
    """
    folders = {
        path.parent.name: path.parent
        for place in ZOOS
        for path in sorted(place.glob(f"*/{CONFIG}"))
    }
    if not _NAME.fullmatch(name) or name not in folders:
        raise UsageError(
            f"load: zoo: must be followed by one of {', '.join(folders) or 'no name yet'}, got {format_value(name)}"
        )
    return folders[name]
