"""Part ``fit``: train the published agent with the GPU preset for the remaining time."""

import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch
import yamame
from gpu.job import Job

# The shorter of the two published schedules: 8 million steps and 128 thousand updates. Its
# exploration ends and its learning rate is reached early, for the run is ended long before.
SCHEDULE = (
    "schedule.updates_per_step=0.016", "schedule.warmup_updates=2000", "optimizer.lr=0.0003",
    "exploration.anneal_steps=2000000", "evaluation.interval=400000", "evaluation.num_episodes=128",
    "checkpoint.interval=1000000000", "evaluation.video_frames=1",
)  # fmt: skip
TINY = (
    "env.time_limit=40", "schedule.learning_starts=256", "schedule.num_envs=8",
    "schedule.steps_per_iteration=256",
    "schedule.batch_size=4", "evaluation.interval=2000", "evaluation.num_episodes=4",
    "encoder.d_model=16",
    "encoder.num_heads=2", "encoder.num_layers=1", "budget.updates=40",
)  # fmt: skip
METRICS = ("loss", "grad_norm", "q_value", "td_error", "entropy", "refused_updates")


class Watch(yamame.Callback):
    """Callback that writes the progress of the run every few seconds, and ends it in time.

    Args:
        job: Job that writes the results.
        seconds: Time limit of the run, without its end.
    """

    def __init__(self, job: Job, seconds: float) -> None:
        self.job, self.begin, self.seconds = job, time.monotonic(), seconds
        self.written = float("-inf")

    def progress(self, run: Any, **more: Any) -> None:
        """Write a point of the curve."""
        progress = run.progress
        self.job.note(
            "progress",
            None,
            seconds=round(time.monotonic() - self.begin, 1),
            env_steps=progress.env_steps,
            updates=progress.updates,
            training_return=None if progress.outcome is None else round(progress.outcome, 3),
            **more,
        )

    def on_begin(self, run: Any) -> None:
        """Write the time until training begins."""
        self.progress(run)

    def on_log(self, run: Any, metrics: Mapping[str, float], step: int) -> None:
        """Write every five seconds; end the run when its time is over."""
        now = time.monotonic()
        if now - self.written >= (1 if self.job.tiny else 5):
            self.written = now
            self.progress(
                run,
                **{
                    key: round(metrics[f"train/{key}"], 5)
                    for key in METRICS
                    if f"train/{key}" in metrics
                },
            )
        if now - self.begin > self.seconds:
            run.stop("its time is over")

    def on_evaluate(self, run: Any, result: Any) -> None:
        """Write the return on held-out tasks."""
        self.progress(run, held_out_return=round(result.summary()["return_mean"], 3))


def settings(job: Job) -> list[str]:
    """Return the settings of the run: the agent of the paper, which the experiment names whole."""
    preset = "hardware=gpu" if job.cuda else "device=cpu"
    return ["experiment=dark_key_to_door", preset, *SCHEDULE]


def run(job: Job) -> None:
    """Train until the end of the part is near.

    The end of the run itself (an evaluation, pictures) gets up to half a minute.
    """
    left = job.left()
    watch = Watch(job, left - min(30.0, left / 2))
    with tempfile.TemporaryDirectory() as folder:
        place = ["logger=none", f"run.root={folder}", "run.name=fit"]
        job.note("settings", " ".join(settings(job)))
        with job.attempt("training"):
            more = TINY if job.tiny else ()
            done = yamame.train(*settings(job), *more, *place, callbacks=[watch])
            seconds = time.monotonic() - watch.begin
            job.note(
                "held-out return at the end",
                round(done.progress.curve[-1]["return_mean"], 3),
                env_steps=done.progress.env_steps,
                updates=done.progress.updates,
                steps_per_s=round(done.progress.env_steps / seconds),
                updates_per_s=round(done.progress.updates / seconds, 1),
                memory_mb=round(torch.cuda.max_memory_allocated() / 2**20) if job.cuda else None,
            )
