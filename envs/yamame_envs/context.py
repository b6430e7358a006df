"""Base class of all environments of this package: context entries, seeds, step and reset.

A `ContextEnv` plays N independent envs. Besides its own observation it writes the context of
`yamame.transforms.context` at every timestep (``prev_action``, ``prev_reward``, ``time`` if there
is a time limit, ``trial_start``, ``step_index``, ``is_init``) and, where it is known, ``success``
``[N, 1]`` bool: the whole task is done.

Episode e of env i plays the task of seed ``fold(fold(seed, i), e)``: the same seed replays the same
tasks, and the tasks of an env do not depend on the number of envs.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase
from yamame.actions import ActionEncoding
from yamame.checks import Bounds, PositiveInt, check_bounds, require
from yamame.execution.capturing import capturing
from yamame.keys import DONE
from yamame.transforms import context_specs

from yamame_envs.former_hooks import CONTEXT_HOOKS, former_attribute, link_former_names
from yamame_envs.streams import fold


class ContextEnv(EnvBase):
    """Base class with specs, seeds, and a fused step that begins new episodes.

    Most environments in tensor code are subclasses of `BatchedEnv`, which implements the hooks of
    this class. A direct subclass steps something else, such as a simulator with a batch of its own.
    It implements the hooks `begin_episodes`, `advance`, `current_timestep` and `restart`, and
    ``state_dict`` and ``load_state_dict`` for an exact resume. If a second episode of a task
    differs from the first (`RepeatedTrials`), it overrides `begin_again`; if its steps can be
    captured in a graph, `capture_obstacle`. Hooks never read entries of other envs, so the episodes
    of an env do not depend on the number of envs. `yamame_envs.testing.check_env` checks these
    laws.

    ``reset`` takes, besides ``_reset``, an optional entry ``task_seed`` ``[N, 1]`` int64: the envs
    that reset play exactly these tasks, and their numbered episodes wait. ``step_and_maybe_reset``
    is fused: it does in one pass what `EnvBase` does in several, but does not carry the executed
    action to the next timestep.

    Args:
        num_envs: Number of envs N.
        time_limit: Steps after which an episode is over; None without a visible limit.
        action: Spec of one env's action, see `yamame.actions.ActionEncoding`.
        observations: Spec of one env for every observed entry.
        tells_success: Write the entry ``success``.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Attributes:
        action_encoding: Encoding of actions as ``prev_action`` (`yamame.actions.ActionEncoding`).
        time_limit: The argument.
        horizon: ``time_limit`` as a scalar float32 tensor on the device; 1 without a limit.

    Raises:
        ArgumentError: A number is out of its range.
    """

    _former_names: ClassVar[Mapping[str, str]] = CONTEXT_HOOKS
    _encoding = former_attribute("action_encoding")
    _time_limit = former_attribute("time_limit")
    _horizon = former_attribute("horizon")

    num_trials: int | None = 1
    """Trials of a task within an episode; None: as many as the time limit allows."""
    overrides: tuple[str, ...] = ()
    """Entries of a task that a reset may replace by others than those of the task seed."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        link_former_names(cls, cls._former_names)

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt,
        time_limit: PositiveInt | None,
        action: TensorSpec,
        observations: Mapping[str, TensorSpec],
        tells_success: bool = True,
        seed: Annotated[int, Bounds(least=0, most=2**63 - 1)],
        device: str | torch.device,
    ) -> None:
        require(type(self).__name__, "seed", seed, seed is not None, "be an integer")
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self.is_closed = False
        self.action_encoding = ActionEncoding(action)
        self.time_limit = time_limit
        self._set_specs(observations, action, tells_success)
        # Entries that the environment reads or writes; all others belong to the policy.
        self._known = {"action", "reward", "next", "_reset", "task_seed", *self.overrides}
        self._known.update(self.observation_spec.keys())
        self._known.update(self.full_done_spec.keys())
        horizon = torch.tensor(float(time_limit or 1), device=self.device)
        self.register_buffer("horizon", horizon, persistent=False)
        self.set_seed(int(seed))

    @property
    def label(self) -> str:
        """Name of this environment in messages."""
        return type(self).__name__

    def _set_specs(
        self, observations: Mapping[str, TensorSpec], action: TensorSpec, tells_success: bool
    ) -> None:
        num_envs = self.batch_size[0]
        column: dict[str, Any] = {"shape": (num_envs, 1), "device": self.device}
        entries = {name: spec.expand(num_envs, *spec.shape) for name, spec in observations.items()}
        entries |= context_specs(
            self.batch_size,
            encoded_size=self.action_encoding.encoded_size,
            horizon=self.time_limit,
            device=self.device,
        )
        if tells_success:
            entries["success"] = Binary(n=1, dtype=torch.bool, **column)
        self.observation_spec = Composite(entries, shape=self.batch_size, device=self.device)
        self.action_spec = action.to(self.device).expand(num_envs, *action.shape)
        self.reward_spec = Unbounded(dtype=torch.float32, **column)
        flag = Categorical(2, dtype=torch.bool, **column)
        # One spec object per entry, because TorchRL changes them in place.
        done = {name: flag.clone() for name in DONE}
        self.full_done_spec = Composite(done, shape=self.batch_size, device=self.device)

    @property
    def novelty(self) -> str | None:
        """Description of what is new on the other side of a split, such as ``"new mazes"``.

        None: only seeds differ, so training may meet the same tasks.
        """
        return None

    def task_hashes(self) -> Tensor | None:
        """Return the hashes ``[N]`` int64 of the current tasks; None if they are unknown.

        It must be called after a reset. Equal tasks have equal hashes, whatever their seeds.
        Evaluations count the different tasks, and take them as the unit of intervals
        (`yamame.evaluation.EvaluationResult`).
        """
        return None

    @property
    def plays_all_tasks(self) -> bool:
        """True if there are so few tasks that an evaluation plays all of them.

        They are then no sample of a larger set.
        """
        return False

    @property
    def capture_obstacle(self) -> str | None:
        """Reason why steps cannot be captured, see `yamame.execution.capturing`; None if they can.

        Steps that can be captured never wait for the device, so they also do not test whether any
        episode ends.
        """
        return self.label

    @property
    @abstractmethod
    def current_timestep(self) -> Mapping[str, Any]:
        """Entries ``[N, ...]`` of the current timestep of all envs; empty before the first reset.

        They are those of ``observation_spec`` and ``full_done_spec``.
        """

    @abstractmethod
    def restart(self, streams: Tensor) -> None:
        """Set the streams, and count episodes from 0 again.

        Episode e of env i has the task seed ``fold(streams[i], e)`` (`yamame_envs.streams.fold`),
        from the next reset on. The base constructor calls this hook, before the constructor of a
        subclass continues.

        Args:
            streams: ``[N]`` int64, key of each env.
        """

    @abstractmethod
    def begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        """Begin an episode in some envs; the other envs continue unchanged.

        Afterwards `current_timestep` holds the first timestep of these episodes, with ``is_init``
        and ``trial_start`` set, ``step_index``, ``prev_action`` and ``prev_reward`` 0, and no entry
        of ``full_done_spec`` set.

        Args:
            begins: ``[N]`` bool, the envs. The first call sets all of them.
            tensordict: Argument of `reset`; None where a step begins the episode. If
                `requested_seeds` finds task seeds in it, these are played and the numbers of
                episodes do not change; otherwise each env plays its next numbered episode.
        """

    def begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """Begin another episode of the current task in some envs.

        By default, it is `begin_episodes` with the same task seeds.

        Args:
            begins: ``[N]`` bool, the envs.
            task_seed: ``[N, 1]`` int64, seeds of the current tasks of all envs.
        """
        self.begin_episodes(begins, self._wrap({"task_seed": task_seed}))

    def reserve(self, num_steps: int) -> bool:
        """Do the work of the host for ``num_steps`` steps in advance, so that no step waits for it.

        It must be called before steps that are captured (`torch.compile`, CUDA graphs). Other steps
        call it when they need it.

        Returns:
            True if steps can be captured.

        Raises:
            ArgumentError: An action of an earlier step was out of bounds.
        """
        return self.capture_obstacle is None

    @abstractmethod
    def advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """Step all envs.

        Afterwards `current_timestep` holds the entries of the next timestep. Envs whose episode is
        over are stepped as well; their entries are not read.

        Args:
            action: ``[N, ...]``, as in ``action_spec``. `check_action` raises if one is out of
                bounds.

        Returns:
            The entries ``[N, ...]`` of the next timestep, which no later step changes in place, and
            the reward ``[N, 1]`` float32 as a separate tensor.
        """

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        index = torch.arange(self.batch_size[0], device=self.device)
        self.restart(fold(torch.full_like(index, seed), index))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        begins = self._resetting(tensordict)
        if self.device.type != "cpu":
            # Raises if an action of an earlier step was out of bounds.
            self.reserve(1)
        if self._may_be_any(begins):
            self.begin_episodes(begins, tensordict)
        return self._wrap(dict(self.current_timestep))

    def _resetting(self, tensordict: TensorDictBase | None) -> Tensor:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            return torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        begins = mask.view(self.batch_size)
        if not self.current_timestep:
            got = f"{int(begins.sum())} envs"
            condition = "cover all envs at the first reset"
            require(self.label, "_reset", got, bool(begins.all()), condition)
        return begins

    def _may_be_any(self, mask: Tensor) -> bool:
        """Return False only if a mask is known to be empty."""
        # Reading a mask on the device would wait for it, and cannot be captured. Steps that can be
        # captured are correct for an empty mask as well.
        is_costly = capturing() or not mask.is_cpu
        if is_costly and self.capture_obstacle is None:
            return True
        return bool(mask.any())

    def requested_seeds(self, tensordict: TensorDictBase | None) -> Tensor | None:
        """Return the task seeds ``[N]`` int64 in the argument of a reset; None if there are none.

        Raises:
            ArgumentError: The entry ``task_seed`` is not ``[N, 1]`` int64.
        """
        seeds = None if tensordict is None else tensordict.get("task_seed", None)
        if seeds is None:
            return None
        shape = (self.batch_size[0], 1)
        fits = seeds.shape == shape and seeds.dtype == torch.int64
        got = f"{seeds.dtype} {tuple(seeds.shape)}"
        require(self.label, "task_seed", got, fits, f"be int64 {shape}")
        return seeds[:, 0]

    def check_action(self, action: Tensor, step_index: Tensor) -> None:
        """Raise if actions have another size, or one is out of bounds.

        Args:
            action: ``[N, ...]``.
            step_index: ``[N, 1]``, for the message.

        Raises:
            ValueError: An action is out of bounds, or there are more or fewer numbers than envs
                times those of an action.
        """
        self.check_action_size(action)
        low, high = self.action_encoding.bounds(action.device)
        in_bounds = (action >= low) & (action <= high)
        if not in_bounds.all():
            env_id = int((~in_bounds).nonzero()[0, 0])
            raise ValueError(
                f"{self.label}: action must be in {low.tolist()}..{high.tolist()}, "
                f"got {action[env_id].tolist()} in env {env_id} at step {int(step_index[env_id])}"
            )

    def check_action_size(self, action: Tensor) -> None:
        """Raise ValueError if there are more or fewer numbers than envs times those of an
        action.
        """
        size = math.prod(self.action_encoding.action_shape)
        if action.numel() != self.batch_size[0] * size:
            raise ValueError(
                f"{self.label}: action must have shape {list(self.action_spec.shape)}, got "
                f"{list(action.shape)}; an index is the argmax of a one-hot action"
            )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        timestep, reward = self.advance(self._action(tensordict))
        return self._wrap({**timestep, "reward": reward})

    def _action(self, tensordict: TensorDictBase) -> Tensor:
        if not self.current_timestep:
            raise RuntimeError(f"{type(self).__name__}: reset must be called before step")
        return tensordict.get("action")

    def _wrap(self, entries: Mapping[str, Any]) -> TensorDict:
        # The checks of the public constructor cost more than a step.
        return TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        keys = set(tensordict.keys())
        if self.run_type_checks or "next" in keys or "_step" in keys:
            # Rare cases, which need not be fast.
            return super()._step_and_maybe_reset(tensordict)
        self._assert_tensordict_shape(tensordict)
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        timestep, reward = self.advance(self._action(tensordict))
        tensordict.set("next", self._wrap({**timestep, "reward": reward}))
        begins = timestep["done"].view(self.batch_size)
        some_begin = self._may_be_any(begins)
        if some_begin:
            self.begin_episodes(begins, None)
        root = self._wrap(dict(self.current_timestep))
        foreign = keys - self._known
        if foreign:
            # Entries of the policy stay. As in `EnvBase`, they are cleared if only some envs begin.
            kept = tensordict.select(*foreign)
            if some_begin:
                kept = kept.where(~begins | begins.all(), other=kept.empty(), pad=0)
            root.update(kept)
        return tensordict, root

    def present(self) -> TensorDict:
        """Return a copy of the current timestep, as returned by `reset` or the last step."""
        return self._wrap(dict(self.current_timestep)).clone()


link_former_names(ContextEnv, CONTEXT_HOOKS)
