"""Plans of sweeps, and Hydra with a sweep's own configuration composed as that of its first job.

Hydra composes the configuration from which it takes sweeper and launcher with the default choice of
every swept group. It then refuses keys that only the swept choices have, as in ``-m
encoder=gru,lstm encoder.hidden_size=32``.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import (
    detect_calling_file_or_module_from_task_function,
    detect_task_name,
)
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from yamame.cli.command_line import CommandLine, jobs_of
from yamame.cli.slurm import request_gpus
from yamame.files.identity import key_of

SWEEP_VARIABLE = "YAMAME_SWEEP"
"""Environment variable with the folder of the jobs' files."""

_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def planned(line: CommandLine) -> CommandLine:
    """Return the command line of a sweep with what the configuration of the sweeper adds to it."""
    chosen = []
    for text in next(jobs_of(line)):
        key = key_of(text)
        # Other keys may be those of a group that the sweeper's parameters choose.
        if "." not in key or key.startswith("hydra."):
            chosen.append(text)
    with line.composing():
        sweeper = line.composed(chosen, whole=True).hydra.sweeper
    params: dict[str, Any] = dict(sweeper.get("params") or {})
    return replace(
        line,
        params=tuple(f"{key}={value}" for key, value in params.items()),
        is_search=sweeper.get("_target_") != _BASIC_SWEEPER,
    )


class _Sweep(Hydra):
    """Hydra that composes the configuration of a sweep as that of its first job.

    Attributes:
        first_job: Overrides of the first job.
        devices: Devices of all jobs.
    """

    first_job: list[str]
    devices: list[str]

    def compose_config(
        self, config_name: str | None, overrides: list[str], *arguments: Any, **options: Any
    ) -> DictConfig:
        # `Hydra.multirun` composes nothing else.
        first = [*self.first_job, f"hydra.mode={RunMode.MULTIRUN.name}"]
        cfg = super().compose_config(config_name, first, *arguments, **options)
        tasks = []
        for text in overrides:
            if key_of(text).partition(".")[0].partition("/")[0] != "hydra":
                tasks.append(text)
        with open_dict(cfg.hydra):
            # Sweepers read the values to try from here.
            cfg.hydra.overrides.task = tasks
            is_quiet = str(cfg.hydra.sweep.dir) == "."
            if is_quiet and SWEEP_VARIABLE in os.environ:
                # Hydra's sweeper writes multirun.yaml; recipes without runs leave no file behind.
                cfg.hydra.sweep.dir = os.environ[SWEEP_VARIABLE]
        # Jobs may differ in the device, as with hardware=cpu,gpu.
        request_gpus(cfg, self.devices)
        return cfg


def run_sweep(
    line: CommandLine,
    task: Callable[[DictConfig], Any],
    version_base: str,
    *,
    devices: Collection[str] = (),
) -> None:
    """Run the jobs of a sweep, as ``hydra.main`` does.

    Args:
        line: Command line, see `planned`.
        task: The recipe, of the configuration of a job.
        version_base: Hydra's version whose defaults apply.
        devices: Devices of all jobs.
    """
    version.setbase(version_base)
    name = detect_task_name(*detect_calling_file_or_module_from_task_function(task))
    with line.composing(name, _Sweep) as hydra:
        assert isinstance(hydra, _Sweep)
        hydra.first_job = next(jobs_of(line))
        hydra.devices = sorted(devices)
        hydra.multirun(line.config_name, task, list(line.overrides))
