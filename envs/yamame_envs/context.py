"""What all environments of this package show, and how they are stepped and reset.

A `ContextEnv` plays N independent envs. At every timestep it writes, besides its own observation,
the context that `yamame.transforms.context` describes (``prev_action``, ``prev_reward``, ``time``
if there is a time limit, ``trial_start``, ``step_index``, ``is_init``) and, where it can tell,
``success`` ``[N, 1]`` bool: the whole task is done.

Env ``i``'s ``e``-th episode plays the task of seed ``fold(fold(seed, i), e)``: the same seed
replays the same tasks, and an env's tasks do not depend on how many other envs there are.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase
from yamame.actions import ActionEncoding
from yamame.checks import require
from yamame.execution.capturing import capturing
from yamame.keys import DONE
from yamame.transforms import context_specs

from yamame_envs.streams import fold


class ContextEnv(EnvBase):
    """Base class: specs, seeds, and the fused step of envs that begin a new episode by themselves.

    A subclass says how episodes begin and how all envs are stepped: `_begin_episodes`, `_advance`,
    `_present` and `_restart`. Where its steps can be captured, it says so by `capture_obstacle`.

    ``reset`` takes, besides ``_reset``, an optional entry ``task_seed`` ``[N, 1]`` int64: the envs
    that reset play exactly these tasks, and their numbered episodes wait. ``step_and_maybe_reset``
    is fused: it does in one pass what `EnvBase` does in several, but does not carry the executed
    action to the next timestep.

    Args:
        num_envs: N, at least 1.
        time_limit: Steps after which an episode is over, at least 1; None where there is no limit
            to be seen.
        action: Spec of one env's action, see `yamame.actions.ActionEncoding`.
        observations: Spec of one env of every entry that is observed.
        tells_success: Whether ``success`` is shown.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.

    Raises:
        ValueError: If a number is out of its range.
    """

    _overrides: tuple[str, ...] = ()
    """Entries of the task that a reset may set otherwise than their task seed says."""

    def __init__(
        self,
        *,
        num_envs: int,
        time_limit: int | None,
        action: TensorSpec,
        observations: Mapping[str, TensorSpec],
        tells_success: bool = True,
        seed: int,
        device: str | torch.device,
    ) -> None:
        require(self.label, "num_envs", num_envs, num_envs >= 1, "be at least 1")
        require(
            self.label,
            "time_limit",
            time_limit,
            time_limit is None or time_limit >= 1,
            "be at least 1",
        )
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self.is_closed = False
        self._encoding = ActionEncoding(action)
        self._time_limit = time_limit
        self._set_specs(observations, action, tells_success)
        self._known = {"action", "next", "_reset", "task_seed", *self._overrides}
        self._known |= {*self.observation_spec.keys(), *self.full_done_spec.keys(), "reward"}
        horizon = torch.tensor(float(time_limit or 1), device=self.device)
        self.register_buffer("_horizon", horizon, persistent=False)
        self.set_seed(seed)

    @property
    def label(self) -> str:
        """What errors call this environment."""
        return type(self).__name__

    def _set_specs(
        self, observations: Mapping[str, TensorSpec], action: TensorSpec, tells_success: bool
    ) -> None:
        num_envs = self.batch_size[0]
        column: dict[str, Any] = {"shape": (num_envs, 1), "device": self.device}
        entries = {name: spec.expand(num_envs, *spec.shape) for name, spec in observations.items()}
        entries |= context_specs(
            self.batch_size,
            encoded_size=self._encoding.encoded_size,
            horizon=self._time_limit,
            device=self.device,
        )
        if tells_success:
            entries["success"] = Binary(n=1, dtype=torch.bool, **column)
        self.observation_spec = Composite(entries, shape=self.batch_size, device=self.device)
        self.action_spec = action.to(self.device).expand(num_envs, *action.shape)
        self.reward_spec = Unbounded(dtype=torch.float32, **column)
        flag = Categorical(2, dtype=torch.bool, **column)
        done = {name: flag.clone() for name in DONE}
        self.full_done_spec = Composite(done, shape=self.batch_size, device=self.device)

    @property
    def novelty(self) -> str | None:
        """What is new in tasks of one side of a split to an agent trained on the other side, as
        ``"new mazes"``.

        None: nothing but seeds, so that training may meet the same tasks.
        """
        return None

    def task_hashes(self) -> Tensor | None:
        """Hashes ``[N]`` int64 of the tasks that the envs play, after a reset; None where they are
        unknown.

        Equal tasks have equal hashes, whatever their seeds. Evaluations count the different tasks,
        and take them as the unit of intervals (`yamame.evaluation.EvaluationResult`).
        """
        return None

    @property
    def plays_all_tasks(self) -> bool:
        """Whether there are so few tasks that an evaluation plays all of them, which are then no
        sample of others.
        """
        return False

    @property
    def capture_obstacle(self) -> str | None:
        """What keeps steps from being captured, see `yamame.execution.capturing`; None if nothing
        does.

        Steps that can be captured never wait for the device: nobody looks whether any episode ends.
        """
        return self.label

    @property
    @abstractmethod
    def _present(self) -> Mapping[str, Any]:
        """The timestep that all envs are at; empty before the first reset."""

    @abstractmethod
    def _restart(self, streams: Tensor) -> None:
        """From the next reset on, env i's e-th episode has the task seed
        ``fold(streams[i], e)``.
        """

    @abstractmethod
    def _begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        """Begins an episode in the envs of a mask ``[N]``; ``tensordict`` is what `reset` was
        given, if anything.
        """

    def _begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """Begins another episode of the task that the envs of a mask play; the seeds are all envs'
        ``[N, 1]``.
        """
        self._begin_episodes(begins, self._wrap({"task_seed": task_seed}))

    def reserve(self, num_steps: int) -> bool:
        """Does ahead what the host has to do for so many steps, so that none of them waits for it.

        Steps see to that themselves. It must be called before steps that are captured
        (`torch.compile`, CUDA graphs).

        Returns:
            Whether steps can be captured now.

        Raises:
            ValueError: If an action of an earlier step was out of bounds.
        """
        return self.capture_obstacle is None

    @abstractmethod
    def _advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """Steps all envs; returns what is shown, and the reward ``[N, 1]`` as a tensor of its
        own.
        """

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        index = torch.arange(self.batch_size[0], device=self.device)
        self._restart(fold(torch.full_like(index, seed), index))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        begins = self._resetting(tensordict)
        if self.device.type != "cpu":
            self.reserve(1)  # which refuses actions of earlier steps
        if self._may_be_any(begins):
            self._begin_episodes(begins, tensordict)
        return self._wrap(dict(self._present))

    def _resetting(self, tensordict: TensorDictBase | None) -> Tensor:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            return torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        begins = mask.view(self.batch_size)
        if not self._present:
            got = f"{int(begins.sum())} envs"
            require(self.label, "_reset", got, bool(begins.all()), "cover all envs at first")
        return begins

    def _may_be_any(self, mask: Tensor) -> bool:
        """Whether there may be envs in a mask: it is looked at, unless a look would wait or cannot
        be captured.
        """
        waits = capturing() or not mask.is_cpu
        return (waits and self.capture_obstacle is None) or bool(mask.any())

    def _chosen_tasks(self, tensordict: TensorDictBase | None) -> Tensor | None:
        """The task seeds ``[N]`` that a reset asks for, if it does."""
        seeds = None if tensordict is None else tensordict.get("task_seed", None)
        if seeds is None:
            return None
        shape = (self.batch_size[0], 1)
        good = seeds.shape == shape and seeds.dtype == torch.int64
        require(
            self.label,
            "task_seed",
            f"{seeds.dtype} {tuple(seeds.shape)}",
            good,
            f"be int64 {shape}",
        )
        return seeds[:, 0]

    def _check_action(self, action: Tensor, step_index: Tensor) -> None:
        """Raises where an action ``[N, ...]`` is out of bounds; ``step_index`` ``[N, 1]`` tells
        when.
        """
        low, high = self._encoding.bounds(action.device)
        good = (action >= low) & (action <= high)
        if not good.all():
            env = int((~good).nonzero()[0, 0])
            raise ValueError(
                f"{self.label}: action must be in {low.tolist()}..{high.tolist()}, "
                f"got {action[env].tolist()} in env {env} at step {int(step_index[env])}"
            )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        timestep, reward = self._advance(self._action(tensordict))
        return self._wrap({**timestep, "reward": reward})

    def _action(self, tensordict: TensorDictBase) -> Tensor:
        if not self._present:
            raise RuntimeError(f"{type(self).__name__}: reset must be called before step")
        return tensordict.get("action")

    def _wrap(self, entries: Mapping[str, Any]) -> TensorDict:
        return TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        keys = set(tensordict.keys())
        if self.run_type_checks or "next" in keys or "_step" in keys:
            return super()._step_and_maybe_reset(tensordict)
        self._assert_tensordict_shape(tensordict)
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        timestep, reward = self._advance(self._action(tensordict))
        tensordict.set("next", self._wrap({**timestep, "reward": reward}))
        begins = timestep["done"].view(self.batch_size)
        some_begin = self._may_be_any(begins)
        if some_begin:
            self._begin_episodes(begins, None)
        root = self._wrap(dict(self._present))
        foreign = keys - self._known
        if (
            foreign
        ):  # a policy's own entries stay; as in `EnvBase`, they are cleared if only some envs begin
            kept = tensordict.select(*foreign)
            if some_begin:
                kept = kept.where(~begins | begins.all(), other=kept.empty(), pad=0)
            root.update(kept)
        return tensordict, root

    def present(self) -> TensorDict:
        """The timestep that all envs are at: what `reset` or the last step showed."""
        return self._wrap(dict(self._present)).clone()
