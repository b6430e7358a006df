"""Jobs of a sweep under Slurm, which submitit submits: their GPUs, and how they are requeued."""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from omegaconf import DictConfig, OmegaConf, open_dict

from yamame.checks import UsageError, require_setting
from yamame.system.signals import Terminated

_EXECUTOR = "SUBMITIT_EXECUTOR"
"""Environment variable that submitit sets in its jobs."""
_PREEMPTION = "SUBMITIT_PREEMPT_SIGNAL"
"""Environment variable with submitit's name of the signal that Slurm sends before a job ends."""


def request_gpus(cfg: DictConfig, devices: Collection[str] = ()) -> None:
    """Let jobs of submitit ask for a GPU where one has ``device=cuda`` and no number is set.

    Args:
        cfg: Configuration of the sweep, with Hydra's own, which is changed.
        devices: Devices of all jobs; submitit makes the same request for each.

    Raises:
        UsageError: The device has an index, which no job can have.
    """
    launcher = cfg.hydra.launcher
    if "gpus_per_node" not in launcher or launcher.gpus_per_node is not None:
        return
    own = str(OmegaConf.select(cfg, "device", default="cpu"))
    for device in sorted({own, *devices}):
        if device.startswith("cuda:"):
            raise UsageError(f"device: must be cuda in jobs with one GPU each, got {device}")
    if "cuda" in {own, *devices}:
        with open_dict(launcher):
            launcher.gpus_per_node = 1


def check_requeued(cfg: DictConfig) -> None:
    """Check that a job of submitit continues its run when it is requeued.

    Args:
        cfg: Configuration of a job, with Hydra's own.

    Raises:
        SettingError: The job would begin anew, or would be ended as soon as it begins.
    """
    launcher = cfg.hydra.launcher
    if "signal_delay_s" not in launcher:
        return
    replaces = bool(OmegaConf.select(cfg, "run.overwrite", default=False))
    condition = "be false with launcher=slurm, whose jobs would start again when they are requeued"
    remedy = "delete the former runs, or set run.root"
    require_setting("run.overwrite", replaces, not replaces, condition, remedy=remedy)
    delay, minutes = launcher.signal_delay_s, launcher.timeout_min
    condition = f"be less than the time of a job, timeout_min={minutes} minutes"
    require_setting("hydra.launcher.signal_delay_s", delay, delay < 60 * minutes, condition)


@contextmanager
def requeued() -> Iterator[None]:
    """Requeue the present job if Slurm ends it within the block, by submitit's own hook.

    Slurm sends a signal of its own before it ends or preempts a job. Any other, such as the SIGTERM
    of ``scancel``, ends the job for good. Outside of jobs of submitit nothing is done.

    Raises:
        SystemExit: The job is requeued.
    """
    try:
        yield
    except Terminated as ended:
        name = f"SIG{os.environ.get(_PREEMPTION, 'USR2')}"
        if _EXECUTOR in os.environ and ended.signal is signal.Signals[name]:
            # A run has its own handlers, and has put submitit's back at its end.
            signal.raise_signal(ended.signal)
        raise
