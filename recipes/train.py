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
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict
from torchrl.envs import Compose
from yamame import runs
from yamame.agent import InContextPolicy
from yamame.collectors import Collector
from yamame.replay import Prefetcher
from yamame.runs.build import (
    build_agent,
    build_collector,
    build_env,
    build_learner,
    build_replay,
    trial_replay,
)
from yamame.runs.hydra import instantiate, main, plain, run_name
from yamame.runs.training import TrainingRun, held_out_env


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
        runs.Expected.from_config(self.config["expected"])
        self.budget = runs.Budget(**self.config["budget"])
        self.env = build_env(cfg, num_envs=cfg.schedule.num_envs, seed=cfg.seed)
        self.has_goals = {"goal", "achieved", "achieved_mask"} <= set(self.env.observation_spec.keys())
        if cfg.relabel.strategy != "none" and not self.has_goals:
            name = type(self.env).__name__
            raise runs.UsageError(
                f"relabel.strategy={cfg.relabel.strategy}: {name} has no goals to relabel; set relabel=none"
            )
        self.held_out = held_out_env(cfg)
        self.agent = build_agent(cfg, self.env)
        self.learner = build_learner(cfg, self.agent)
        self.exploration = instantiate(cfg.exploration, action_space=self.agent.action_space)
        # Relabelling sees whole trajectories; windows are cut, and rows filled up, afterwards.
        # What was sampled belongs to nobody else, so it is relabelled where it is.
        relabel = [instantiate(cfg.relabel, inplace=True)] if self.has_goals else []
        later = [instantiate(node) for node in (cfg.window, cfg.packing) if node is not None]
        self.transform = Compose(*relabel, *later)
        self.tracker: runs.Tracker = instantiate(cfg.logger)
        with trial_replay(cfg, transform=self.transform) as replay:
            self.build_collector(cfg, self.agent.policy(), replay)

    def build_collector(self, cfg: DictConfig, policy: InContextPolicy, replay: Any) -> Collector:
        """The collector of the configuration."""
        return build_collector(cfg, env=self.env, policy=policy, replay=replay, exploration=self.exploration)


class Training(TrainingRun):
    """Collecting and learning in turn."""

    def __init__(self, cfg: DictConfig, parts: Parts, run: runs.RunDirectory) -> None:
        super().__init__(
            cfg,
            run,
            policy=parts.agent.policy(),
            held_out=parts.held_out,
            budget=parts.budget,
            tracker=parts.tracker,
        )
        self.parts, self.learner = parts, parts.learner
        if not self.resumed:  # a run that was stopped before its first checkpoint begins again
            shutil.rmtree(run.path / "replay", ignore_errors=True)
        options = {"owner": run.path.name, "resume": self.resumed}
        self.replay = build_replay(cfg, run.path / "replay", transform=parts.transform, **options)
        self.batches = Prefetcher(self.replay.sample, cfg.device)
        self.collector = parts.build_collector(cfg, self.policy, self.replay)

    def components(self) -> dict[str, Any]:
        """What a checkpoint holds of learning and collecting."""
        return {
            "agent": self.parts.agent,
            **self.learner.components(),
            "collector": self.collector,
            "replay": self.replay,
        }

    def close(self) -> None:
        """Ends the processes of environments, if there are any."""
        self.collector.shutdown()
        for env in (self.parts.env, self.parts.held_out):
            if not env.is_closed:
                env.close()

    def saved(self) -> None:
        """Replay may overwrite what only older checkpoints need."""
        self.replay.protect()

    def loop(self) -> None:
        """Alternates collecting and learning."""
        with runs.ProgressBar(self.budget) as bar:
            while not self.ended():
                if not self.updates_due():
                    self.collect(self.cfg.schedule.steps_per_iteration)
                self.show(bar, self.learn())
                self.evaluate_and_save()

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
        self.count(self.collector.collect(num_steps))

    def learn(self) -> dict[str, float]:
        """Makes the updates that are due; returns the means of their metrics."""
        metrics = self.learn_from(self.batches, self.updates_due())
        self.collector.update_policy_weights_(TensorDict.from_module(self.policy).data)
        return metrics


if __name__ == "__main__":
    main(train, config_name="train")
