"""Trains one in-context agent on one environment: collects, learns, evaluates, logs, checkpoints, resumes.

    python recipes/train.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/train.py encoder=gru env=mazerunner run.name=mine
    python recipes/train.py run.name=mine encoder=gru resume=true
    python recipes/train.py -m encoder=gru,transformer seed=0,1

The run lives in <run.root>/<run.name>: checkpoints, replay, config.yaml, summary.json. Its metrics are in MLflow.
Collecting and learning alternate: after every `schedule.steps_per_iteration` environment steps the learner makes as
many updates as `schedule.updates_per_step` allows. All state between two updates is in the checkpoint, so that on a
CPU a killed and resumed run ends with the same parameters, bit for bit, as one that was never stopped.
"""

import copy
import re
import statistics
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.envs import Compose, EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame import runs
from yamame.agent import InContextAgent
from yamame.evaluation import EvaluationResult, evaluate
from yamame.runs.hydra import instantiate, main, objective, plain
from yamame.runs.summary import Status

NOT_IN_NAME = ("run.", "budget.", "evaluation.", "checkpoint.", "logger", "resume", "env=", "encoder=", "seed=")
"""Overrides that do not make another run of it, or that the name of the run holds anyway."""


def train(cfg: DictConfig) -> float:
    """The recipe: returns the success on held-out tasks, or the mean return where the environment has no success."""
    runs.seed_everything(cfg.seed)
    env = instantiate(cfg.env, seed=cfg.seed, device=cfg.device)
    agent = build_agent(cfg, env)
    learner = Learner(cfg, agent)
    check_relabel(cfg, env)
    directory = Path(cfg.run.root) / run_name(cfg)
    if cfg.resume and (saved := runs.Checkpointer(directory / "checkpoints")).last:
        runs.compare_config(saved.read_config(), plain(cfg))
    with runs.RunDirectory.open(
        cfg.run.root, directory.name, resume=cfg.resume, overwrite=cfg.run.overwrite
    ) as run:
        return Training(cfg, env, agent, learner, run).run()


def run_name(cfg: DictConfig) -> str:
    """The given name, or one made of the environment, the encoder, the seed and every other override."""
    if cfg.run.name is not None:
        return str(cfg.run.name)
    hydra = HydraConfig.get()
    choices = hydra.runtime.choices
    others = [text for text in hydra.overrides.task if not text.lstrip("+").startswith(NOT_IN_NAME)]
    parts = [choices["env"], choices["encoder"], *sorted(others), f"seed={cfg.seed}"]
    return re.sub(r"[^A-Za-z0-9._=,+-]", "-", "-".join(parts))[:120]


def build_agent(cfg: DictConfig, env: EnvBase) -> InContextAgent:
    """The agent of the configuration, fitted to an environment."""
    return InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=instantiate(cfg.timestep_encoder),
        goal_encoder=instantiate(cfg.goal_encoder),
        trajectory_encoder=instantiate(cfg.encoder),
        actor=instantiate(cfg.agent.actor),
        critic=instantiate(cfg.agent.critic),
        returns=instantiate(cfg.agent.returns),
        gammas=cfg.agent.gammas,
        probability_floor=cfg.agent.probability_floor,
    ).to(cfg.device)


def has_goals(env: EnvBase) -> bool:
    """Whether an environment gives instructions that can be relabelled."""
    return {"goal", "achieved", "achieved_mask"} <= set(env.observation_spec.keys())


def check_relabel(cfg: DictConfig, env: EnvBase) -> None:
    """Refuses to relabel what has no goals."""
    if cfg.relabel.strategy != "none" and not has_goals(env):
        raise runs.UsageError(
            f"relabel.strategy={cfg.relabel.strategy}: {type(env).__name__} has no goals to relabel; "
            "set relabel=none"
        )


class Learner:
    """One gradient step at a time: loss, guard, clipping, optimizer, learning-rate warm-up, target networks."""

    def __init__(self, cfg: DictConfig, agent: InContextAgent) -> None:
        self.loss = instantiate(
            cfg.agent.loss,
            encoder=agent.encoder,
            actor=agent.actor,
            critic=agent.critic,
            returns=agent.returns,
            action_space=agent.action_space,
            gammas=agent.gammas,
        ).to(cfg.device)
        self.target_updater = instantiate(cfg.agent.target_updater, loss_module=self.loss)
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.optimizer = instantiate(cfg.optimizer, params=self.parameters)
        warmup = max(1, cfg.schedule.warmup_updates)
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: min(1.0, (k + 1) / warmup))
        self.max_grad_norm = cfg.schedule.max_grad_norm

    def update(self, batch: TensorDictBase, guard: runs.NonFiniteGuard, *, step: int, seed: int) -> dict[str, Any]:
        """Learns from one batch; returns detached metrics, none if the loss was not finite."""
        out = self.loss(batch)
        total = sum(value for key, value in out.items() if key.startswith("loss_"))
        if not guard.check(total, batch, step=step, seed=seed):
            return {}
        self.optimizer.zero_grad()
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        self.warmup.step()
        self.target_updater.step()
        metrics = {key: value.detach() for key, value in out.items()}
        return metrics | {"loss": total.detach(), "grad_norm": norm}

    def components(self) -> dict[str, Any]:
        """What a checkpoint needs of the learner."""
        return {"loss": self.loss, "optimizer": self.optimizer, "warmup": self.warmup}


class Training:
    """A run from its first to its last step."""

    def __init__(
        self, cfg: DictConfig, env: EnvBase, agent: InContextAgent, learner: Learner, run: runs.RunDirectory
    ) -> None:
        self.cfg, self.agent, self.learner, self.directory = cfg, agent, learner, run
        self.config = plain(cfg)
        self.budget = runs.Budget(**self.config["budget"])
        self.costs = runs.CostMeter()
        self.guard = runs.NonFiniteGuard(run.path)
        self.checkpoints = runs.Checkpointer(
            run.path / "checkpoints", keep_last=cfg.checkpoint.keep, config=self.config
        )
        resumed = run.resumed and self.checkpoints.last is not None
        self.replay = instantiate(
            cfg.replay,
            path=run.path / "replay",
            batch_size=cfg.schedule.batch_size,
            transform=self.replay_transform(env),
            owner=run.path.name,
            resume=resumed,
        )
        self.policy = agent.policy()
        self.collector = instantiate(
            cfg.collector,
            env=env,
            policy=self.policy,
            replay=self.replay,
            exploration=instantiate(cfg.exploration, action_space=agent.action_space),
        )
        self.held_out = instantiate(
            cfg.env, num_envs=cfg.evaluation.num_episodes, seed=cfg.evaluation.seed, device=cfg.device
        )
        self.tracker: runs.Tracker = instantiate(cfg.logger)
        self.env_steps = self.updates = 0
        self.next_evaluation = self.next_checkpoint = 0
        self.recent: deque[float] = deque(maxlen=100)
        self.curve: list[dict[str, float]] = []
        if resumed:
            self.restore()
        else:
            run.write_text("config.yaml", OmegaConf.to_yaml(cfg, resolve=True))

    def replay_transform(self, env: EnvBase) -> Compose:
        """Relabelling sees whole trajectories; windows are cut afterwards."""
        relabel = [instantiate(self.cfg.relabel)] if has_goals(env) else []
        return Compose(*relabel, instantiate(self.cfg.window))

    def run(self) -> float:
        """Trains until the budget ends, then evaluates, saves and reports."""
        params = runs.flatten(self.config)
        status: Status = "FAILED"
        try:
            with self.tracker.start(self.directory.path, name=self.directory.path.name, params=params):
                self.loop()
                result = self.evaluate()
                self.save(self.score(result))
                self.artifacts()
                status = "FINISHED"
        except BaseException as error:
            status = runs.run_status(error)
            raise
        finally:
            summary = self.summary(status)
            path = self.directory.write_summary(summary)
            runs.print_table(self.directory.path.name, {k: v for k, v in summary.items() if k != "versions"})
            print(path)
        return objective(self.score(result))

    def loop(self) -> None:
        """Alternates collecting and learning."""
        schedule = self.cfg.schedule
        with runs.Progress(self.budget) as progress:
            while not self.ended():
                if not self.updates_due():
                    self.collect(schedule.steps_per_iteration)
                metrics = self.learn()
                if self.recent:
                    metrics["train/success_or_return"] = statistics.fmean(self.recent)
                self.tracker.log(metrics, step=self.env_steps)
                progress.update(
                    env_steps=self.env_steps,
                    updates=self.updates,
                    success=self.curve[-1].get("success_mean") if self.curve else None,
                    loss=metrics.get("train/loss"),
                )
                self.evaluate_and_save()

    def ended(self) -> bool:
        """Whether the budget is spent."""
        return self.budget.ended(env_steps=self.env_steps, updates=self.updates) is not None

    def updates_due(self) -> int:
        """Updates that the steps collected so far allow and that were not made yet."""
        if len(self.replay) == 0:
            return 0
        beyond = self.env_steps - self.cfg.schedule.learning_starts
        return max(0, int(beyond * self.cfg.schedule.updates_per_step) - self.updates)

    def collect(self, num_steps: int) -> None:
        """Acts, and keeps what the episodes that ended came to."""
        if self.replay.needs_protect(num_steps * 2):
            self.save(None)
        episodes = self.collector.collect(num_steps)
        self.env_steps += episodes.num_steps
        outcomes = episodes.returns if episodes.success is None else episodes.success.float()
        self.recent.extend(outcomes.tolist())

    def learn(self) -> dict[str, float]:
        """Makes the updates that are due; returns the means of their metrics."""
        collected: list[dict[str, Any]] = []
        for _ in range(self.updates_due()):
            batch = self.replay.sample().to(self.cfg.device)
            collected.append(
                self.learner.update(batch, self.guard, step=self.updates, seed=self.cfg.seed)
            )
            self.updates += 1
            if self.ended():
                break
        self.collector.update_policy_weights_(TensorDict.from_module(self.policy).data)
        kept = [metrics for metrics in collected if metrics]
        if not kept:
            return {}
        return {f"train/{key}": float(torch.stack([m[key].float() for m in kept]).mean()) for key in kept[0]}

    def evaluate_and_save(self) -> None:
        """Evaluates and checkpoints when their intervals have passed."""
        score = None
        if self.env_steps >= self.next_evaluation + self.cfg.evaluation.interval:
            self.next_evaluation = self.env_steps
            score = self.score(self.evaluate())
        if self.env_steps >= self.next_checkpoint + self.cfg.checkpoint.interval or score is not None:
            self.next_checkpoint = self.env_steps
            self.save(score)

    def evaluate(self) -> EvaluationResult:
        """Plays one complete episode of every held-out task."""
        setting = self.cfg.evaluation
        result = evaluate(self.policy, self.held_out, greedy=setting.greedy, seed=setting.seed)
        summary = result.summary()
        if not self.curve or self.curve[-1]["env_steps"] < self.env_steps:
            self.curve.append({"env_steps": self.env_steps, **summary})
        self.tracker.log({f"eval/{key}": value for key, value in summary.items()}, step=self.env_steps)
        return result

    def score(self, result: EvaluationResult) -> float:
        """What decides which checkpoint is the best."""
        values = result.returns if result.success is None else result.success
        return float(values.float().mean())

    def components(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        counters = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "next_evaluation": self.next_evaluation,
            "next_checkpoint": self.next_checkpoint,
            "recent": list(self.recent),
            "curve": self.curve,
        }
        return {
            "agent": self.agent,
            **self.learner.components(),
            "collector": self.collector,
            "replay": self.replay,
            "budget": self.budget,
            "costs": self.costs,
            "rng": runs.GlobalRNGState(),
            "counters": counters,
        }

    def save(self, score: float | None) -> None:
        """Checkpoints; from then on replay may overwrite what only older checkpoints need."""
        self.tracker.flush()
        self.checkpoints.save(self.components(), step=self.env_steps, metric=score)
        self.replay.protect()

    def restore(self) -> None:
        """Goes back to the last checkpoint."""
        counters = self.checkpoints.load(self.components()).values["counters"]
        self.recent.extend(counters.pop("recent"))
        for name, value in counters.items():
            setattr(self, name, value)

    def artifacts(self) -> None:
        """Hands the tracker what a person wants to look at."""
        path = self.directory.path
        name = "success" if "success_mean" in self.curve[-1] else "return"
        columns = ["env_steps", f"{name}_mean", f"{name}_low", f"{name}_high"]
        band = [[point[column] for point in self.curve] for column in columns]
        runs.learning_curve(path / "learning_curve.png", {path.name: band}, y_label=name)
        self.tracker.log_artifact(path / "learning_curve.png")
        frames = self.film()
        if frames is not None:
            self.tracker.log_artifact(runs.write_gif(path / "episodes.gif", frames))
        self.tracker.log_table("evaluation.json", {key: [p[key] for p in self.curve] for key in self.curve[-1]})
        self.tracker.log_artifact(path / "config.yaml")
        for checkpoint in {self.checkpoints.last, self.checkpoints.best} - {None}:
            self.tracker.log_artifact(checkpoint, folder="checkpoints")

    @torch.no_grad()
    def film(self, num_episodes: int = 4) -> np.ndarray | None:
        """Frames of the agent on the first held-out tasks; None where the environment cannot be drawn."""
        env = instantiate(self.cfg.env, num_envs=1, seed=self.cfg.evaluation.seed, device=self.cfg.device)
        if not callable(getattr(env, "render", None)):
            return None
        policy, frames = copy.deepcopy(self.policy).eval(), []
        current = env.reset()
        greedy = ExplorationType.DETERMINISTIC if self.cfg.evaluation.greedy else ExplorationType.RANDOM
        with set_exploration_type(greedy), torch.random.fork_rng():
            for _ in range(num_episodes):
                done = False
                while not done:
                    frames.append(env.render())
                    stepped, current = env.step_and_maybe_reset(policy(current))
                    done = bool(stepped["next", "done"].any())
        return np.stack(frames)

    def summary(self, status: Status) -> dict[str, Any]:
        """The content of summary.json."""
        last = self.curve[-1] if self.curve else {}
        return runs.build_summary(
            success=last.get("success_mean"),
            return_mean=last.get("return_mean"),
            env_steps=self.env_steps,
            updates=self.updates,
            cpu_s=self.costs.cpu_s,
            wall_s=self.costs.wall_s,
            seed=self.cfg.seed,
            status=status,
        )


if __name__ == "__main__":
    main(train, config_name="train")
