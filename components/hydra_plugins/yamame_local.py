"""Hydra's launcher ``local``, see `yamame.cli.local_jobs`.

Hydra takes launchers from modules below ``hydra_plugins`` alone, and imports all of them whenever
it starts.
"""

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LocalLauncher(Launcher):
    """Launcher that runs jobs side by side in processes of this machine.

    Args:
        n_jobs: Jobs at the same time; negative: counted from the number of cores, -1 for all.
        jobs_per_device: Jobs that share a GPU, of a sweep with ``device=cuda``.
        devices: Devices of the jobs, which Yamame adds; those that a search tries may be missing.
    """

    def __init__(
        self, n_jobs: int = -1, jobs_per_device: int = 1, devices: Sequence[str] = ()
    ) -> None:
        self.n_jobs = n_jobs
        self.jobs_per_device = jobs_per_device
        self.devices = devices

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Store what jobs need; see Hydra's ``Launcher``."""
        self.context = hydra_context
        self.task = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs and return their results, in order."""
        from yamame.cli.local_jobs import LocalSweep

        sweep = LocalSweep(self.context, self.task, self.config)
        return sweep.run(
            job_overrides,
            first=initial_job_idx,
            n_jobs=self.n_jobs,
            jobs_per_device=self.jobs_per_device,
            devices=self.devices,
        )
