"""The context of a decision, added to any TorchRL environment.

Writes the entries `yamame.keys.CONTEXT`, which `yamame.keys` describes, at the root and under
``next``. `context_values` computes them and `context_specs` declares them, for `ContextTransform`
and for every environment that writes them itself.

Only the environment's reset starts an episode (t=0): a partial reset touches its envs and no other.
The transform keeps no state of its own, everything comes from the tensordict at t. **A key that the
environment emits itself is left as it is**: its own ``is_init`` (or that of an `InitTracker` below)
stays TorchRL's signal to forget, its own ``trial_start`` stays the mark of inner episodes (a
k-trial wrapper's), and its own ``step_index`` is what ``time`` counts.
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
from yamame.checks import require
from yamame.keys import CONTEXT, DONE

_EXECUTED = "_executed_action"


def context_specs(
    batch_size: Sequence[int],
    *,
    encoded_size: int,
    horizon: int | None,
    ends_there: bool = True,
    device: str | torch.device | None = None,
) -> dict[str, TensorSpec]:
    """The specs of the context entries.

    Args:
        batch_size: Of the environment: ``[*B]``.
        encoded_size: A, the size of an encoded action.
        horizon: Length of an episode in steps, if there is one.
        ends_there: Whether no episode is longer.
        device: Where the entries are.
    """
    shape = torch.Size((*batch_size, 1))
    action = torch.Size((*batch_size, encoded_size))
    flag = Binary(n=1, shape=shape, dtype=torch.bool, device=device)
    if horizon is not None and ends_there:
        step_index = Bounded(0, horizon, shape=shape, dtype=torch.int64, device=device)
    else:
        step_index = Unbounded(shape=shape, dtype=torch.int64, device=device)
    specs: dict[str, TensorSpec] = {
        "prev_action": Bounded(-1.0, 1.0, shape=action, dtype=torch.float32, device=device),
        "prev_reward": Unbounded(shape=shape, dtype=torch.float32, device=device),
        "time": Bounded(0.0, 1.0, shape=shape, dtype=torch.float32, device=device),
        "trial_start": flag,
        "step_index": step_index,
        "is_init": flag.clone(),
    }
    return {key: specs[key] for key in CONTEXT if horizon is not None or key != "time"}


def context_values(
    step_index: Tensor,
    *,
    prev_action: Tensor,
    prev_reward: Tensor,
    is_init: Tensor,
    trial_start: Tensor | None = None,
    horizon: int | Tensor | None,
) -> dict[str, Tensor]:
    """The context entries of a timestep, each ``[*B, 1]`` but for ``prev_action [*B, A]``.

    Args:
        step_index: int64: t.
        prev_action: float32, encoded; zeros at t=0.
        prev_reward: float32; 0 at t=0.
        is_init: bool.
        trial_start: bool; None: trials start with episodes.
        horizon: Length of an episode in steps, if there is one.

    >>> no = torch.tensor([False])
    >>> values = context_values(
    ...     torch.tensor([3]), prev_action=torch.ones(2), prev_reward=torch.ones(1), is_init=no, horizon=4
    ... )
    >>> values["time"], values["trial_start"]
    (tensor([0.7500]), tensor([False]))
    """
    time = (
        {} if horizon is None else {"time": (step_index / horizon).clamp(max=1.0).to(torch.float32)}
    )
    return {
        "prev_action": prev_action,
        "prev_reward": prev_reward,
        **time,
        "trial_start": is_init.clone() if trial_start is None else trial_start,
        "step_index": step_index,
        "is_init": is_init,
    }


@dataclass(frozen=True)
class _Plan:
    """What the parent environment determines, on first use: how actions are encoded, what is
    written, how it resets.
    """

    encoding: ActionEncoding
    written: tuple[str, ...]
    reset_key: NestedKey

    def sibling(self, leaf: str) -> NestedKey:
        return unravel_key((*_unravel_key_to_tuple(self.reset_key)[:-1], leaf))


class ContextTransform(Transform):
    """Adds previous action and reward, time, step index, ``trial_start`` and ``is_init``.

    See the module's docstring for the keys. Append it last: the previous action is the one handed
    to the transform, before any transform below it changes it.

    Args:
        horizon: Length of an episode in steps, which makes time known to the agent; None if there
            is none.
        terminate_at_horizon: Whether an episode that reaches the horizon is *terminated* there:
            ``terminated`` and ``done`` are set, ``truncated`` is cleared, whatever the environment
            said. An agent that sees the time solves a finite-horizon problem, whose value ends with
            it. Otherwise the horizon is only the unit of ``time`` and the environment's own
            truncation is bootstrapped. Truncations before the horizon stay.
        action_key: Key of the action.
        reward_key: Key of the reward, one number per env.

    Raises:
        ValueError: If ``horizon`` is not positive, or the environment has several reset signals or
            a reward of more than one number.

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
        require(
            "ContextTransform", "horizon", horizon, horizon is None or horizon >= 1, "be positive"
        )
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
        if self._plan is not None:
            return self._plan
        env = self.parent
        one_reset = len(env.reset_keys) == 1
        require(
            "ContextTransform",
            "reset signals of the environment",
            env.reset_keys,
            one_reset,
            "be one",
        )
        batch_dims = len(env.batch_size)
        reward = env.full_reward_spec[self.reward_key].shape[batch_dims:]
        require(
            "ContextTransform",
            "shape of reward",
            tuple(reward),
            reward.numel() == 1,
            "be of one number",
        )
        encoding = ActionEncoding(env.full_action_spec[self.action_key], batch_dims=batch_dims)
        emitted = set(env.observation_spec.keys())
        hidden = emitted if self.horizon is not None else {*emitted, "time"}
        written = tuple(key for key in CONTEXT if key not in hidden)
        self._plan = _Plan(encoding, written, env.reset_keys[0])
        return self._plan

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get(self.action_key, None)
        if action is not None and "prev_action" in self.plan.written:
            tensordict.set(_EXECUTED, self.plan.encoding.encode(action))
        return tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        plan = self.plan
        batch = tensordict_reset.batch_size
        device = tensordict_reset.get(plan.sibling("done")).device
        everywhere = torch.ones(*batch, 1, dtype=torch.bool, device=device)
        first = tensordict.get(plan.reset_key, everywhere).reshape(*batch, 1).clone()
        values = context_values(
            torch.zeros(*batch, 1, dtype=torch.int64, device=device),
            prev_action=torch.zeros(*batch, plan.encoding.encoded_size, device=device),
            prev_reward=torch.zeros(*batch, 1, device=device),
            is_init=first,
            horizon=self.horizon,
        )
        for key in plan.written:
            tensordict_reset.set(key, values[key])
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        plan = self.plan
        batch = next_tensordict.batch_size
        counts = "step_index" in plan.written
        step_index = (
            tensordict.get("step_index") + 1 if counts else next_tensordict.get("step_index")
        )
        values = context_values(
            step_index,
            prev_action=tensordict.get(_EXECUTED, None),
            prev_reward=next_tensordict.get(self.reward_key).reshape(*batch, 1).to(torch.float32),
            is_init=torch.zeros_like(step_index, dtype=torch.bool),
            horizon=self.horizon,
        )
        stepped = tensordict.get("_step", None)
        for key in plan.written:
            value = values[key]
            if stepped is not None:  # envs that were not stepped keep what they had
                value = torch.where(stepped.reshape(*batch, 1), value, tensordict.get(key))
            next_tensordict.set(key, value)
        if self.horizon is not None and self.terminate_at_horizon:
            ended = next_tensordict.get("step_index") >= self.horizon
            for leaf in DONE:
                flag = next_tensordict.get(plan.sibling(leaf), None)
                if flag is not None:
                    here = ended.reshape(flag.shape)
                    flag = flag & ~here if leaf == "truncated" else flag | here
                    next_tensordict.set(plan.sibling(leaf), flag)
        return next_tensordict

    def _reset_on_native_autoreset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        raise NotImplementedError(
            "ContextTransform: environments that reset themselves are not supported"
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Not available: the context is made where the environment steps, not in a replay
        buffer.
        """
        raise NotImplementedError(
            "ContextTransform: append it to an environment, it does nothing to stored data"
        )

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Declares the keys that are written."""
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
