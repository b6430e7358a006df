"""Jobs of a sweep side by side, in processes of this machine, with a GPU each.

A process (worker) runs one job after the other. With ``device=cuda`` it sees one GPU, so that the
jobs of different workers use different GPUs, and a job needs no memory on the others.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from omegaconf import OmegaConf, open_dict

from yamame.cli.jobs import LostJobs
from yamame.cli.mps import sharing_gpus
from yamame.files.identity import key_of
from yamame.system.cores import usable_cores
from yamame.system.messages import print_stderr
from yamame.system.signals import SIGNALS, blocked

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class Placement:
    """Jobs that run at the same time, and their GPUs.

    Attributes:
        num_workers: Jobs at the same time.
        visible: ``CUDA_VISIBLE_DEVICES`` of each worker; None where it stays as it is.
        num_gpus: GPUs that the sweep uses.
        most_on_index: Largest number of jobs on a GPU that jobs name by its index; None if none do.
        places: Jobs that the GPUs can hold; 0 without a GPU.
    """

    num_workers: int
    visible: list[str | None]
    num_gpus: int
    most_on_index: int | None
    places: int

    @property
    def is_shared(self) -> bool:
        """Return whether several jobs share a GPU."""
        return 0 < self.num_gpus < self.num_workers


def place_jobs(
    devices: set[str], *, num_jobs: int, n_jobs: int, jobs_per_device: int, gpus: Sequence[str]
) -> Placement:
    """Return how many jobs run at the same time, and on which GPUs.

    Args:
        devices: Values of the setting ``device`` in the sweep. With ``cuda`` a worker gets the GPU
            of its number modulo the number of GPUs; indices as in ``cuda:1`` are left as they are.
        num_jobs: Jobs of the sweep.
        n_jobs: Largest number of jobs at the same time; negative: counted from the number of cores.
        jobs_per_device: Largest number of jobs on one GPU.
        gpus: Names of the GPUs that this process sees, as in ``CUDA_VISIBLE_DEVICES``.

    >>> place = place_jobs({"cuda"}, num_jobs=8, n_jobs=4, jobs_per_device=2, gpus=["4", "5"])
    >>> place.num_workers, place.visible
    (4, ['4', '5', '4', '5'])
    """
    num_workers = n_jobs if n_jobs > 0 else max(1, usable_cores() + 1 + n_jobs)
    num_workers = min(num_workers, num_jobs)
    has_index = any(device.startswith("cuda:") for device in devices)
    with_index = {_index_of(device) for device in devices} - {None} if has_index else set()
    is_placed = "cuda" in devices and not has_index and len(gpus) > 0
    num_gpus = len(gpus) if is_placed else len(with_index)
    places = num_gpus * jobs_per_device
    if num_gpus > 0:
        num_workers = min(num_workers, places)
    visible: list[str | None] = [None] * num_workers
    if is_placed:
        visible = [gpus[number % num_gpus] for number in range(num_workers)]
    most_on_index = jobs_per_device if has_index else None
    return Placement(num_workers, visible, min(num_gpus, num_workers), most_on_index, places)


def _index_of(device: str) -> str | None:
    """Return the index of a GPU, None for another device.

    >>> _index_of("cuda"), _index_of("cuda:1"), _index_of("cpu")
    ('0', '1', None)
    """
    kind, _, index = device.partition(":")
    return index or "0" if kind == "cuda" else None


def _number_of(noun: str, number: int) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as they are named in ``CUDA_VISIBLE_DEVICES``."""
    number = torch.cuda.device_count()
    outer = os.environ.get(_VISIBLE)
    if outer is None:
        return [str(index) for index in range(number)]
    if outer.strip().startswith("MIG-"):
        # A process sees the first of them alone.
        return [name.strip() for name in outer.split(",") if name.strip()]
    # Names after an invalid one are not counted.
    return [name.strip() for name in outer.split(",")][:number]


@dataclass
class _Job:
    """A job of a sweep.

    Attributes:
        number: Its number.
        overrides: Its overrides.
        device: Its device.
    """

    number: int
    overrides: Sequence[str]
    device: str


@dataclass
class _Worker:
    """A process that runs jobs.

    Attributes:
        connection: Sends overrides and receives results.
        visible: Its ``CUDA_VISIBLE_DEVICES``.
        job: The job that it runs; None if it runs none.
    """

    process: SpawnProcess
    connection: Connection
    visible: str | None
    job: _Job | None = None


@dataclass
class LocalSweep:
    """A sweep whose jobs run in processes of this machine.

    Args:
        context: Hydra's context.
        task: The recipe, of the configuration of a job.
        config: Configuration of the sweep, with Hydra's own.

    Attributes:
        num_workers: Jobs that run at the same time.
    """

    context: Any
    task: Any
    config: Any
    num_workers: int = 1

    def run(
        self,
        job_overrides: Sequence[Sequence[str]],
        *,
        first: int,
        n_jobs: int,
        jobs_per_device: int,
    ) -> list[JobReturn]:
        """Run jobs and return their results, in order.

        Args:
            job_overrides: Overrides of each job.
            first: Number of the first one.
            n_jobs, jobs_per_device: See `place_jobs`.

        Raises:
            LostJobs: Processes of jobs have died. All others have run.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        jobs = self._jobs(job_overrides, first)
        placement = place_jobs(
            {job.device for job in jobs},
            num_jobs=len(jobs),
            n_jobs=n_jobs,
            jobs_per_device=jobs_per_device,
            gpus=visible_gpus(),
        )
        if placement.num_workers < min(n_jobs, len(jobs)):
            number = _number_of("job", placement.num_workers)
            gpus = _number_of("GPU", placement.num_gpus)
            print_stderr(
                f"launcher: {number} at the same time, not {n_jobs}, on {gpus}; "
                "hydra.launcher.jobs_per_device lets jobs share a GPU"
            )
        wanted = min(placement.places, len(jobs))
        if n_jobs < 0 and placement.num_workers < wanted:
            print_stderr(
                f"launcher: {_number_of('job', placement.num_workers)} at the same time, by the "
                f"number of cores; hydra.launcher.n_jobs={wanted} uses all places on the GPUs"
            )
        self.num_workers = placement.num_workers
        with sharing_gpus(placement.is_shared):
            return self._run(jobs, placement)

    def _jobs(self, job_overrides: Sequence[Sequence[str]], first: int) -> list[_Job]:
        """Return the jobs, with the devices that their configurations choose."""
        device_of: dict[tuple[str, ...], str] = {}
        jobs = []
        for number, overrides in enumerate(job_overrides, first):
            choices = tuple(text for text in overrides if self._may_choose(key_of(text)))
            if choices not in device_of:
                config = self._config_of(overrides)
                device_of[choices] = str(OmegaConf.select(config, "device", default="cpu"))
            jobs.append(_Job(number, overrides, device_of[choices]))
        return jobs

    def _may_choose(self, key: str) -> bool:
        """Return whether an override of a key may change the device: that of a group, as well."""
        if key == "device":
            return True
        present = None if "." in key else OmegaConf.select(self.config, key)
        is_value = present is not None and not OmegaConf.is_config(present)
        return "." not in key and not is_value

    def _config_of(self, overrides: Sequence[str]) -> Any:
        return self.context.config_loader.load_sweep_config(self.config, list(overrides))

    def _run(self, jobs: Sequence[_Job], placement: Placement) -> list[JobReturn]:
        waiting = list(jobs)
        returned: dict[int, JobReturn] = {}
        lost: dict[int, int | None] = {}
        with self._workers(placement) as workers:
            while waiting or any(worker.job is not None for worker in workers):
                for index, worker in enumerate(workers):
                    running = [other.job for other in workers if other.job is not None]
                    job = _next_job(waiting, running, placement) if worker.job is None else None
                    if job is not None:
                        if worker.process.exitcode is not None:
                            workers[index] = worker = self._start(worker.visible)
                        waiting.remove(job)
                        _give(worker, job)
                busy = {worker.connection: worker for worker in workers if worker.job is not None}
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    assert worker.job is not None
                    number = worker.job.number
                    try:
                        returned[number] = cloudpickle.loads(worker.connection.recv_bytes())
                    except (EOFError, ConnectionError):
                        worker.process.join()
                        lost[number] = worker.process.exitcode
                    worker.job = None
        if lost:
            raise LostJobs(lost)
        return [returned[number] for number in sorted(returned)]

    @contextmanager
    def _workers(self, placement: Placement) -> Iterator[list[_Worker]]:
        """Start workers, and end them with the block."""
        workers: list[_Worker] = []
        try:
            for visible in placement.visible:
                workers.append(self._start(visible))
            yield workers
        except BaseException:
            for worker in workers:
                worker.process.terminate()  # a run saves its state at SIGTERM
            raise
        finally:
            for worker in workers:
                worker.connection.close()
            for worker in workers:
                worker.process.join()

    def _start(self, visible: str | None) -> _Worker:
        # The task is a function of the main module, which pickle cannot find.
        sweep = cloudpickle.dumps((self, Singleton.get_state()))
        context = get_context("spawn")
        connection, other = context.Pipe()
        process = context.Process(target=_work, args=(other, visible, sweep))
        with blocked():
            process.start()
        # Otherwise the end of the worker would not close the connection.
        other.close()
        return _Worker(process, connection, visible)

    def job(self, number: int, overrides: Sequence[str]) -> JobReturn:
        """Run a job in this process, as Hydra's own launcher does."""
        config = self._config_of(overrides)
        with open_dict(config):
            config.hydra.job.id = number
            config.hydra.job.num = number
            # The job takes its share of the cores by it.
            config.hydra.launcher.n_jobs = self.num_workers
        HydraConfig.instance().set_config(config)
        return run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def _next_job(
    waiting: Sequence[_Job], running: Sequence[_Job], placement: Placement
) -> _Job | None:
    """Return the first job that may begin; None if all of them wait for a GPU of theirs."""
    most = placement.most_on_index
    num_on = Counter(_index_of(job.device) for job in running)
    for job in waiting:
        index = _index_of(job.device)
        if most is None or index is None or num_on[index] < most:
            return job
    return None


def _give(worker: _Worker, job: _Job) -> None:
    """Let a worker begin a job."""
    worker.job = job
    try:
        worker.connection.send((job.number, list(job.overrides)))
    except ConnectionError:
        # Reading from the connection reports the death of the worker.
        return


def _work(connection: Connection, visible: str | None, sweep: bytes) -> None:
    """Run the jobs that are sent, in a worker, until the connection is closed."""
    # A Ctrl-C in the terminal reaches the sweep alone, which ends its workers itself: a second
    # signal would end a run at once.
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if visible is not None:
        os.environ[_VISIBLE] = visible  # before CUDA is initialized
    loaded, state = cloudpickle.loads(sweep)
    setup_globals()
    Singleton.set_state(state)
    while True:
        try:
            number, overrides = connection.recv()
        except EOFError:
            return
        connection.send_bytes(cloudpickle.dumps(loaded.job(number, overrides)))
