"""A run from its first to its last step, whatever is learned in between: the part of recipes that is always the same.

Evaluation on held-out tasks, checkpoints, artifacts, the report, and the order in which these happen however the run
ends. A recipe subclasses `TrainingRun` and says what a checkpoint holds and how the loop goes.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.agent import InContextPolicy
from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult, evaluate, film
from yamame.replay import Prefetcher
from yamame.runs.budget import Budget
from yamame.runs.build import build_env
from yamame.runs.checkpoint import Checkpointer
from yamame.runs.compare import flatten
from yamame.runs.costs import CostMeter
from yamame.runs.counters import Progress
from yamame.runs.directory import RunDirectory
from yamame.runs.figures import learning_curve, write_gif
from yamame.runs.guard import NonFiniteGuard
from yamame.runs.hydra import command, objective, plain
from yamame.runs.learner import Learner
from yamame.runs.progress import ProgressBar, print_table
from yamame.runs.seeding import GlobalRNGState
from yamame.runs.summary import Status, build_summary, run_status
from yamame.runs.tracking import Tracker


class TrainingRun(ABC):
    """Base of what recipes do with a claimed run directory.

    Args:
        cfg: The composed configuration; read are ``seed``, ``evaluation`` and ``checkpoint``.
        run: The run directory.
        policy: What is evaluated; it shares the parameters that are learned.
        held_out: Environment of the held-out tasks.
        budget: When the run ends.
        tracker: Where metrics go.

    Attributes:
        learner: What makes an update; a recipe sets it.
        progress: Counters, saved with every checkpoint.
        resumed: Whether the run goes on from a checkpoint (one stopped before its first begins again).
        axis: The counter of `progress` by which intervals, metrics and checkpoints go.
    """

    learner: Learner
    axis: ClassVar[Literal["env_steps", "updates"]] = "env_steps"

    def __init__(
        self,
        cfg: DictConfig,
        run: RunDirectory,
        *,
        policy: InContextPolicy,
        held_out: EnvBase,
        budget: Budget,
        tracker: Tracker,
    ) -> None:
        self.cfg, self.directory, self.config = cfg, run, plain(cfg)
        self.policy, self.held_out, self.budget, self.tracker = policy, held_out, budget, tracker
        self.progress = Progress()
        self.costs = CostMeter()
        self.guard = NonFiniteGuard(run.path)
        self.checkpoints = Checkpointer(
            run.path / "checkpoints", keep_last=cfg.checkpoint.keep, config=self.config
        )
        self.resumed = run.resumed and self.checkpoints.last is not None

    @abstractmethod
    def components(self) -> dict[str, Any]:
        """What a checkpoint holds beside `own_components`: everything that the next step depends on."""

    @abstractmethod
    def loop(self) -> None:
        """Learns until the budget ends, calling `evaluate_and_save` on the way."""

    @abstractmethod
    def close(self) -> None:
        """Ends the processes of environments, if there are any."""

    def saved(self) -> None:  # noqa: B027 (a recipe without files of its own has nothing to do)
        """Called when a checkpoint is on disk."""

    def extra(self) -> Mapping[str, Any]:
        """Further plain data for ``summary.json``."""
        return {}

    def own_components(self) -> dict[str, Any]:
        """What every checkpoint holds."""
        return {
            "progress": self.progress,
            "budget": self.budget,
            "costs": self.costs,
            "rng": GlobalRNGState(),
        }

    def run(self) -> float:
        """Restores or begins, learns until the budget ends, then evaluates, saves and reports; returns the score."""
        name = self.directory.path.name
        status: Status = "FAILED"
        try:
            self.begin()
            params = flatten(self.config)
            with self.tracker.start(self.directory.path, name=name, params=params, tags=self.tags()):
                self.loop()
                result = self.evaluate()
                self.save(score(result))
                self.artifacts()
            status = "FINISHED"
        except BaseException as error:
            status = run_status(error)
            raise
        finally:
            self.close()
            self.report(status)
        return objective(score(result))

    def tags(self) -> dict[str, str]:
        """What the tracker shall say of this run: how it was last started, with what budget, what its steps count."""
        budget = flatten({"budget": self.config["budget"]})
        return {"command": command(), "axis": self.axis, **{key: str(value) for key, value in budget.items()}}

    def begin(self) -> None:
        """Loads the last checkpoint, or writes the configuration of a new run."""
        if self.resumed:
            self.checkpoints.load({**self.components(), **self.own_components()})
        else:
            self.directory.write_text("config.yaml", OmegaConf.to_yaml(self.cfg, resolve=True))

    def ended(self, *, ahead: int = 0) -> bool:
        """Whether the budget is spent, or will be so many updates later."""
        updates = self.progress.updates + ahead
        return self.budget.ended(env_steps=self.progress.env_steps, updates=updates) is not None

    @property
    def step(self) -> int:
        """How far the run is, in the unit of `axis`."""
        return int(getattr(self.progress, self.axis))

    def count(self, episodes: Episodes) -> None:
        """Adds what was collected to the counters."""
        self.progress.env_steps += episodes.num_steps
        self.progress.aborted += episodes.num_aborted
        outcomes = episodes.returns if episodes.success is None else episodes.success.float()
        self.progress.add_outcomes(outcomes.tolist())

    def update(
        self, batch: TensorDictBase, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Tensor]:
        """Makes one update, and counts it; what it wrote."""
        metrics = self.learner.update(
            batch, self.guard, step=self.progress.updates, seed=self.cfg.seed, meanwhile=meanwhile
        )
        self.progress.updates += 1
        return metrics

    def learn_from(self, batches: Prefetcher, number: int) -> dict[str, float]:
        """Makes so many updates, or as many as the budget allows; the means of what they wrote."""
        made: list[dict[str, Tensor]] = []
        last = number == 0
        while not last:
            last = len(made) + 1 == number or self.ended(ahead=1)
            batch = batches.take()
            # What is sampled in advance is learned from before anything else happens.
            made.append(self.update(batch) if last else self.update(batch, batches.fetch))
        return self.metrics(made)

    def metrics(self, made: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """Means of what some updates wrote (those that were not made wrote nothing), and how episodes came out."""
        made = [metrics for metrics in made if metrics]
        means = {key: torch.stack([m[key].float() for m in made]).mean() for key in (made[0] if made else ())}
        metrics = {f"train/{key}": float(value) for key, value in means.items()}
        if self.progress.outcome is not None:
            metrics["train/outcome"] = self.progress.outcome
        if self.progress.aborted:
            metrics["train/aborted_episodes"] = float(self.progress.aborted)
        return metrics

    def show(self, bar: ProgressBar, metrics: Mapping[str, float]) -> None:
        """Logs metrics, and moves the bar."""
        self.tracker.log(metrics, step=self.step)
        bar.update(
            env_steps=self.progress.env_steps,
            updates=self.progress.updates,
            success=self.progress.outcome,
            loss=metrics.get("train/loss"),
        )

    def evaluate_and_save(self) -> None:
        """Evaluates and checkpoints when their intervals have passed."""
        progress, result = self.progress, None
        if self.step >= progress.evaluated_at + self.cfg.evaluation.interval:
            progress.evaluated_at = self.step
            result = self.evaluate()
        if result is not None or self.step >= progress.saved_at + self.cfg.checkpoint.interval:
            self.save(None if result is None else score(result))

    def play_held_out(self, *, memory_wiped: bool = False) -> EvaluationResult:
        """Plays one complete episode of every held-out task."""
        setting = self.cfg.evaluation
        return evaluate(
            self.policy,
            self.held_out,
            num_episodes=setting.num_episodes,
            greedy=setting.greedy,
            max_steps=setting.max_steps,
            memory_wiped=memory_wiped,
            seed=setting.seed,
        )

    def evaluate(self) -> EvaluationResult:
        """Plays the held-out tasks and keeps the summary as a point of the curve."""
        curve, step = self.progress.curve, self.step
        result = self.play_held_out()
        summary = result.summary()
        if not curve or curve[-1][self.axis] < step:
            curve.append({self.axis: step, **summary})
        spent = {"env_steps": float(self.progress.env_steps), "updates": float(self.progress.updates)}
        costs = {f"cost/{key}": value for key, value in (spent | self.costs.state_dict()).items()}
        self.tracker.log({f"eval/{key}": value for key, value in summary.items()} | costs, step=step)
        return result

    def save(self, best_by: float | None) -> None:
        """Checkpoints."""
        self.tracker.flush()
        self.progress.saved_at = self.step
        components = {**self.components(), **self.own_components()}
        self.checkpoints.save(components, step=self.step, metric=best_by)
        self.saved()

    def artifacts(self) -> None:
        """Hands the tracker what a person wants to look at."""
        path, curve = self.directory.path, self.progress.curve
        name = "success" if "success_mean" in curve[-1] else "return"
        columns = (self.axis, f"{name}_mean", f"{name}_low", f"{name}_high")
        line = [[point[column] for point in curve] for column in columns]
        label = {"env_steps": "environment steps"}.get(self.axis, self.axis)
        self.tracker.log_artifact(
            learning_curve(path / "curve.png", {path.name: line}, x_label=label, y_label=name)
        )
        self.film(path / "episodes.gif")
        # Episodes of one evaluation may have had fewer trials than those of another.
        table = {key: [point.get(key) for point in curve] for key in curve[-1]}
        self.tracker.log_table("evaluation.json", table)
        self.tracker.log_artifact(path / "config.yaml")
        for checkpoint in {self.checkpoints.last, self.checkpoints.best}:
            if checkpoint is not None:
                self.tracker.log_artifact(checkpoint, folder="checkpoints")

    def film(self, path: Path) -> None:
        """Films the agent on held-out tasks, where the environment has a picture."""
        setting = self.cfg.evaluation
        env = build_env(self.cfg, num_envs=1, seed=setting.seed, held_out=True)
        try:
            frames = film(
                self.policy,
                env,
                num_episodes=4,
                max_frames=setting.film_frames,
                greedy=setting.greedy,
                seed=setting.seed,
            )
            self.tracker.log_artifact(write_gif(path, frames))
        except NotImplementedError as error:
            print(f"no film: {error}", file=sys.stderr)
        finally:
            env.close()

    def report(self, status: Status) -> None:
        """Writes summary.json and shows it; the path is the last line."""
        last = self.progress.curve[-1] if self.progress.curve else {}
        summary = build_summary(
            success=last.get("success_mean"),
            return_mean=last.get("return_mean"),
            env_steps=self.progress.env_steps,
            updates=self.progress.updates,
            cpu_s=self.costs.cpu_s,
            wall_s=self.costs.wall_s,
            seed=self.cfg.seed,
            status=status,
            extra=self.extra(),
        )
        path = self.directory.write_summary(summary)
        shown = {key: value for key, value in summary.items() if key not in ("versions", *self.extra())}
        print_table(self.directory.path.name, shown)
        print(path)


def held_out_env(cfg: DictConfig) -> EnvBase:
    """The environment of the held-out tasks; where rows cost a lot, fewer of them play the tasks, in rounds."""
    rows = min(cfg.evaluation.num_envs or cfg.evaluation.num_episodes, cfg.evaluation.num_episodes)
    return build_env(cfg, num_envs=rows, seed=cfg.evaluation.seed, held_out=True)


def score(result: EvaluationResult) -> float:
    """What decides which checkpoint is the best, and what a sweep compares."""
    values = result.returns if result.success is None else result.success
    return float(values.double().mean())


class NoTargets:
    """Stands for a target updater where a loss has no target networks."""

    def step(self) -> None:
        """Moves nothing."""
