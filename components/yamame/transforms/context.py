"""The context of a decision, added to any TorchRL environment.

Writes the entries `yamame.keys.CONTEXT`, which `yamame.keys` describes, at the root and under
``next``. `context_values` computes them and `context_specs` declares them, for `ContextTransform`
and for every environment that writes them itself.

Only the environment's reset starts an episode (t=0): a partial reset affects its envs and no other.
The transform has no state of its own, everything is computed from the tensordict at t. **A key that
the environment emits itself is left unchanged**: its own ``is_init`` (or that of an `InitTracker`
below) stays TorchRL's signal to forget, its own ``trial_start`` stays the mark of inner episodes
(of a k-trial wrapper), and its own ``step_index`` determines ``time``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import _unravel_key_to_tuple, unravel_key
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase, Transform

from yamame.actions.encoding import ActionEncoding
from yamame.checks import PositiveInt, check_bounds, require
from yamame.keys import CONTEXT, DONE

_EXECUTED = "_executed_action"
"""Key of the encoded action, between the inverse call and the step."""
_UNLIMITED = 2**31
"""Steps from which the bound of a spec is that of its dtype."""


def context_specs(
    batch_size: Sequence[int],
    *,
    encoded_size: int,
    horizon: int | None,
    ends_there: bool = True,
    device: str | torch.device | None = None,
) -> dict[str, TensorSpec]:
    """Return the specs of the context entries.

    Args:
        batch_size: Batch size of the environment, ``[*B]``.
        encoded_size: Size A of an encoded action.
        horizon: Length of an episode in steps, or None; without it there is no ``time``.
        ends_there: Whether no episode is longer than the horizon.
        device: Device of the entries.
    """
    shape = torch.Size((*batch_size, 1))
    action_shape = torch.Size((*batch_size, encoded_size))
    flag = Binary(n=1, shape=shape, dtype=torch.bool, device=device)
    step_index: TensorSpec = Unbounded(shape=shape, dtype=torch.int64, device=device)
    if horizon is not None and ends_there:
        step_index = Bounded(0, horizon, shape=shape, dtype=torch.int64, device=device)

    number = Unbounded(shape=shape, dtype=torch.float32, device=device)
    share = Bounded(0.0, 1.0, shape=shape, dtype=torch.float32, device=device)
    action = Bounded(-1.0, 1.0, shape=action_shape, dtype=torch.float32, device=device)

    specs: dict[str, TensorSpec] = {"prev_action": action, "prev_reward": number}
    if horizon is not None:
        specs["time"] = share
    specs["trial_start"] = flag
    specs["step_index"] = step_index
    specs["is_init"] = flag.clone()
    # Environments declare and stack entries in this order.
    assert list(specs) == [key for key in CONTEXT if key in specs]
    return specs


def episode_limit(observation_spec: Composite) -> int | None:
    """Return the steps of the longest episode; None if the spec declares no limit.

    Args:
        observation_spec: Spec of an environment; without ``step_index`` it declares no limit.
    """
    if "step_index" not in observation_spec.keys():
        return None
    bound = getattr(observation_spec["step_index"].space, "high", None)
    steps = None if bound is None else int(bound.max())
    return None if steps is None or steps >= _UNLIMITED else steps


def context_values(
    step_index: Tensor,
    *,
    prev_action: Tensor,
    prev_reward: Tensor,
    is_init: Tensor,
    trial_start: Tensor | None = None,
    horizon: int | Tensor | None,
) -> dict[str, Tensor]:
    """Return the context entries of a timestep, ``[*B, 1]`` except for ``prev_action`` ``[*B, A]``.

    Args:
        step_index: ``[*B, 1]`` int64, number t of steps since the reset.
        prev_action: ``[*B, A]`` float32, encoded; zeros at t=0.
        prev_reward: ``[*B, 1]`` float32; 0 at t=0.
        is_init: ``[*B, 1]`` bool.
        trial_start: ``[*B, 1]`` bool; None if trials start with episodes.
        horizon: Length of an episode in steps, or None; without it there is no ``time``.

    >>> no = torch.tensor([False])
    >>> one = torch.ones(1)
    >>> values = context_values(
    ...     torch.tensor([3]), prev_action=one, prev_reward=one, is_init=no, horizon=4
    ... )
    >>> values["time"], values["trial_start"]
    (tensor([0.7500]), tensor([False]))
    """
    values = {"prev_action": prev_action, "prev_reward": prev_reward}
    if horizon is not None:
        # An episode may be longer than a horizon that only serves as a unit.
        share = (step_index / horizon).clamp(max=1.0)
        values["time"] = share.to(torch.float32)
    # A copy: no entry may share memory with another.
    values["trial_start"] = is_init.clone() if trial_start is None else trial_start
    values["step_index"] = step_index
    values["is_init"] = is_init
    return values


@dataclass(frozen=True)
class _Plan:
    """Properties of the parent environment that the transform depends on.

    Attributes:
        encoding: Encoding of its actions.
        written: Context entries that it does not emit itself.
        reset_key: Key of its reset signal.
    """

    encoding: ActionEncoding
    written: tuple[str, ...]
    reset_key: NestedKey

    def sibling(self, leaf: str) -> NestedKey:
        """Return the key of a flag beside the reset signal."""
        parents = _unravel_key_to_tuple(self.reset_key)[:-1]
        return unravel_key((*parents, leaf))


class ContextTransform(Transform):
    """Adds previous action and reward, time, step index, ``trial_start`` and ``is_init``.

    See the module for the keys. Append it last: the previous action is the one passed to this
    transform, before any transform below changes it.

    Args:
        horizon: Length of an episode in steps, from which ``time`` is computed; None if there is
            none.
        terminate_at_horizon: Whether an episode that reaches the horizon is *terminated* there:
            ``terminated`` and ``done`` are set, ``truncated`` is cleared, whatever the environment
            returned. An agent that observes the time solves a finite-horizon problem, whose value
            ends with it. If False the horizon is only the unit of ``time``, and the environment's
            own truncation is bootstrapped. Truncations before the horizon are unchanged.
        action_key: Key of the action.
        reward_key: Key of the reward, one number per env.

    Raises:
        ValueError: If ``horizon`` is not positive; when attached, if the environment has several
            reset signals or a reward of more than one number.

    >>> from torchrl.envs import GymEnv, TransformedEnv
    >>> env = TransformedEnv(GymEnv("CartPole-v1"), ContextTransform(horizon=500))
    >>> td = env.rollout(3)
    >>> td["time"].flatten().tolist(), td["is_init"].flatten().tolist()
    ([0.0, 0.0020000000949949026, 0.004000000189989805], [True, False, False])
    """

    @check_bounds
    def __init__(
        self,
        horizon: PositiveInt | None = None,
        *,
        terminate_at_horizon: bool = True,
        action_key: NestedKey = "action",
        reward_key: NestedKey = "reward",
    ) -> None:
        super().__init__()
        self.horizon = horizon
        self.terminate_at_horizon = terminate_at_horizon
        self.action_key = unravel_key(action_key)
        self.reward_key = unravel_key(reward_key)
        self._plan: _Plan | None = None

    def set_container(self, container: Transform | EnvBase) -> None:
        """Attach the transform to an environment."""
        self._plan = None  # of another environment
        super().set_container(container)

    def empty_cache(self) -> None:
        """Drop everything derived from the environment."""
        self._plan = None
        super().empty_cache()

    @property
    def plan(self) -> _Plan:
        """Properties of the environment below, read at the first use."""
        if self._plan is None:
            self._plan = self._read_plan(self.parent)
        return self._plan

    def _read_plan(self, env: EnvBase) -> _Plan:
        owner = "ContextTransform"
        # Several signals would leave undefined which envs start.
        has_one = len(env.reset_keys) == 1
        require(owner, "reset signals of the environment", env.reset_keys, has_one, "be one")
        batch_dims = len(env.batch_size)
        reward_shape = env.full_reward_spec[self.reward_key].shape[batch_dims:]
        is_number = reward_shape.numel() == 1
        require(owner, "shape of reward", tuple(reward_shape), is_number, "be of one number")

        encoding = ActionEncoding(env.full_action_spec[self.action_key], batch_dims=batch_dims)
        not_written = set(env.observation_spec.keys())
        if self.horizon is None:
            not_written.add("time")
        written = tuple(key for key in CONTEXT if key not in not_written)
        return _Plan(encoding, written, env.reset_keys[0])

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get(self.action_key, None)
        if action is not None and "prev_action" in self.plan.written:
            # Transforms below and the environment may change the action.
            tensordict.set(_EXECUTED, self.plan.encoding.encode(action))
        return tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        plan = self.plan
        batch = tensordict_reset.batch_size
        device = tensordict_reset.get(plan.sibling("done")).device
        # Without a signal all envs are reset.
        everywhere = torch.ones(*batch, 1, dtype=torch.bool, device=device)
        is_reset = tensordict.get(plan.reset_key, everywhere)
        is_init = is_reset.reshape(*batch, 1).clone()
        step_index = torch.zeros(*batch, 1, dtype=torch.int64, device=device)
        no_action = torch.zeros(*batch, plan.encoding.encoded_size, device=device)
        no_reward = torch.zeros(*batch, 1, device=device)
        values = context_values(
            step_index,
            prev_action=no_action,
            prev_reward=no_reward,
            is_init=is_init,
            horizon=self.horizon,
        )
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
        prev_action = tensordict.get(_EXECUTED, None)
        reward = next_tensordict.get(self.reward_key)
        prev_reward = reward.reshape(*batch, 1).to(torch.float32)
        is_init = torch.zeros_like(step_index, dtype=torch.bool)
        values = context_values(
            step_index,
            prev_action=prev_action,
            prev_reward=prev_reward,
            is_init=is_init,
            horizon=self.horizon,
        )

        is_stepped = tensordict.get("_step", None)
        if is_stepped is not None:
            is_stepped = is_stepped.reshape(*batch, 1)
        for key in plan.written:
            value = values[key]
            if is_stepped is not None:
                # Envs that were not stepped keep their values.
                value = torch.where(is_stepped, value, tensordict.get(key))
            next_tensordict.set(key, value)
        if self.horizon is not None and self.terminate_at_horizon:
            self._terminate(next_tensordict, self.horizon)
        return next_tensordict

    def _terminate(self, next_tensordict: TensorDictBase, horizon: int) -> None:
        """Terminate the envs that have reached the horizon."""
        is_over = next_tensordict.get("step_index") >= horizon
        for leaf in DONE:
            key = self.plan.sibling(leaf)
            flag = next_tensordict.get(key, None)
            if flag is None:
                continue
            here = is_over.reshape(flag.shape)
            # A truncation is bootstrapped, a termination is not.
            flag = flag & ~here if leaf == "truncated" else flag | here
            next_tensordict.set(key, flag)

    def _reset_on_native_autoreset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        raise NotImplementedError(
            "ContextTransform: environments that reset themselves are not supported"
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Raise: the context is computed at steps of an environment, not in a replay buffer."""
        raise NotImplementedError(
            "ContextTransform: append it to an environment, it does nothing to stored data"
        )

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Declare the keys that are written."""
        plan = self.plan
        specs = context_specs(
            observation_spec.shape,
            encoded_size=plan.encoding.encoded_size,
            horizon=self.horizon,
            ends_there=self.terminate_at_horizon,
            device=self.parent.device,
        )
        for key in plan.written:
            observation_spec[key] = specs[key]
        return observation_spec
