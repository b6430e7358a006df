"""Trains one in-context agent on one environment: collects, learns, evaluates, logs, checkpoints, resumes.

    python recipes/train.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/train.py encoder=gru env=mazerunner run.name=mine
    python recipes/train.py encoder=gru env=mazerunner run.name=mine resume=true
    python recipes/train.py -m encoder=gru,transformer seed=0,1

The run lives in <run.root>/<run.name>: checkpoints, replay, config.yaml, summary.json. Its metrics are in MLflow.
Collecting and learning alternate: after every `schedule.steps_per_iteration` environment steps the learner makes as
many updates as `schedule.updates_per_step` allows. All state between two updates is in the checkpoint, so that on a
CPU a killed and resumed run ends with the same parameters, bit for bit, as one that was never stopped (with
`collector=sync`; `collector=async` acts beside the learner and never plays the same run twice).
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torchrl.envs import Compose
from yamame import runs
from yamame.evaluation import EvaluationResult, evaluate, film
from yamame.runs.build import build_agent, build_collector, build_env, build_learner
from yamame.runs.hydra import instantiate, main, objective, plain, run_name
from yamame.runs.summary import Status


def train(cfg: DictConfig) -> float:
    """The recipe: success on held-out tasks, or the mean return where an environment knows no success."""
    runs.keep_freed_memory()
    try:
        runs.seed_everything(cfg.seed)
        parts = Parts(cfg)
    except ValueError as error:
        raise runs.UsageError(str(error)) from error
    directory = Path(cfg.run.root) / (cfg.run.name or run_name("env", "encoder", seed=cfg.seed))
    if cfg.resume and (saved := runs.Checkpointer(directory / "checkpoints")).last:
        runs.compare_config(saved.read_config(), parts.config)
    with runs.RunDirectory.open(
        cfg.run.root, directory.name, resume=cfg.resume, overwrite=cfg.run.overwrite
    ) as run:
        return Training(cfg, parts, run).run()


class Parts:
    """Everything that can be built, and refused, before anything is written."""

    def __init__(self, cfg: DictConfig) -> None:
        self.config = plain(cfg)
        self.budget = runs.Budget(**self.config["budget"])
        self.env = build_env(cfg, num_envs=cfg.schedule.num_envs, seed=cfg.seed)
        self.has_goals = {"goal", "achieved", "achieved_mask"} <= set(self.env.observation_spec.keys())
        if cfg.relabel.strategy != "none" and not self.has_goals:
            name = type(self.env).__name__
            raise runs.UsageError(
                f"relabel.strategy={cfg.relabel.strategy}: {name} has no goals to relabel; set relabel=none"
            )
        # Where rows cost a lot, fewer of them play the held-out tasks, in rounds.
        rows = min(cfg.evaluation.num_envs or cfg.evaluation.num_episodes, cfg.evaluation.num_episodes)
        self.held_out = build_env(cfg, num_envs=rows, seed=cfg.evaluation.seed, held_out=True)
        self.agent = build_agent(cfg, self.env)
        self.learner = build_learner(cfg, self.agent)
        self.exploration = instantiate(cfg.exploration, action_space=self.agent.action_space)
        # Relabelling sees whole trajectories; windows are cut, and rows filled up, afterwards.
        nodes = [cfg.relabel if self.has_goals else None, cfg.window, cfg.packing]
        self.transform = Compose(*(instantiate(node) for node in nodes if node is not None))
        self.tracker: runs.Tracker = instantiate(cfg.logger)


class Training:
    """A run from its first to its last step."""

    def __init__(self, cfg: DictConfig, parts: Parts, run: runs.RunDirectory) -> None:
        self.cfg, self.parts, self.directory = cfg, parts, run
        self.budget, self.tracker, self.learner = parts.budget, parts.tracker, parts.learner
        self.progress = runs.Progress()
        self.costs = runs.CostMeter()
        self.guard = runs.NonFiniteGuard(run.path)
        self.checkpoints = runs.Checkpointer(
            run.path / "checkpoints", keep_last=cfg.checkpoint.keep, config=parts.config
        )
        self.policy = parts.agent.policy()
        resumed = run.resumed and self.checkpoints.last is not None
        if not resumed:  # a run that was stopped before its first checkpoint begins again
            shutil.rmtree(run.path / "replay", ignore_errors=True)
        self.replay = instantiate(
            cfg.replay,
            path=run.path / "replay",
            batch_size=cfg.schedule.batch_size,
            transform=parts.transform,
            owner=run.path.name,
            resume=resumed,
        )
        self.collector = build_collector(
            cfg, env=parts.env, policy=self.policy, replay=self.replay, exploration=parts.exploration
        )
        if resumed:
            self.checkpoints.load(self.components())
        else:
            run.write_text("config.yaml", OmegaConf.to_yaml(cfg, resolve=True))

    def components(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "agent": self.parts.agent,
            **self.learner.components(),
            "collector": self.collector,
            "replay": self.replay,
            "progress": self.progress,
            "budget": self.budget,
            "costs": self.costs,
            "rng": runs.GlobalRNGState(),
        }

    def run(self) -> float:
        """Trains until the budget ends, then evaluates, saves and reports."""
        name, status = self.directory.path.name, "FAILED"
        params = runs.flatten(self.parts.config)
        try:
            with self.tracker.start(self.directory.path, name=name, params=params):
                self.loop()
                result = self.evaluate()
                self.save(score(result))
                self.artifacts()
            status = "FINISHED"
        except BaseException as error:
            status = runs.run_status(error)
            raise
        finally:
            self.close()
            self.report(status)
        return objective(score(result))

    def close(self) -> None:
        """Ends the processes of environments, if there are any."""
        self.collector.shutdown()
        for env in (self.parts.env, self.parts.held_out):
            if not env.is_closed:
                env.close()

    def loop(self) -> None:
        """Alternates collecting and learning."""
        progress = self.progress
        with runs.ProgressBar(self.budget) as bar:
            while not self.ended():
                if not self.updates_due():
                    self.collect(self.cfg.schedule.steps_per_iteration)
                metrics = self.learn()
                self.tracker.log(metrics, step=progress.env_steps)
                bar.update(
                    env_steps=progress.env_steps,
                    updates=progress.updates,
                    success=progress.outcome,
                    loss=metrics.get("train/loss"),
                )
                self.evaluate_and_save()

    def ended(self) -> bool:
        """Whether the budget is spent."""
        return self.budget.ended(env_steps=self.progress.env_steps, updates=self.progress.updates) is not None

    def updates_due(self) -> int:
        """Updates that the steps collected so far allow and that were not made yet."""
        if len(self.replay) == 0:
            return 0
        beyond = self.progress.env_steps - self.cfg.schedule.learning_starts
        return max(0, int(beyond * self.cfg.schedule.updates_per_step) - self.progress.updates)

    def collect(self, num_steps: int) -> None:
        """Acts, and keeps how the episodes that ended came out."""
        if self.replay.needs_protect(self.collector.max_appended(num_steps)):
            self.save(None)
            if self.replay.needs_protect(self.collector.max_appended(num_steps)):
                size = f"{self.cfg.replay.capacity} with slack {self.cfg.replay.slack}"
                raise runs.UsageError(
                    f"replay.capacity: too small for one iteration, got {size}; raise either"
                )
        episodes = self.collector.collect(num_steps)
        self.progress.env_steps += episodes.num_steps
        self.progress.aborted += episodes.num_aborted
        outcomes = episodes.returns if episodes.success is None else episodes.success.float()
        self.progress.add_outcomes(outcomes.tolist())

    def learn(self) -> dict[str, float]:
        """Makes the updates that are due; returns the means of their metrics."""
        made = []
        for _ in range(self.updates_due()):
            batch = self.replay.sample().to(self.cfg.device)
            step = self.progress.updates
            made.append(self.learner.update(batch, self.guard, step=step, seed=self.cfg.seed))
            self.progress.updates += 1
            if self.ended():
                break
        self.collector.update_policy_weights_(TensorDict.from_module(self.policy).data)
        made = [metrics for metrics in made if metrics]
        means = {key: torch.stack([m[key].float() for m in made]).mean() for key in (made[0] if made else ())}
        metrics = {f"train/{key}": float(value) for key, value in means.items()}
        if self.progress.outcome is not None:
            metrics["train/outcome"] = self.progress.outcome
        if self.progress.aborted:
            metrics["train/aborted_episodes"] = float(self.progress.aborted)
        return metrics

    def evaluate_and_save(self) -> None:
        """Evaluates and checkpoints when their intervals have passed."""
        progress, result = self.progress, None
        if progress.env_steps >= progress.evaluated_at + self.cfg.evaluation.interval:
            progress.evaluated_at = progress.env_steps
            result = self.evaluate()
        if result is not None or progress.env_steps >= progress.saved_at + self.cfg.checkpoint.interval:
            self.save(None if result is None else score(result))

    def evaluate(self) -> EvaluationResult:
        """Plays one complete episode of every held-out task."""
        setting, curve, step = self.cfg.evaluation, self.progress.curve, self.progress.env_steps
        result = evaluate(
            self.policy,
            self.parts.held_out,
            num_episodes=setting.num_episodes,
            greedy=setting.greedy,
            max_steps=setting.max_steps,
            seed=setting.seed,
        )
        summary = result.summary()
        if not curve or curve[-1]["env_steps"] < step:
            curve.append({"env_steps": step, **summary})
        costs = {f"cost/{key}": value for key, value in self.costs.state_dict().items()}
        self.tracker.log({f"eval/{key}": value for key, value in summary.items()} | costs, step=step)
        return result

    def save(self, best_by: float | None) -> None:
        """Checkpoints; from then on replay may overwrite what only older checkpoints need."""
        self.tracker.flush()
        self.progress.saved_at = self.progress.env_steps
        self.checkpoints.save(self.components(), step=self.progress.env_steps, metric=best_by)
        self.replay.protect()

    def artifacts(self) -> None:
        """Hands the tracker what a person wants to look at."""
        path, curve = self.directory.path, self.progress.curve
        name = "success" if "success_mean" in curve[-1] else "return"
        columns = ("env_steps", f"{name}_mean", f"{name}_low", f"{name}_high")
        line = [[point[column] for point in curve] for column in columns]
        self.tracker.log_artifact(runs.learning_curve(path / "curve.png", {path.name: line}, y_label=name))
        self.film(path / "episodes.gif")
        self.tracker.log_table("evaluation.json", {key: [point[key] for point in curve] for key in curve[-1]})
        self.tracker.log_artifact(path / "config.yaml")
        for checkpoint in {self.checkpoints.last, self.checkpoints.best} - {None}:
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
            self.tracker.log_artifact(runs.write_gif(path, frames))
        except NotImplementedError as error:
            print(f"no film: {error}", file=sys.stderr)
        finally:
            env.close()

    def report(self, status: Status) -> None:
        """Writes summary.json and shows it; the path is the last line."""
        last = self.progress.curve[-1] if self.progress.curve else {}
        summary = runs.build_summary(
            success=last.get("success_mean"),
            return_mean=last.get("return_mean"),
            env_steps=self.progress.env_steps,
            updates=self.progress.updates,
            cpu_s=self.costs.cpu_s,
            wall_s=self.costs.wall_s,
            seed=self.cfg.seed,
            status=status,
        )
        path = self.directory.write_summary(summary)
        shown = {key: value for key, value in summary.items() if key != "versions"}
        runs.print_table(self.directory.path.name, shown)
        print(path)


def score(result: EvaluationResult) -> float:
    """What decides which checkpoint is the best, and what a sweep compares."""
    values = result.returns if result.success is None else result.success
    return float(values.double().mean())


if __name__ == "__main__":
    main(train, config_name="train")
