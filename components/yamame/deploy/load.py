"""Loading of trained agents, with only the base dependencies."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from yamame.checks import UsageError, at_source, require
from yamame.deploy.agent import DeployedAgent
from yamame.deploy.folder import CONFIG, read_folder, zoo_folder
from yamame.deploy.interface import Interface
from yamame.deploy.saved import SavedAgent
from yamame.deploy.sources import Which, check_which, read_checkpoint
from yamame.files.atomic import json_safe, read_json
from yamame.files.checkpoint import LoadedCheckpoint
from yamame.files.schema import SchemaError, check_form
from yamame.files.trusted import UntrustedError
from yamame.system.installed import recipe_command

_ZOO = "zoo:"
_OPTIONAL = ("interface", "progress", "machine")
"""Components of a checkpoint besides the agent; early versions did not save all of them."""
_SUMMARY = {
    "cpu_s?": int | float | None,
    "evaluated_on?": str | None,
    "git_revision?": str | None,
}
"""Facts of a run's summary."""


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
    """Load a trained agent, without its environment, Hydra or (except for MLflow ids) MLflow.

    Args:
        source: A run directory, a checkpoint file, a folder of `DeployedAgent.save_pretrained`,
            ``zoo:NAME``, or the id of an MLflow run.
        checkpoint: Checkpoint of a run: ``best`` by its evaluations, or ``last``.
        tracking_uri: MLflow store of an id; None for the default store.
        gamma, greedy, seed, context_length, max_sessions, device, trust: As for `DeployedAgent`.

    Raises:
        UsageError: The source is missing or damaged, names a class without trust, or an option does
            not fit the agent. It is a ``ValueError`` with a message of one line.
    """
    saved = read_saved(source, checkpoint=checkpoint, tracking_uri=tracking_uri)
    with at_source(f"load: {source}"):
        try:
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
        except UntrustedError as error:
            error.as_in_python()
            raise


def read_saved(
    source: str | Path, *, checkpoint: Which = "best", tracking_uri: str | None = None
) -> SavedAgent:
    """Read the content of an agent's file, without building the agent.

    Args:
        source: As for `load`.
        checkpoint: As for `load`.
        tracking_uri: As for `load`.

    Raises:
        OldCheckpointError: The checkpoint does not describe the observations of its agent.
        UsageError: The source is missing or damaged.
    """
    check_which(checkpoint)
    folder = agent_folder(source)
    if folder is not None:
        return read_folder(folder)
    name = str(source)
    loaded = read_checkpoint(name, checkpoint, tracking_uri=tracking_uri, optional=_OPTIONAL)
    interface = loaded.values.get("interface")
    if interface is None:
        command = f"{recipe_command('export')} run={source} path=<folder>"
        raise OldCheckpointError(
            f"load: {source} is of an early version and does not describe its observations",
            remedy=f"where its environment is installed, write a folder with: {command}",
        )
    return from_checkpoint(name, loaded, Interface.decode(interface))


def agent_folder(source: str | Path) -> Path | None:
    """Return the folder of `DeployedAgent.save_pretrained`; None for any other source.

    Raises:
        UsageError: The zoo has no such agent, or the source is neither a text nor a path.
    """
    condition = "be a path, zoo:NAME or the id of an MLflow run"
    require("load", "source", source, isinstance(source, str | Path), condition)
    name = str(source)
    if name.startswith(_ZOO):
        return zoo_folder(name.removeprefix(_ZOO))
    folder = Path(source)
    try:
        return folder if os.path.lexists(folder / CONFIG) else None
    except ValueError:
        return None  # a NUL in the name


class OldCheckpointError(UsageError):
    """A checkpoint without an interface, which only its environment can provide."""


def from_checkpoint(source: str, loaded: LoadedCheckpoint, interface: Interface) -> SavedAgent:
    """Return the agent of a checkpoint, with facts about its run."""
    about: dict[str, Any] = {"step": loaded.step, "results": {}}
    if "machine" in loaded.values:
        about["versions"] = loaded.values["machine"].get("versions", {})
    about.update(_facts_of_run(Path(source)))

    progress = loaded.values.get("progress", {})
    for point in progress.get("curve", []):
        if point.get(progress.get("unit")) == loaded.step:
            results = json_safe(point)
            # A mean that does not exist, such as one of no episodes, is NaN, and null in JSON.
            about["results"] = {name: value for name, value in results.items() if value is not None}
    return SavedAgent(source, loaded.config, interface, loaded.values["agent"], about)


def _facts_of_run(path: Path) -> dict[str, Any]:
    """Return revision, CPU-seconds and evaluated tasks from the summary of a run, if present."""
    try:
        summary = read_json(path / "summary.json")
        check_form(summary, _SUMMARY, "summary")
    except (OSError, UsageError, SchemaError):
        # The agent acts without these facts, so a damaged summary is no reason to fail.
        return {}
    facts = {
        "cpu_s": summary.get("cpu_s"),
        "evaluated_on": summary.get("evaluated_on"),
        "revision": summary.get("git_revision"),
    }
    return {name: value for name, value in facts.items() if value is not None}
