"""The entries of an environment's trajectories, and the conversion of other rollouts to them.

A rollout ``[T]`` is TorchRL's: observations and the action at the root, the following observations,
the reward and the flags under ``"next"``, episodes one after the other. The result is what a
collector would have stored of these episodes: the entries of `yamame.keys`, with observations and
actions read by `yamame.spaces`, the context computed by the functions of `yamame.transforms` and
the actions encoded by `yamame.actions`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torch.nn import functional
from torchrl.envs import EnvBase

from yamame.actions.encoding import ActionEncoding
from yamame.checks import UsageError, require
from yamame.keys import CONTEXT, NOT_STORED
from yamame.replay.packing import pack
from yamame.spaces import ObservationEntry
from yamame.spaces.from_specs import spaces_of
from yamame.spaces.observation import is_nested_as_space
from yamame.transforms.context import context_values

OWNER = "TrajectoryFormat"
NO_WORLDS = (
    "be there, as the environment holds goals out of training: use data of a run of this version with the same "
    "env.split_by, or set env.split_by to what leaves goals out (walls, roads)"
)
"""Condition on ``world_hash`` that data without it do not meet, with remedies."""
PER_CHUNK = 16384
"""Timesteps that are packed at once, if no episode is longer."""


class TrajectoryFormat:
    """The entries of a trajectory, their shapes and dtypes, as an environment with its context
    emits them.

    Args:
        env: An environment with one batch dimension that emits the context
            (`yamame.transforms.ContextTransform`). Its Gymnasium spaces are those of ``env.spaces``
            (`yamame.spaces.Spaces`), if it has such an attribute.

    Attributes:
        entries: Shape and dtype of every entry of one timestep, by key.
        observed: Keys of the observations, without the context.
        actions: The actions: how values of the action space are read.
        horizon: Most steps of an episode; None if the environment has no limit.
    """

    def __init__(self, env: EnvBase) -> None:
        require(
            OWNER, "env", tuple(env.batch_size), env.batch_dims == 1, "have one batch dimension"
        )
        spec, action = env.observation_spec, env.full_action_spec["action"]
        keys = [unravel_key(key) for key in spec.keys(True, True)]
        require(
            OWNER,
            "env",
            keys,
            "is_init" in keys,
            "emit is_init (yamame.transforms.ContextTransform does)",
        )
        stored = {key: spec[key] for key in keys if key not in NOT_STORED} | {"action": action}
        self.entries: dict[NestedKey, tuple[torch.Size, torch.dtype]] = {
            key: (leaf.shape[1:], leaf.dtype) for key, leaf in stored.items()
        }
        flags = [("next", key) for key in ("terminated", "truncated", *({"success"} & set(keys)))]
        one = torch.Size([1])
        self.entries |= {
            ("next", "reward"): (one, torch.float32),
            **dict.fromkeys(flags, (one, torch.bool)),
        }
        self.observed = [key for key in stored if key not in (*CONTEXT, "action")]
        self._encoding = ActionEncoding(action, batch_dims=1)
        spaces = spaces_of(env)
        self._observations: dict[NestedKey, ObservationEntry] = {
            unravel_key(entry.key): entry for entry in spaces.observations
        }
        self.actions = spaces.action
        bound = getattr(spec["step_index"].space, "high", None)
        self.horizon = None if bound is None or int(bound.max()) >= 2**31 else int(bound.max())
        timed = "time" not in keys or self.horizon is not None
        require(
            OWNER,
            "horizon of the environment",
            self.horizon,
            timed,
            "be told, as it shows the time",
        )

    def check_fields(
        self, fields: Mapping[NestedKey, tuple[torch.Size, torch.dtype]], name: str
    ) -> None:
        """Refuses stored trajectories that do not hold these entries.

        Raises:
            ValueError: Names the first that is missing, of another shape or dtype, or too many.
        """
        for key, wanted in self.entries.items():
            got = fields.get(key)
            condition = f"be {_text(wanted)}, as the environment's"
            if key == "world_hash" and got is None:
                condition = NO_WORLDS
            require(name, f"entry {key!r}", _text(got), got == wanted, condition)
        strange = [key for key in fields if key not in self.entries]
        require(name, "entries", strange, not strange, "be those of the environment")

    def check_length(self, longest: int, name: str) -> None:
        """Refuses trajectories whose longest takes more steps than an episode of the
        environment.
        """
        fits = self.horizon is None or longest <= self.horizon
        condition = f"be at most {self.horizon}, as the environment's"
        require(name, "steps of an episode", longest, fits, condition)

    def check_time(self, trajectory: TensorDictBase, name: str) -> None:
        """Refuses stored trajectories ``[L]`` of an environment whose episodes may take another
        number of steps.

        Raises:
            ValueError: The time that the agent has seen is not that of the environment.
        """
        time = trajectory.get("time", None)
        if time is None or self.horizon is None:
            return
        expected = (trajectory["step_index"] / self.horizon).clamp(max=1.0)
        same = torch.allclose(time, expected.to(time.dtype), atol=1e-5)
        condition = f"go by episodes of {self.horizon} steps, as the environment's"
        require(
            name, "entry 'time'", [round(float(t), 3) for t in time.flatten()[:3]], same, condition
        )

    def observation(self, key: NestedKey) -> ObservationEntry:
        """The observation of a key: how values of its space are read."""
        return self._observations[key]

    def find(self, key: NestedKey, observation: Any) -> Any:
        """The array of a key in observations that are nested as in the space, or by keys; None if
        there is none.
        """
        entries = [
            self._observations[other] for other in self.observed
        ]  # the context is in no observation
        by_path = is_nested_as_space(entries, observation)
        return self._observations[key].find(observation, by_path=by_path)

    def read_observation(self, key: NestedKey, values: Tensor | Any, name: str) -> Tensor:
        """An observation of T timesteps as it is stored.

        Args:
            key: One of ``observed``.
            values: ``[T, ...]``, values of the space or stored entries
                (`yamame.spaces.ObservationEntry.read`).
            name: Name of the file in messages.

        Raises:
            ValueError: If the shape, the dtype or a value does not fit the space.
        """
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        read = self._observations[key].read(
            array, batch=array.shape[:1], label=f"{name}: entry {key!r}"
        )
        return torch.from_numpy(read)

    def read_action(self, values: Tensor | Any, name: str, *, indices: bool | None) -> Tensor:
        """Actions of T timesteps as they are stored.

        Args:
            values: As for `yamame.spaces.ActionEntry.read`.
            name: Name of the file in messages.
            indices: Whether whole numbers count from 0; None: they do not, and no setting changes
                that.

        Raises:
            ValueError: If the shape, the dtype or a value does not fit the space.
        """
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        label = f"{name}: entry 'action'"
        try:
            action = torch.from_numpy(self.actions.read(array, label=label, indices=bool(indices)))
        except UsageError as error:
            if indices is not None and self._readable(array, indices=not indices):
                error.remedy = f"or set +data.source.indices={str(not indices).lower()}"
            raise
        if self._encoding.kind != "one_hot":
            return action
        choices = action.reshape(len(action), -1)
        hot = [
            functional.one_hot(choices[:, n], size) for n, size in enumerate(self._encoding.nvec)
        ]
        return self._encoding.decode(torch.cat(hot, -1))

    def _readable(self, actions: Any, *, indices: bool) -> bool:
        try:
            self.actions.read(actions, label="action", indices=indices)
        except ValueError:
            return False
        return True

    def trajectories(
        self, rollout: TensorDictBase, name: str, *, indices: bool = True
    ) -> list[tuple[TensorDict, Tensor]]:
        """The episodes of a rollout as trajectories.

        Args:
            rollout: ``[T]``; its ``("next", "terminated")`` or ``("next", "truncated")`` is set
                where episodes end, including the last step. Observations and actions are read by
                `read_observation` and `read_action`.
            name: Name of the file in messages.
            indices: Whether actions count from 0, as in the environment's spec, not as in its
                Gymnasium space.

        Returns:
            Pairs of all real timesteps ``[R]``, one trajectory after the other, and their lengths
            ``[E]``.

        Raises:
            ValueError: If the rollout is incomplete or does not fit the environment; names the
                entry.
        """
        ends = _ends(rollout, name)
        rollout = rollout.copy().set(("next", "done"), ends.unsqueeze(-1))
        require(name, "entry 'action'", None, "action" in rollout.keys(), "be there")
        rollout.set("action", self.read_action(rollout.get("action"), name, indices=indices))
        for key in self.observed:
            for place in (key, after(key)):
                values = rollout.get(place, None)
                if values is not None:
                    rollout.set(place, self.read_observation(key, values, name))
        self._check_order(rollout, ends, name)
        last = (ends.nonzero().squeeze(-1) + 1).tolist()
        parts, first = [], 0
        for end, following in zip(last, [*last[1:], None], strict=True):
            if following is None or following - first > PER_CHUNK:
                parts.append(self._complete(pack(rollout[first:end]), name))
                first = end
        return parts

    def _check_order(self, rollout: TensorDictBase, ends: Tensor, name: str) -> None:
        """Refuses steps that do not follow each other."""
        starts = rollout.get("is_init", None)
        if starts is not None:
            expected = torch.cat([torch.ones_like(ends[:1]), ends[:-1]])
            wrong = (starts.reshape(-1) != expected).nonzero().flatten().tolist()
            require(
                name, "steps with is_init", wrong[:3], not wrong, "be those where episodes begin"
            )
        for key in self.observed:
            now, following = rollout.get(key, None), rollout.get(after(key), None)
            if now is None or following is None or len(now) < 2:
                continue
            other = now[1:] != following[:-1]
            gap = other.reshape(len(other), -1).any(-1) & ~ends[:-1]
            wrong = (gap.nonzero().flatten() + 1).tolist()
            condition = (
                "be the one that step led to: trajectories are needed, not steps in random order"
            )
            require(name, f"{key!r} after steps", wrong[:3], not wrong, condition)

    def _complete(self, packed: TensorDict, name: str) -> tuple[TensorDict, Tensor]:
        """Packed episodes ``[E, L]`` with their context and nothing else, as `trajectories` returns
        them.
        """
        mask = packed.get("mask")
        lengths = mask.flatten(1).sum(-1)
        longest = int(lengths.max()) - 1
        self.check_length(longest, name)
        step = torch.arange(packed.shape[1]).reshape(1, -1, 1).expand_as(mask)
        for key in ("terminated", "truncated", "success"):
            if ("next", key) not in packed.keys(True):
                packed.set(("next", key), torch.zeros_like(mask))
        if "achieved" in self.observed and "achieved_mask" not in packed.keys():
            packed.set(
                "achieved_mask", torch.ones(packed.get("achieved").shape[:-1], dtype=torch.bool)
            )
        if self.horizon is not None:  # an agent that sees the time solves a problem that ends there
            here = mask & (step + 1 == self.horizon) & (step + 1 < lengths.reshape(-1, 1, 1))
            packed["next", "terminated"] = (
                packed["next", "terminated"].reshape(mask.shape).bool() | here
            )
            packed["next", "truncated"] = (
                packed["next", "truncated"].reshape(mask.shape).bool() & ~here
            )
        own = {key: self._fitting(packed, key, name) for key in self.entries if key not in CONTEXT}
        before = packed.get("trial_start", None)
        is_init = mask & (step == 0)
        context = context_values(
            step,
            prev_action=_delayed(self._encoding.encode(own["action"])),
            prev_reward=_delayed(own["next", "reward"]),
            is_init=is_init,
            trial_start=None
            if before is None
            else is_init | (before.reshape(mask.shape).bool() & mask),
            horizon=self.horizon,
        )
        real = mask.squeeze(-1)
        timesteps = {key: {**own, **context}[key][real] for key in self.entries}
        out = TensorDict({}, [int(lengths.sum())])
        for key, value in timesteps.items():
            out.set(key, value)
        return out, lengths

    def _fitting(self, packed: TensorDict, key: NestedKey, name: str) -> Tensor:
        """An entry in the shape and dtype of the environment."""
        (shape, dtype), value = self.entries[key], packed.get(key, None)
        wanted = f"be {_text((shape, dtype))}, as the environment's"
        condition = NO_WORLDS if key == "world_hash" else wanted
        require(name, f"entry {key!r}", None, value is not None, condition)
        got = _text((value.shape[2:], value.dtype))
        same = value.shape[2:] == shape or (value.shape[2:] == () and shape == (1,))
        require(name, f"entry {key!r}", got, same and _casts(value, dtype), wanted)
        value = value.reshape(*packed.shape, *shape).to(dtype)
        finite = bool(value.isfinite().all())
        require(
            name,
            f"entry {key!r}",
            "NaN or infinite numbers",
            finite,
            f"be finite as {_text((shape, dtype))}",
        )
        return value


def after(key: NestedKey) -> NestedKey:
    """The key under ``"next"``.

    >>> after("a"), after(("a", "b"))
    (('next', 'a'), ('next', 'a', 'b'))
    """
    return ("next", *key) if isinstance(key, tuple) else ("next", key)


def _ends(rollout: TensorDictBase, name: str) -> Tensor:
    """Where episodes end ``[T]``."""
    require(
        name,
        "steps",
        tuple(rollout.shape),
        rollout.ndim == 1 and len(rollout) > 0,
        "be [T], T at least 1",
    )
    arrival = rollout.get("next", TensorDict({}, rollout.shape))
    flags = [
        arrival.get(key).reshape(-1).bool()
        for key in ("terminated", "truncated", "done")
        if key in arrival.keys()
    ]
    condition = "hold 'terminated', 'truncated' or 'done' under 'next'"
    require(name, "steps", sorted(map(str, arrival.keys())), bool(flags), condition)
    ends = torch.stack(flags).any(0)
    left = int(ends.flip(0).to(torch.uint8).argmax()) if bool(ends.any()) else len(ends)
    condition = "be none: no end is marked there; leave them out with drop_unfinished=true, or mark it as truncated"
    require(name, "steps after the last end of an episode", left, left == 0, condition)
    return ends


def _casts(value: Tensor, dtype: torch.dtype) -> bool:
    """Whether the numbers survive, but for the precision of a floating point number."""
    if value.dtype == dtype or (dtype.is_floating_point):
        return True
    return not value.dtype.is_floating_point and bool(
        (value.to(dtype).to(value.dtype) == value).all()
    )


def _delayed(value: Tensor) -> Tensor:
    """The values ``[E, L, ...]`` of the timestep before; zeros at the first."""
    return torch.cat([torch.zeros_like(value[:, :1]), value[:, :-1]], 1)


def _text(entry: tuple[torch.Size, torch.dtype] | None) -> str:
    """Shape and dtype in a message.

    >>> _text((torch.Size([2]), torch.float32))
    '(2,) float32'
    """
    return (
        "nothing" if entry is None else f"{tuple(entry[0])} {str(entry[1]).removeprefix('torch.')}"
    )
