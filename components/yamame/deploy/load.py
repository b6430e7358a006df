"""`load`: from a path, a name or an id to an agent that acts, with the base dependencies and
nothing else.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from yamame.checks import UsageError, at_source
from yamame.deploy.agent import DeployedAgent
from yamame.deploy.folder import CONFIG, read_folder, zoo_folder
from yamame.deploy.interface import Interface
from yamame.deploy.saved import SavedAgent
from yamame.deploy.sources import Which, check_which, read_checkpoint
from yamame.files.atomic import json_safe, read_json
from yamame.files.checkpoint import LoadedCheckpoint
from yamame.system.installed import recipe_command
from yamame.system.messages import format_value

_ZOO = "zoo:"
_BESIDE = ("interface", "progress", "machine")


def load(
    source: str | Path,
    *,
    checkpoint: Which = "best",
    gamma: float | None = None,
    greedy: bool | None = None,
    seed: int = 0,
    context_length: int | None = None,
    max_sessions: int | None = None,
    device: str | torch.device = "cpu",
    tracking_uri: str | None = None,
    trust: Sequence[str] = (),
) -> DeployedAgent:
    """A trained agent, ready to act. Neither its environment nor Hydra nor MLflow is needed, but
    for MLflow's ids.

    Args:
        source: A run directory, a checkpoint file, a folder of `DeployedAgent.save_pretrained`,
            ``zoo:NAME``, or the id of an MLflow run.
        checkpoint: Of a run: ``best`` by its evaluations, or ``last``.
        tracking_uri: The MLflow store of an id; None for the one that is set.
        gamma, greedy, seed, context_length, max_sessions, device, trust: As for `DeployedAgent`.

    Raises:
        UsageError: One line that names what is missing, damaged, does not fit, or is named without
            trust. It is a ``ValueError``.
    """
    saved = read_saved(source, checkpoint=checkpoint, tracking_uri=tracking_uri)
    with at_source(f"load: {source}"):
        return DeployedAgent(
            saved,
            gamma=gamma,
            greedy=greedy,
            seed=seed,
            context_length=context_length,
            max_sessions=max_sessions,
            device=device,
            trust=trust,
        )


def read_saved(
    source: str | Path, *, checkpoint: Which = "best", tracking_uri: str | None = None
) -> SavedAgent:
    """What `load` reads, before anything is built of it."""
    check_which(checkpoint)
    name, folder = str(source), agent_folder(source)
    if folder is not None:
        return read_folder(folder)
    loaded = read_checkpoint(name, checkpoint, tracking_uri=tracking_uri, optional=_BESIDE)
    interface = loaded.values.get("interface")
    if interface is None:
        raise OldCheckpointError(
            f"load: {source} is of an earlier version and does not say what its agent observes; in a place where its "
            f"environment is installed write a folder with: {recipe_command('export')} run={source} path=<folder>"
        )
    return from_checkpoint(name, loaded, Interface.decode(interface))


def agent_folder(source: str | Path) -> Path | None:
    """The folder of `DeployedAgent.save_pretrained` that is meant; None if it is none.

    Raises:
        UsageError: There is no agent of this name in the zoo, or it is no name at all.
    """
    if not isinstance(source, str | Path):
        wanted = "a path, zoo:NAME or the id of an MLflow run"
        raise UsageError(f"load: source must be {wanted}, got {format_value(source)}")
    name = str(source)
    if name.startswith(_ZOO):
        return zoo_folder(name.removeprefix(_ZOO))
    return Path(source) if (Path(source) / CONFIG).is_file() else None


class OldCheckpointError(UsageError):
    """A checkpoint without an interface: its environment must be built to know it."""


def from_checkpoint(source: str, loaded: LoadedCheckpoint, interface: Interface) -> SavedAgent:
    """An agent of a checkpoint, with what the run knows of it."""
    about: dict[str, Any] = {"step": loaded.step, "results": {}}
    if "machine" in loaded.values:
        about["versions"] = loaded.values["machine"]["versions"]
    about |= _of_summary(Path(source) / "summary.json")
    progress = loaded.values.get("progress", {})
    for point in progress.get("curve", []):
        if point.get(progress["unit"]) == loaded.step:
            about["results"] = {
                name: value for name, value in json_safe(point).items() if value is not None
            }
    return SavedAgent(source, loaded.config, interface, loaded.values["agent"], about)


def _of_summary(path: Path) -> dict[str, Any]:
    """The revision of a run, its CPU-seconds, and what is new in its evaluations, where its summary
    has them.
    """
    try:
        summary = read_json(path) if path.is_file() else {}
    except UsageError:  # damaged; an agent acts without
        return {}
    known = {name: summary.get(name) for name in ("cpu_s", "evaluated_on")} | {
        "revision": summary.get("git_revision")
    }
    return {name: value for name, value in known.items() if value is not None}
