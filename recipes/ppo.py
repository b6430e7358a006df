"""Trains one in-context agent on-policy: RL^2, recurrent PPO over whole episodes of many trials.

    python recipes/ppo.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/ppo.py env=bandits encoder=gru run.name=mine
    python recipes/ppo.py env=bandits encoder=gru run.name=mine resume=true
    python recipes/ppo.py -m encoder=gru,transformer,memoryless seed=0,1

The baseline beside `train.py`: the same environments, encoders, evaluation, logging and checkpoints, another learning
rule (arXiv 1611.02779 with the clipped objective of arXiv 1707.06347). In every iteration all rows play complete
episodes with the present policy, which is then changed by some epochs over those episodes; nothing is replayed
later. On a CPU a killed and resumed run ends with the same parameters, bit for bit, as one that was never stopped.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict, TensorDictBase
from yamame import runs
from yamame.collectors import EpisodeCollector
from yamame.replay import OnPolicyBuffer, minibatches
from yamame.runs.build import build_agent, build_env
from yamame.runs.hydra import instantiate, main, plain, run_name
from yamame.runs.training import NoTargets, TrainingRun, held_out_env


def train(cfg: DictConfig) -> float:
    """The recipe: success on held-out tasks, or the mean return where an environment knows no success."""
    runs.keep_freed_memory()
    try:
        runs.seed_everything(cfg.seed)
        parts = Parts(cfg)
    except ValueError as error:
        raise runs.UsageError(str(error)) from error
    directory = Path(cfg.run.root) / (cfg.run.name or "ppo-" + run_name("env", "encoder", seed=cfg.seed))
    if cfg.resume and (saved := runs.Checkpointer(directory / "checkpoints")).last:
        runs.compare_config(saved.read_config(), plain(cfg))
    with runs.RunDirectory.open(
        cfg.run.root, directory.name, resume=cfg.resume, overwrite=cfg.run.overwrite
    ) as run:
        return Training(cfg, parts, run).run()


class Parts:
    """Everything that can be built, and refused, before anything is written."""

    def __init__(self, cfg: DictConfig) -> None:
        self.check_on_policy(cfg)
        runs.Expected.from_config(plain(cfg)["expected"])
        self.budget = runs.Budget(**plain(cfg.budget))
        self.env = build_env(cfg, num_envs=cfg.schedule.num_envs, seed=cfg.seed)
        self.held_out = held_out_env(cfg)
        self.agent = build_agent(cfg, self.env)
        self.check_context(cfg)
        self.learner = self.build_learner(cfg)
        self.packing = instantiate(cfg.packing)
        self.tracker: runs.Tracker = instantiate(cfg.logger)

    @staticmethod
    def check_on_policy(cfg: DictConfig) -> None:
        """Refuses settings that only learning from replay can follow."""
        if cfg.relabel.strategy != "none":
            raise runs.UsageError(
                f"relabel.strategy={cfg.relabel.strategy}: learning on-policy cannot relabel"
            )

    def check_context(self, cfg: DictConfig) -> None:
        """Refuses episodes that are longer than what the encoder remembers while it acts."""
        limit, longest = self.agent.trajectory_encoder.context_length, self.env.observation_spec["step_index"]
        bound = getattr(longest.space, "high", None)
        if limit is not None and bound is not None and int(bound.max()) >= limit:
            raise runs.UsageError(
                f"context_length: must exceed the longest episode, {int(bound.max())} steps, got {limit}"
            )

    def build_learner(self, cfg: DictConfig) -> runs.Learner:
        """Loss and optimizer."""
        agent = self.agent
        if len(agent.gammas) != 1:
            raise runs.UsageError(f"agent.gammas: must hold one discount factor, got {list(agent.gammas)}")
        loss = instantiate(
            cfg.agent.loss,
            encoder=agent.encoder,
            actor=agent.actor,
            critic=agent.critic,
            returns=agent.returns,
            action_space=agent.action_space,
            gamma=agent.gammas[0],
        ).to(cfg.device)
        return runs.Learner(
            loss,
            instantiate(cfg.optimizer, params=[p for p in agent.parameters() if p.requires_grad]),
            NoTargets(),
            max_grad_norm=cfg.schedule.max_grad_norm,
            warmup_updates=cfg.schedule.warmup_updates,
            autocast=cfg.schedule.autocast,
        )


class Training(TrainingRun):
    """A run from its first to its last step."""

    def __init__(self, cfg: DictConfig, parts: Parts, run: runs.RunDirectory) -> None:
        policy = parts.agent.policy()
        super().__init__(
            cfg, run, policy=policy, held_out=parts.held_out, budget=parts.budget, tracker=parts.tracker
        )
        self.parts, self.learner = parts, parts.learner
        self.episodes = OnPolicyBuffer()
        self.collector = EpisodeCollector(parts.env, policy, self.episodes)

    def components(self) -> dict[str, Any]:
        """Everything that the next step depends on; checkpoints are made when no episodes are held."""
        return {"agent": self.parts.agent, **self.learner.components(), "collector": self.collector}

    def close(self) -> None:
        """Ends the processes of environments, if there are any."""
        self.collector.shutdown()
        if not self.held_out.is_closed:
            self.held_out.close()

    def loop(self) -> None:
        """Alternates collecting and learning."""
        with runs.ProgressBar(self.budget) as bar:
            while not self.ended():
                self.collect()
                self.show(bar, self.learn())
                self.evaluate_and_save()

    def collect(self) -> None:
        """Plays complete episodes, and keeps how they came out."""
        self.count(self.collector.collect(self.cfg.schedule.steps_per_iteration))

    def learn(self) -> dict[str, float]:
        """Makes some epochs of updates with the episodes just played; returns the means of their metrics."""
        if not len(self.episodes):  # every episode failed
            return self.metrics([])
        loss = self.learner.loss
        with self.learner.precision():
            batch = loss.annotate(self.episodes.take().to(self.cfg.device))
        made = []
        for part in self.parts_of(batch):
            made.append(self.update(part))
            if self.budget.updates is not None and self.progress.updates >= self.budget.updates:
                break
        loss.refresh(batch)
        self.collector.update_policy_weights_(TensorDict.from_module(self.policy).data)
        return self.metrics(made)

    def parts_of(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """The batches of all epochs, one by one."""
        for _ in range(self.cfg.schedule.epochs):
            for part in minibatches(batch, size=self.cfg.schedule.batch_size):
                yield part if self.parts.packing is None else self.parts.packing(part)


if __name__ == "__main__":
    main(train, config_name="ppo")
