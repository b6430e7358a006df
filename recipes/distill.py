"""Distils learning itself into one in-context agent: algorithm distillation (arXiv 2210.14215).

    python recipes/distill.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/distill.py run.name=mine
    python recipes/distill.py run.name=mine resume=true

First many small learners learn one task each, in an environment with many trials of one task in an episode: with
`source.horizon` steps instead of the usual ones. Their whole histories, from the first blunder to mastery, go to disk.
Then the same encoder and actor as in `train.py` learn to predict every action from the history before it. Who predicts
how a learner goes on improves as it did: at the end the agent plays held-out tasks without any update, and its return
per trial stands beside that of the learners and of itself without memory, in in_context.json and in_context.png.

The run lives in <run.root>/<run.name>; on a CPU a killed and resumed run ends with the same parameters, bit for
bit, as one that was never stopped.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDictBase
from torchrl.envs import Compose
from yamame import runs
from yamame.baselines import learning_histories
from yamame.evaluation import EvaluationResult, evaluate
from yamame.replay import Prefetcher, TrialSubsampling
from yamame.runs.build import build_agent, build_env, build_learner, build_replay, trial_replay
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
    name = cfg.run.name or "distill-" + run_name("env", "encoder", seed=cfg.seed)
    directory = Path(cfg.run.root) / name
    if cfg.resume and (saved := runs.Checkpointer(directory / "checkpoints")).last:
        runs.compare_config(saved.read_config(), plain(cfg))
    with runs.RunDirectory.open(cfg.run.root, name, resume=cfg.resume, overwrite=cfg.run.overwrite) as run:
        return Training(cfg, parts, run).run()


class Parts:
    """Everything that can be built, and refused, before anything is written."""

    def __init__(self, cfg: DictConfig) -> None:
        runs.Expected.from_config(plain(cfg)["expected"])
        self.budget = runs.Budget(**plain(cfg.budget))
        if cfg.budget.env_steps is not None:
            raise runs.UsageError(
                f"budget.env_steps: must be null, schedule.learning_starts counts those of the learners, got "
                f"{cfg.budget.env_steps}"
            )
        if cfg.relabel.strategy != "none":
            raise runs.UsageError(f"relabel.strategy={cfg.relabel.strategy}: histories cannot be relabelled")
        self.held_out = held_out_env(cfg)
        self.agent = build_agent(cfg, self.held_out)
        self.learner = build_learner(cfg, self.agent)
        self.source_cfg = longer(cfg)
        self.env = build_env(self.source_cfg, num_envs=cfg.schedule.num_envs, seed=cfg.seed)
        self.source = instantiate(cfg.source.learner)(self.agent.action_space)
        subsampling = TrialSubsampling(cfg.source.subsample, length=self.check_lengths(cfg))
        packing = [] if cfg.packing is None else [instantiate(cfg.packing)]
        self.transform = Compose(subsampling, *packing)
        self.tracker: runs.Tracker = instantiate(cfg.logger)
        with trial_replay(cfg, transform=self.transform):
            pass

    def check_lengths(self, cfg: DictConfig) -> int:
        """The steps of an episode, which the encoder must remember and a history must be able to fill."""
        steps = int(self.held_out.observation_spec["step_index"].space.high.max())
        history = int(self.env.observation_spec["step_index"].space.high.max())
        limit = self.agent.trajectory_encoder.context_length
        if limit is not None and limit <= steps:
            raise runs.UsageError(f"context_length: must exceed the episode, {steps} steps, got {limit}")
        if history < steps:
            raise runs.UsageError(
                f"source.horizon: must be at least the episode, {steps} steps, got {history}"
            )
        total = max(cfg.schedule.learning_starts, 1)
        rounds = -(-total // (history * cfg.schedule.num_envs))
        needed = rounds * cfg.schedule.num_envs * (history + 1)
        if cfg.replay.capacity < needed:
            raise runs.UsageError(f"replay.capacity: must hold {needed} timesteps, got {cfg.replay.capacity}")
        return steps


def longer(cfg: DictConfig) -> DictConfig:
    """The configuration in which an episode is a whole history of learning."""
    config, horizon = plain(cfg), cfg.source.horizon
    if config["source"]["env"]:
        config["env"] |= config["source"]["env"]
    elif config.get("trials") is not None:
        config["trials"] |= {"num_trials": None, "horizon": horizon}
    elif "time_limit" in config["env"]:
        config["env"] |= {"time_limit": horizon}
    else:
        raise runs.UsageError(
            "source.horizon: this environment takes no time_limit; set trials=repeated, or source.env to what "
            f"makes its episodes longer, got {horizon}"
        )
    return OmegaConf.create(config)


class Training(TrainingRun):
    """A run from its first to its last step."""

    axis = "updates"

    def __init__(self, cfg: DictConfig, parts: Parts, run: runs.RunDirectory) -> None:
        policy = parts.agent.policy()
        super().__init__(
            cfg, run, policy=policy, held_out=parts.held_out, budget=parts.budget, tracker=parts.tracker
        )
        self.parts, self.learner, self.env = parts, parts.learner, parts.env
        self.in_context: dict[str, list[float]] = {}
        if not self.resumed:  # a run that was stopped before its first checkpoint begins again
            shutil.rmtree(run.path / "histories", ignore_errors=True)
        options = {"owner": run.path.name, "resume": self.resumed}
        self.histories = build_replay(cfg, run.path / "histories", transform=parts.transform, **options)
        self.batches = Prefetcher(self.histories.sample, cfg.device)

    def components(self) -> dict[str, Any]:
        """Everything that the next step depends on; checkpoints are made when no learner is learning."""
        return {
            "agent": self.parts.agent,
            **self.learner.components(),
            "env": self.env,
            "histories": self.histories,
        }

    def saved(self) -> None:
        """From now on the histories of this checkpoint stay."""
        self.histories.protect()

    def close(self) -> None:
        """Ends the processes of environments, if there are any."""
        for env in (self.env, self.held_out):
            if not env.is_closed:
                env.close()

    def extra(self) -> Mapping[str, Any]:
        """Mean return of each trial on held-out tasks."""
        return {"in_context": self.in_context} if self.in_context else {}

    def loop(self) -> None:
        """Gathers histories, then distils them."""
        with runs.ProgressBar(self.budget) as bar:
            self.gather(bar)
            while not self.ended():
                self.show(bar, self.learn())
                self.evaluate_and_save()

    def gather(self, bar: runs.ProgressBar) -> None:
        """Lets rounds of learners learn, one task each, and stores their histories, with a checkpoint after each."""
        progress = self.progress
        while progress.env_steps < self.cfg.schedule.learning_starts or not len(self.histories):
            self.parts.source.reset_memory()
            batch = learning_histories(self.env, self.parts.source, max_steps=self.cfg.source.horizon)
            self.histories.extend(batch.cpu())
            progress.env_steps += int(batch["mask"].sum()) - len(batch)
            self.tracker.log(improvement(batch), step=progress.env_steps)
            bar.update(env_steps=progress.env_steps, updates=0)
            self.save(None)

    def learn(self) -> dict[str, float]:
        """Makes some updates; returns the means of their metrics."""
        return self.learn_from(self.batches, self.cfg.schedule.updates_per_iteration)

    def artifacts(self) -> None:
        """Adds the comparison: return per trial of the agent, of itself without memory, and of the learners."""
        found = {
            "distilled": self.play_held_out(),
            "memory_wiped": self.play_held_out(memory_wiped=True),
            "source": self.play_source(),
        }
        self.in_context = {name: result.common_trials().mean(0).tolist() for name, result in found.items()}
        self.in_context["source_subsampled"] = self.in_context["source"][:: self.cfg.source.subsample]
        path = self.directory.write_json("in_context.json", self.in_context)
        self.tracker.log_artifact(path)
        lines = {
            name: (range(1, len(line) + 1), line)
            for name, line in self.in_context.items()
            if name != "source"
        }
        picture = runs.learning_curve(
            self.directory.path / "in_context.png", lines, x_label="trial", y_label="return"
        )
        self.tracker.log_artifact(picture)
        super().artifacts()

    def play_source(self) -> EvaluationResult:
        """The learners on the held-out tasks, from their beginning to their end."""
        setting, rows = self.cfg.evaluation, self.held_out.batch_size[0]
        env = build_env(self.parts.source_cfg, num_envs=rows, seed=setting.seed, held_out=True)
        try:
            return evaluate(
                self.parts.source,
                env,
                num_episodes=setting.num_episodes,
                max_steps=setting.max_steps,
                seed=setting.seed,
            )
        finally:
            env.close()


def improvement(histories: TensorDictBase) -> dict[str, float]:
    """Mean reward per step in the first and in the last tenth of the histories."""
    reward = histories["next", "reward"].flatten(1)
    tenth = max(1, reward.shape[1] // 10)
    return {
        "source/reward_first_tenth": float(reward[:, :tenth].mean()),
        "source/reward_last_tenth": float(reward[:, -tenth:].mean()),
    }


if __name__ == "__main__":
    main(train, config_name="distill")
