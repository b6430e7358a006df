"""Evaluation of trained runs on their held-out tasks."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.agent import InContextAgent
from yamame.checks import at_source, require_setting
from yamame.cli.sections import AnyConfig
from yamame.evaluation import EvaluationResult, evaluate, play_episode
from yamame.evaluation.bound import EndlessEpisodes
from yamame.evaluation.held_out import Policy
from yamame.runs.trained import Trained, load_from_options
from yamame.system.messages import warnings_as_lines
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.attention_maps import attention_maps


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation on held-out tasks.

    Attributes:
        num_envs: Largest number of envs side by side; None for one per episode.
        num_episodes: Number of episodes, at least 1.
        greedy: Whether the agent acts by the mode of its policy instead of sampling.
        max_steps: Steps after which an episode is cut; None for no limit.
        seed: Seed of the tasks and of the agent's samples.
    """

    num_envs: int | None
    num_episodes: int
    greedy: bool
    max_steps: int | None
    seed: int

    @classmethod
    def of(
        cls, config: AnyConfig, changes: Mapping[str, Any] | None = None
    ) -> "EvaluationSettings":
        """Read the evaluation settings of a run.

        Args:
            config: Configuration of the run, with the section ``evaluation``.
            changes: Settings to use instead, by name. None as a value keeps the run's own, and
                other names are ignored.
        """
        settings = {}
        for name in cls.__dataclass_fields__:
            # 0 and False are values, so only None keeps the run's own.
            change = None if changes is None else changes.get(name)
            settings[name] = config.evaluation[name] if change is None else change
        return cls(**settings)

    @property
    def batch_size(self) -> int:
        """Number of envs side by side."""
        return min(self.num_envs or self.num_episodes, self.num_episodes)

    def evaluate(self, policy: Policy, env: EnvBase, **options: Any) -> EvaluationResult:
        """Evaluate a policy in an environment of `batch_size` envs.

        Args:
            policy, env: As for `yamame.evaluation.evaluate`.
            **options: Further arguments of `yamame.evaluation.evaluate`, such as ``memory_reset``.
        """
        with warnings_as_lines(EndlessEpisodes):
            return evaluate(
                policy,
                env,
                num_episodes=self.num_episodes,
                greedy=self.greedy,
                max_steps=self.max_steps,
                seed=self.seed,
                **options,
            )


@dataclass(frozen=True)
class RunEvaluator:
    """A trained run with the settings of its evaluation.

    Attributes:
        trained: The run.
        settings: Settings of the evaluation.
        gamma_index: Index of the discount factor of the policy that acts.
    """

    trained: Trained
    settings: EvaluationSettings
    gamma_index: int = -1

    @classmethod
    def load(cls, source: str, options: Mapping[str, Any], key: str = "run") -> "RunEvaluator":
        """Load a run as the options of a recipe ask for it.

        Args:
            source: As for `yamame.runs.trained.load_trained`.
            options: Configuration of the recipe: options of `yamame.runs.trained.load_trained`,
                evaluation settings or None for those of training, and ``gamma`` or ``gamma_index``.
            key: Key of the recipe that names the run, for error messages.

        Raises:
            UsageError: The run cannot be loaded, or was not trained with this discount factor.
        """
        trained = load_from_options(source, options, key)
        settings = EvaluationSettings.of(trained.config, options)
        if options["gamma"] is not None:
            return cls(trained, settings, trained.gamma_index(options["gamma"]))
        count = len(trained.gammas)
        index = -1 if options["gamma_index"] is None else options["gamma_index"]
        condition = f"be in {-count}..{count - 1}"
        require_setting("gamma_index", index, -count <= index < count, condition)
        return cls(trained, settings, index % count)

    @property
    def task(self) -> str:
        """Text of the run's environment and its settings, equal for runs of one task."""
        return self.trained.task

    @contextmanager
    def build(self, num_envs: int | None = None) -> Iterator[tuple[InContextAgent, EnvBase]]:
        """Build the agent and the held-out environment, which is closed after the block.

        Args:
            num_envs: Number of envs; None for that of the settings.

        Raises:
            UsageError: The weights do not fit the environment.
        """
        if num_envs is None:
            num_envs = self.settings.batch_size
        with closing(self.trained.build_env(num_envs=num_envs, seed=self.settings.seed)) as env:
            yield self.trained.build_agent(env), env

    def describe(self, env: EnvBase) -> dict[str, Any]:
        """Return the run, its task, the novelty of the evaluation's tasks, and the settings.

        Args:
            env: Environment of `build`.
        """
        return {
            "source": self.trained.source,
            "step": self.trained.step,
            "seed": self.trained.config.seed,
            "task": self.trained.task,
            "evaluated_on": self.trained.what_is_new(env),
            "evaluation": asdict(self.settings),
        }

    def check(self, *, draws_attention: bool = False) -> None:
        """Check that the weights fit the environment, and that attention can be drawn.

        Raises:
            UsageError: They do not, or the encoder has no attention.
        """
        with self.build(num_envs=1) as (agent, _):  # one env is cheap and has the same shapes
            encoder = agent.trajectory_encoder
        can_draw = isinstance(encoder, TransformerEncoder)
        name = type(encoder).__name__
        condition = f"be false, because the encoder is a {name} and no TransformerEncoder"
        with at_source(self.trained.source):
            require_setting("attention", True, can_draw or not draws_attention, condition)

    def evaluate(self, **options: Any) -> EvaluationResult:
        """Evaluate the agent.

        Args:
            **options: Further arguments of `yamame.evaluation.evaluate`, such as ``memory_reset``.
        """
        with self.build() as (agent, env):
            policy = agent.policy(gamma_index=self.gamma_index)
            return self.settings.evaluate(policy, env, **options)

    def attention(self, *, most_steps: int) -> Tensor:
        """Compute the attention of the run's Transformer in the first held-out episode.

        Args:
            most_steps: Largest number of timesteps.

        Returns:
            ``[layers, H, L, L]``, on the CPU.
        """
        with self.build(num_envs=1) as (agent, env):
            encoder = agent.trajectory_encoder
            assert isinstance(encoder, TransformerEncoder)
            max_steps = most_steps
            for limit in (self.settings.max_steps, encoder.context_length):
                if limit is not None:
                    max_steps = min(max_steps, limit)
            episode = play_episode(
                agent.policy(gamma_index=self.gamma_index),
                env,
                max_steps=max_steps,
                greedy=self.settings.greedy,
                seed=self.settings.seed,
            )
        with torch.no_grad():
            return attention_maps(encoder, agent.timestep_encoder(episode))[:, 0].cpu()
