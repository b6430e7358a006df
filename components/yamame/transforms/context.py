"""The context of a decision, added to any TorchRL environment.

Writes at the root and under ``next``, each ``[*B, 1]`` unless said otherwise:

=============== ======================= ============================================================
``prev_action`` float32 ``[*B, A]``     action executed at t-1, encoded by `yamame.actions`; zeros at t=0
``prev_reward`` float32                 raw reward received on arrival at t; 0 at t=0
``time``        float32                 t / horizon, at most 1; absent without a horizon
``trial_start`` bool                    a trial starts here
``step_index``  int64                   t
``is_init``     bool                    an episode starts here: memory must be fresh
=============== ======================= ============================================================

Only the environment's reset starts an episode (t=0): a partial reset touches its rows and no other. The
transform keeps no state of its own, everything comes from the tensordict at t. **A key that the environment
emits itself is left as it is**: its own ``is_init`` (or that of an `InitTracker` below) stays TorchRL's
signal to forget, its own ``trial_start`` stays the mark of inner episodes (a k-trial wrapper's), and its own
``step_index`` is what ``time`` counts.
"""

from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import _unravel_key_to_tuple, unravel_key
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase, Transform

from yamame.actions import ActionSpace, action_space_from_spec

_EXECUTED = "_executed_action"


@dataclass(frozen=True)
class _Plan:
    """What the parent environment determines: found once, on first use."""

    space: ActionSpace
    written: tuple[str, ...]
    reset_key: NestedKey

    def sibling(self, leaf: str) -> NestedKey:
        return unravel_key((*_unravel_key_to_tuple(self.reset_key)[:-1], leaf))


class ContextTransform(Transform):
    """Adds previous action and reward, time, step index, ``trial_start`` and ``is_init``.

    See the module's docstring for the keys. Append it last: the previous action is the one handed to the
    transform, before any transform below it changes it.

    Args:
        horizon: Length of an episode in steps, which makes time known to the agent; None if there is none.
        terminate_at_horizon: Whether an episode that reaches the horizon is *terminated* there:
            ``terminated`` and ``done`` are set, ``truncated`` is cleared, whatever the environment said. An
            agent that sees the time solves a finite-horizon problem, whose value ends with it. Otherwise the
            horizon is only the unit of ``time`` and the environment's own truncation is bootstrapped.
            Truncations before the horizon stay.
        action_key: Key of the action.
        reward_key: Key of the reward, one number per row.

    Raises:
        ValueError: If ``horizon`` is not positive, or the environment has several reset signals or a reward
            of more than one number.

    >>> from torchrl.envs import GymEnv, TransformedEnv
    >>> env = TransformedEnv(GymEnv("CartPole-v1"), ContextTransform(horizon=500))
    >>> td = env.rollout(3)
    >>> td["time"].flatten().tolist(), td["is_init"].flatten().tolist()
    ([0.0, 0.0020000000949949026, 0.004000000189989805], [True, False, False])
    """

    def __init__(
        self,
        horizon: int | None = None,
        *,
        terminate_at_horizon: bool = True,
        action_key: NestedKey = "action",
        reward_key: NestedKey = "reward",
    ) -> None:
        super().__init__()
        if horizon is not None and horizon < 1:
            raise ValueError(f"ContextTransform: horizon must be positive, got {horizon}")
        self.horizon = horizon
        self.terminate_at_horizon = terminate_at_horizon
        self.action_key = unravel_key(action_key)
        self.reward_key = unravel_key(reward_key)
        self._plan: _Plan | None = None

    def set_container(self, container: Transform | EnvBase) -> None:
        """Attaches the transform; what an earlier environment determined is forgotten."""
        self._plan = None
        super().set_container(container)

    def empty_cache(self) -> None:
        """Forgets what the environment determined."""
        self._plan = None
        super().empty_cache()

    @property
    def plan(self) -> _Plan:
        """What the environment below determines."""
        if self._plan is None:
            self._plan = self._make_plan(self.parent)
        return self._plan

    def _make_plan(self, env: EnvBase) -> _Plan:
        if len(env.reset_keys) != 1:
            raise ValueError(
                f"ContextTransform: the environment must have one reset signal, got {env.reset_keys}"
            )
        batch_dims = len(env.batch_size)
        reward_shape = env.full_reward_spec[self.reward_key].shape[batch_dims:]
        if reward_shape.numel() != 1:
            raise ValueError(
                f"ContextTransform: reward must be one number per row, got shape {tuple(reward_shape)}"
            )
        space = action_space_from_spec(env.full_action_spec[self.action_key], batch_dims=batch_dims)
        written = {"prev_action", "prev_reward", "trial_start", "step_index", "is_init"}
        if self.horizon is not None:
            written.add("time")
        written -= set(env.observation_spec.keys())
        return _Plan(space, tuple(sorted(written)), env.reset_keys[0])

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get(self.action_key, None)
        if action is not None and "prev_action" in self.plan.written:
            tensordict.set(_EXECUTED, self.plan.space.encode(action))
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        plan = self.plan
        batch = tensordict_reset.batch_size
        device = tensordict_reset.get(plan.sibling("done")).device
        reset = tensordict.get(plan.reset_key, None)
        if reset is None:
            first = torch.ones(*batch, 1, dtype=torch.bool, device=device)
        else:
            first = reset.reshape(*batch, 1).clone()
        zero = torch.zeros(*batch, 1, device=device)
        values = {
            "prev_action": torch.zeros(*batch, plan.space.encoded_size, device=device),
            "prev_reward": zero,
            "time": zero.clone(),
            "trial_start": first,
            "step_index": torch.zeros(*batch, 1, dtype=torch.int64, device=device),
            "is_init": first.clone(),
        }
        for key in plan.written:
            tensordict_reset.set(key, values[key])
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        plan = self.plan
        batch = next_tensordict.batch_size
        if "step_index" in plan.written:
            step_index = tensordict.get("step_index") + 1
        else:
            step_index = next_tensordict.get("step_index")
        no = torch.zeros_like(step_index, dtype=torch.bool)
        values = {
            "prev_action": tensordict.get(_EXECUTED, None),
            "prev_reward": next_tensordict.get(self.reward_key).reshape(*batch, 1).to(torch.float32),
            "time": self._time(step_index),
            "trial_start": no,
            "step_index": step_index,
            "is_init": no.clone(),
        }
        stepped = tensordict.get("_step", None)
        for key in plan.written:
            value = values[key]
            if stepped is not None:  # rows that were not stepped keep what they had
                value = torch.where(stepped.reshape(*batch, 1), value, tensordict.get(key))
            next_tensordict.set(key, value)
        if self.horizon is not None and self.terminate_at_horizon:
            self._terminate(next_tensordict, next_tensordict.get("step_index") >= self.horizon)
        return next_tensordict

    def _time(self, step_index: Tensor) -> Tensor | None:
        if self.horizon is None:
            return None
        return (step_index / self.horizon).clamp(max=1.0).to(torch.float32)

    def _terminate(self, next_tensordict: TensorDictBase, ended: Tensor) -> None:
        for leaf in ("done", "terminated", "truncated"):
            key = self.plan.sibling(leaf)
            flag = next_tensordict.get(key, None)
            if flag is not None:
                here = ended.reshape(flag.shape)
                next_tensordict.set(key, flag & ~here if leaf == "truncated" else flag | here)

    def _reset_on_native_autoreset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        raise NotImplementedError("ContextTransform: environments that reset themselves are not supported")

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Not available: the context is made where the environment steps, not in a replay buffer."""
        raise NotImplementedError(
            "ContextTransform: append it to an environment, it does nothing to stored data"
        )

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Declares the keys that are written."""
        plan = self.plan
        shape, device = (*observation_spec.shape, 1), self.parent.device
        flag = Categorical(2, shape=shape, dtype=torch.bool, device=device)
        action_shape = (*observation_spec.shape, plan.space.encoded_size)
        specs: dict[str, TensorSpec] = {
            "prev_action": Bounded(-1.0, 1.0, shape=action_shape, dtype=torch.float32, device=device),
            "prev_reward": Unbounded(shape=shape, dtype=torch.float32, device=device),
            "time": Bounded(0.0, 1.0, shape=shape, dtype=torch.float32, device=device),
            "trial_start": flag,
            "step_index": Unbounded(shape=shape, dtype=torch.int64, device=device),
            "is_init": flag.clone(),
        }
        for key in plan.written:
            observation_spec[key] = specs[key]
        return observation_spec
