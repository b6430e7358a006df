"""RecurrentPPO of sb3-contrib, as a learner to compare agents with."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.actions import ActionEncoding
from yamame.baselines.learner import LearningTask
from yamame.baselines.vector_env import ArrayEnv, FlatObservations, write_actions
from yamame.checks import Bounds, UsageError, check_bounds

_NO_LIMIT = 2**62


class RecurrentPPO:
    """RecurrentPPO of sb3-contrib with ``MlpLstmPolicy``, on the CPU.

    Observations are one vector: all that an agent observes, with tokens one-hot, and without
    normalization, as by default in Stable-Baselines3. Updates are counted as there: one for each
    pass over a rollout.

    Args:
        num_envs: Number of envs that are played side by side.
        context: Whether the previous action and reward and the time are observed, as by agents.
        settings: Arguments of ``sb3_contrib.RecurrentPPO`` in place of its defaults, as
            ``{n_steps: 256}``.

    Raises:
        UsageError: sb3-contrib is not installed.

    Source: https://github.com/Stable-Baselines-Team/stable-baselines3-contrib
    """

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: Annotated[int, Bounds(least=1)] = 16,
        context: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.context = context
        self.settings = dict(settings or {})
        try:
            import sb3_contrib
        except ModuleNotFoundError as error:
            remedy = "run: pip install 'yamame[compare]'"
            message = f"the package {error.name} must be installed"
            raise UsageError(message, remedy=remedy) from error
        self._algorithm: Any = sb3_contrib.RecurrentPPO

    def learn(self, task: LearningTask) -> None:
        """Learn a task until its budget is spent."""
        env = ArrayEnv(task.build_env(self.num_envs), context=self.context)
        given = {"seed": task.seed, "device": "cpu", **self.settings}
        model = self._algorithm("MlpLstmPolicy", _vector_env(env), **given)
        policy = _Policy(model.policy, env.observations, env.actions)
        model.learn(_NO_LIMIT, callback=_callback(task, policy))


class _Policy:
    """A policy of sb3-contrib that acts on timesteps ``[N]``, and keeps the states of its LSTM."""

    def __init__(
        self, policy: Any, observations: FlatObservations, actions: ActionEncoding
    ) -> None:
        self._policy = policy
        self._observations = observations
        self._actions = actions
        self._states: Any = None

    def __call__(self, timestep: TensorDictBase) -> TensorDictBase:
        is_greedy = exploration_type() in (ExplorationType.DETERMINISTIC, ExplorationType.MODE)
        starts = timestep.get("is_init").reshape(-1).cpu().numpy()
        actions, self._states = self._policy.predict(
            self._observations(timestep),
            state=self._states,
            episode_start=starts,
            deterministic=is_greedy,
        )
        write_actions(timestep, actions, self._actions)
        return timestep


def _callback(task: LearningTask, policy: _Policy) -> Any:
    """Return a callback of Stable-Baselines3 that ends training when the budget is spent."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Budget(BaseCallback):
        def _on_step(self) -> bool:
            model: Any = self.model
            return task.goes_on(policy, env_steps=self.num_timesteps, updates=model._n_updates)

    return Budget()


def _vector_env(env: ArrayEnv) -> Any:
    """Return an environment as a ``VecEnv`` of Stable-Baselines3."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Batch(VecEnv):
        def __init__(self) -> None:
            size = (env.observations.size,)
            observation = spaces.Box(-np.inf, np.inf, size, np.float32)
            super().__init__(env.num_envs, observation, _action_space(env.actions))

        def reset(self) -> Any:
            return env.reset()

        def step_async(self, actions: Any) -> None:
            self._chosen = actions

        def step_wait(self) -> Any:
            steps = env.step(self._chosen)
            infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
            if steps.last is not None:
                for index in np.flatnonzero(steps.done):
                    infos[index]["terminal_observation"] = steps.last[index]
                    infos[index]["TimeLimit.truncated"] = bool(steps.truncated[index])
            return steps.observations, steps.rewards, steps.done, infos

        def close(self) -> None:
            """Do nothing: the task closes its environments."""

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            if attr_name == "render_mode":
                return [None] * env.num_envs
            raise AttributeError(attr_name)

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise AttributeError(attr_name)

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kw: Any) -> Any:
            raise AttributeError(method_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * env.num_envs

    return Batch()


def _action_space(actions: ActionEncoding) -> Any:
    """Return the Gymnasium space of actions."""
    from gymnasium import spaces

    if actions.kind == "index":
        return spaces.Discrete(actions.nvec[0])
    if actions.kind == "indices":
        return spaces.MultiDiscrete(actions.nvec)
    if actions.kind == "bits":
        return spaces.MultiBinary(actions.encoded_size)
    low = actions.low.float().numpy()
    high = actions.high.float().numpy()
    return spaces.Box(low, high, dtype=np.float32)
