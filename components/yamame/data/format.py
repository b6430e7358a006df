"""Entries of an environment's trajectories, and the conversion of other rollouts to them.

A rollout ``[T]`` is TorchRL's: observations and the action at the root, the next observations, the
reward and the flags under ``"next"``, episodes one after the other. The result is what a collector
would have stored of these episodes: the entries of `yamame.keys`, with observations and actions
read by `yamame.spaces`, the context computed by the functions of `yamame.transforms` and the
actions encoded by `yamame.actions`.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torch.nn import functional
from torchrl.envs import EnvBase

from yamame.actions.encoding import ActionEncoding
from yamame.checks import ArgumentError, require
from yamame.keys import CONTEXT, NOT_STORED
from yamame.replay.packing import pack
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import BOUNDS_REMEDY, BoundsError, SpaceError
from yamame.spaces.from_specs import recorded_spaces, spaces_of
from yamame.spaces.observation import is_nested_as_space
from yamame.system.messages import print_stderr
from yamame.transforms.context import context_values, episode_limit

OWNER = "TrajectoryFormat"
NO_WORLDS = "be present, because the environment holds out goals"
"""Condition on ``world_hash`` that data without it do not meet."""
WORLDS_REMEDY = (
    "use data of a run of this version with the same env.split_by, or set env.split_by to what "
    "holds out no goals (walls, roads)"
)
PER_CHUNK = 16384
"""Timesteps that are packed at once, padding included, if no episode is longer."""
_LARGEST_REWARD = 1e12
Field = tuple[torch.Size, torch.dtype]
"""Shape and dtype of an entry of one timestep."""


class TrajectoryFormat:
    """Entries, shapes and dtypes of the trajectories of an environment with its context.

    Args:
        env: An environment with one batch dimension that emits the context
            (`yamame.transforms.ContextTransform`). Its Gymnasium spaces are those of ``env.spaces``
            (`yamame.spaces.Spaces`), if it has this attribute.

    Attributes:
        entries: Shape and dtype of every entry of one timestep, by key.
        observed: Keys of the observations, without the context.
        actions: Description of the actions, by which values of the action space are read.
        encoding: Encoding of the actions, in which ``prev_action`` is.
        horizon: Largest number of steps of an episode; None if it is unlimited.

    Raises:
        ArgumentError: The environment has another number of batch dimensions, lacks ``is_init``, or
            emits the time without a limit.
    """

    def __init__(self, env: EnvBase) -> None:
        shape = tuple(env.batch_size)
        require(OWNER, "env", shape, env.batch_dims == 1, "have one batch dimension")
        # Specs have the dimension of the envs, which a timestep of one env does not have.
        spec = env.observation_spec
        action = env.full_action_spec["action"]
        keys = [unravel_key(key) for key in spec.keys(True, True)]
        condition = "emit is_init (yamame.transforms.ContextTransform does)"
        require(OWNER, "env", keys, "is_init" in keys, condition)

        self.observed: list[NestedKey] = []
        self.entries: dict[NestedKey, Field] = {}
        for key in keys:
            if key in NOT_STORED:
                continue
            self.entries[key] = (spec[key].shape[1:], spec[key].dtype)
            if key not in CONTEXT:
                self.observed.append(key)
        self.entries["action"] = (action.shape[1:], action.dtype)
        one = torch.Size([1])
        self.entries["next", "reward"] = (one, torch.float32)
        for key in ("terminated", "truncated", "success"):
            # Few environments report success, but all of them have ends.
            if key != "success" or key in keys:
                self.entries["next", key] = (one, torch.bool)

        self.encoding = ActionEncoding(action, batch_dims=1)
        spaces = spaces_of(env)
        self._observations: dict[NestedKey, ObservationEntry] = {}
        for entry in spaces.observations:
            self._observations[unravel_key(entry.key)] = entry
        self.actions = spaces.action
        # Environments of Gymnasium spaces have the setting env.bounds.
        self._has_bounds = recorded_spaces(env) is not None
        # Entries whose numbers out of bounds were reported.
        self._reported: set[NestedKey] = set()
        places = Counter(_place(self._observations[key]) for key in self.observed)
        self._ambiguous = {place for place, count in places.items() if count > 1}

        self.horizon = episode_limit(spec)
        is_known = "time" not in keys or self.horizon is not None
        condition = "be known, because the environment emits the time"
        require(OWNER, "horizon of the environment", self.horizon, is_known, condition)

    def check_fields(self, fields: Mapping[NestedKey, Field], name: str) -> None:
        """Raise unless stored trajectories have the entries of this format.

        Args:
            fields: Shape and dtype of every stored entry.
            name: Name of the folder in messages.

        Raises:
            ArgumentError: Names the first entry that is missing, unknown, or of another shape or
                dtype.
        """
        for key, wanted in self.entries.items():
            found = fields.get(key)
            condition = f"be {_text(wanted)}, as the environment's"
            remedy = None
            if key == "world_hash" and found is None:
                condition = NO_WORLDS
                remedy = WORLDS_REMEDY
            matches = found == wanted
            require(name, f"entry {key!r}", _text(found), matches, condition, remedy=remedy)
        unknown = [key for key in fields if key not in self.entries]
        require(name, "entries", unknown, not unknown, "be those of the environment")

    def check_length(self, longest: int, name: str) -> None:
        """Raise if the longest trajectory has more steps than an episode of the environment."""
        fits = self.horizon is None or longest <= self.horizon
        condition = f"be at most {self.horizon}, as the environment's"
        require(name, "steps of an episode", longest, fits, condition)

    def check_time(self, trajectory: TensorDictBase, name: str) -> None:
        """Raise if the time of a stored trajectory implies another length of episodes.

        Args:
            trajectory: Timesteps ``[L]``.
            name: Name of the folder in messages.

        Raises:
            ArgumentError: The stored time is not that of the environment.
        """
        time = trajectory.get("time", None)
        if time is None or self.horizon is None:
            return
        # The same expression as in `yamame.transforms.context`.
        expected = (trajectory["step_index"] / self.horizon).clamp(max=1.0)
        matches = torch.allclose(time, expected.to(time.dtype), atol=1e-5)
        first = [round(value, 3) for value in time.flatten()[:3].tolist()]
        condition = f"be that of episodes of {self.horizon} steps, as the environment's"
        require(name, "entry 'time'", first, matches, condition)

    def observation(self, key: NestedKey) -> ObservationEntry:
        """Return the description of an observation, by which values of its space are read."""
        return self._observations[key]

    def find(self, key: NestedKey, observation: Any) -> Any:
        """Find the array of a key in observations nested as in the space, or by keys.

        Returns:
            The array; None if there is none.

        Raises:
            ArgumentError: Files cannot tell this entry from another, because the texts of their
                keys are equal.
        """
        place = _place(self._observations[key])
        condition = "have keys of different texts to be read from data, where keys are texts"
        is_clear = place not in self._ambiguous
        require(OWNER, "observation_space", place, is_clear, condition)
        # The context is not part of any observation.
        entries = [self._observations[other] for other in self.observed]
        by_path = is_nested_as_space(entries, observation)
        return self._observations[key].find(observation, by_path=by_path)

    def read_observation(self, key: NestedKey, values: Tensor | Any, name: str) -> Tensor:
        """Convert an observation of T timesteps to the stored form.

        Args:
            key: One of ``observed``.
            values: ``[T, ...]``, values of the space or stored entries
                (`yamame.spaces.ObservationEntry.read`).
            name: Name of the file in messages.

        Raises:
            SpaceError: The shape, the dtype or a value does not fit the space.
        """
        array = _to_numpy(values)
        try:
            read = self._observations[key].read(
                array,
                batch=array.shape[:1],
                label=f"{name}: entry {key!r}",
                bounded=True,
                may_be_unknown=True,
                report=None if key in self._reported else partial(self._report, key),
            )
        except BoundsError as error:
            error.remedy = BOUNDS_REMEDY
            raise
        return torch.from_numpy(read)

    def _report(self, key: NestedKey, message: str) -> None:
        """Print the first number of an entry outside of its bounds."""
        self._reported.add(key)
        print_stderr(
            f"data: {message}; such values are kept and not reported again (env.bounds=clip makes "
            "them the bounds, env.bounds=raise rejects them)"
        )

    def read_action(self, values: Tensor | Any, name: str, *, indices: bool | None) -> Tensor:
        """Convert actions of T timesteps to the stored form.

        Args:
            values: As for `yamame.spaces.ActionEntry.read`.
            name: Name of the file in messages.
            indices: Whether whole numbers count from 0; None: they do not, and no setting changes
                that.

        Raises:
            SpaceError: The shape, the dtype or a value does not fit the space.
        """
        array = _to_numpy(values)
        try:
            read = self.actions.read(array, label=f"{name}: entry 'action'", indices=bool(indices))
        except BoundsError as error:
            if self._has_bounds:
                error.remedy = "env.bounds=clip makes such values the bounds"
            raise
        except SpaceError as error:
            if indices is not None and self._is_readable(array, indices=not indices):
                error.remedy = f"or set +data.source.indices={str(not indices).lower()}"
            raise
        action = torch.from_numpy(read)
        if self.encoding.kind != "one_hot":
            return action

        # The environment may take one-hots, where the space has numbers.
        choices = action.reshape(len(action), -1)
        one_hots = []
        for choice, size in enumerate(self.encoding.nvec):
            one_hots.append(functional.one_hot(choices[:, choice], size))
        return self.encoding.decode(torch.cat(one_hots, -1))

    def _is_readable(self, actions: Any, *, indices: bool) -> bool:
        try:
            self.actions.read(actions, label="action", indices=indices)
        except SpaceError:
            return False
        return True

    def trajectories(
        self, rollout: TensorDictBase, name: str, *, indices: bool = True
    ) -> list[tuple[TensorDict, Tensor]]:
        """Convert the episodes of a rollout to trajectories.

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
            ValueError: The rollout is incomplete or does not fit the environment; names the entry.
        """
        ends = _ends(rollout, name)
        # `pack` splits at "done", which files may lack.
        rollout = rollout.copy().set(("next", "done"), ends.unsqueeze(-1))
        require(name, "entry 'action'", None, "action" in rollout.keys(), "be present")
        rollout.set("action", self.read_action(rollout.get("action"), name, indices=indices))
        for key in self.observed:
            for place in (key, after(key)):
                values = rollout.get(place, None)
                if values is not None:
                    rollout.set(place, self.read_observation(key, values, name))
        self._check_order(rollout, ends, name)

        # Packing pads to the longest episode: chunks bound the memory that it takes.
        episode_ends = (ends.nonzero().squeeze(-1) + 1).tolist()
        parts = []
        first = end = num_episodes = longest = 0
        for next_end in episode_ends:
            num_episodes += 1
            longest = max(longest, next_end - end)
            if num_episodes * longest > PER_CHUNK and end > first:
                parts.append(self._complete(pack(rollout[first:end]), name))
                first = end
                num_episodes = 1
                longest = next_end - end
            end = next_end
        parts.append(self._complete(pack(rollout[first:end]), name))
        return parts

    def _check_order(self, rollout: TensorDictBase, ends: Tensor, name: str) -> None:
        """Raise unless each step follows the one before."""
        starts = rollout.get("is_init", None)
        if starts is not None:
            expected = torch.cat([torch.ones_like(ends[:1]), ends[:-1]])
            wrong = (starts.reshape(-1) != expected).nonzero().flatten().tolist()
            condition = "be those where episodes start"
            require(name, "steps with is_init", wrong[:3], not wrong, condition)

        for key in self.observed:
            before = rollout.get(key, None)
            following = rollout.get(after(key), None)
            if before is None or following is None or len(before) < 2:
                continue
            differs = before[1:] != following[:-1]
            # After an end, the next observation is that of a reset.
            gap = differs.reshape(len(differs), -1).any(-1) & ~ends[:-1]
            wrong = (gap.nonzero().flatten() + 1).tolist()
            condition = "be the next one of the step before"
            remedy = "sort the steps: trajectories are needed, not steps in random order"
            require(name, f"{key!r} after steps", wrong[:3], not wrong, condition, remedy=remedy)

    def _complete(self, packed: TensorDict, name: str) -> tuple[TensorDict, Tensor]:
        """Add the context to packed episodes ``[E, L]``, and remove other entries.

        Returns:
            Timesteps and lengths, as those of `trajectories`.
        """
        mask = packed.get("mask")
        lengths = mask.flatten(1).sum(-1)
        self.check_length(int(lengths.max()) - 1, name)
        step = torch.arange(packed.shape[1]).reshape(1, -1, 1).expand_as(mask)
        self._add_missing(packed)
        if self.horizon is not None:
            # For an agent that sees the time, the problem itself ends at the horizon.
            has_step = step + 1 < lengths.reshape(-1, 1, 1)
            at_horizon = mask & (step + 1 == self.horizon) & has_step
            for key, value in (("terminated", True), ("truncated", False)):
                flags = packed["next", key].reshape(mask.shape).bool()
                packed["next", key] = flags.masked_fill(at_horizon, value)

        # The context is computed anew, except for the starts of trials.
        own = {}
        for key in self.entries:
            if key not in CONTEXT:
                own[key] = self._fitting(packed, key, name)
        check_rewards(own["next", "reward"], name)
        is_init = mask & (step == 0)
        trial_start = packed.get("trial_start", None)
        if trial_start is not None:
            starts = as_flags(trial_start, name, "'trial_start'")
            trial_start = is_init | (starts.reshape(mask.shape) & mask)
        context = context_values(
            step,
            prev_action=_delayed(self.encoding.encode(own["action"])),
            prev_reward=_delayed(own["next", "reward"]),
            is_init=is_init,
            trial_start=trial_start,
            horizon=self.horizon,
        )

        real = mask.squeeze(-1)
        values = {**own, **context}
        timesteps = TensorDict({}, [int(lengths.sum())])
        for key in self.entries:
            timesteps.set(key, values[key][real])
        return timesteps, lengths

    def _add_missing(self, packed: TensorDict) -> None:
        """Add optional entries of packed episodes that a rollout does not hold."""
        mask = packed.get("mask")
        for key in ("terminated", "truncated", "success"):
            if ("next", key) not in packed.keys(True):
                packed.set(("next", key), torch.zeros_like(mask))
        is_known = {"achieved", "achieved_mask"} <= {*self.observed} and "achieved" in packed.keys()
        if is_known and "achieved_mask" not in packed.keys():
            slots = packed.get("achieved").shape[:-1]
            packed.set("achieved_mask", torch.ones(slots, dtype=torch.bool))

    def _fitting(self, packed: TensorDict, key: NestedKey, name: str) -> Tensor:
        """Return an entry in the shape and dtype of the environment."""
        shape, dtype = self.entries[key]
        value = packed.get(key, None)
        label = f"entry {key!r}"
        if value is None and key == "world_hash":
            raise ArgumentError(name, label, None, NO_WORLDS, remedy=WORLDS_REMEDY)
        condition = f"be {_text((shape, dtype))}, as the environment's"
        require(name, label, None, value is not None, condition)

        found = value.shape[2:]
        # Rollouts may have scalars without a dimension.
        has_shape = found == shape or (found == () and shape == (1,))
        fits = has_shape and _casts(value, dtype)
        require(name, label, _text((found, value.dtype)), fits, condition)
        value = value.reshape(*packed.shape, *shape).to(dtype)
        is_finite = bool(value.isfinite().all())
        condition = f"be finite as {_text((shape, dtype))}"
        require(name, label, "NaN or infinite numbers", is_finite, condition)
        return value


def _place(entry: ObservationEntry) -> str:
    """Return the place of an entry in an observation, as files name it."""
    return "/".join(map(str, entry.path))


def after(key: NestedKey) -> NestedKey:
    """Return the key under ``"next"``.

    >>> after("a"), after(("a", "b"))
    (('next', 'a'), ('next', 'a', 'b'))
    """
    return ("next", *key) if isinstance(key, tuple) else ("next", key)


def _to_numpy(values: Tensor | Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _ends(rollout: TensorDictBase, name: str) -> Tensor:
    """Return where episodes end ``[T]``; raise unless the last step is an end."""
    is_flat = rollout.ndim == 1 and len(rollout) > 0
    require(name, "steps", tuple(rollout.shape), is_flat, "be [T], T at least 1")
    arrival = rollout.get("next", TensorDict({}, rollout.shape))
    flags = []
    for key in ("terminated", "truncated", "done"):
        if key in arrival.keys():
            flags.append(as_flags(arrival.get(key), name, repr(key)).reshape(-1))
    found = sorted(map(str, arrival.keys()))
    condition = "hold 'terminated', 'truncated' or 'done' under 'next'"
    require(name, "steps", found, bool(flags), condition)

    ends = torch.stack(flags).any(0)
    num_left = len(ends)
    if bool(ends.any()):
        # PyTorch has no argmax of bools.
        num_left = int(ends.flip(0).to(torch.uint8).argmax())
    remedy = (
        "leave them out with drop_unfinished=true (data.source.drop_unfinished), or mark the end "
        "as truncated"
    )
    label = "steps after the last end of an episode"
    require(name, label, num_left, num_left == 0, "be 0", remedy=remedy)
    return ends


def _casts(value: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a dtype holds the numbers, up to the rounding of floating point numbers."""
    if value.dtype == dtype or dtype.is_floating_point:
        return True
    if value.dtype.is_floating_point:
        return False
    return bool((value.to(dtype).to(value.dtype) == value).all())


def check_rewards(rewards: Tensor, name: str) -> None:
    """Raise for rewards that no loss can be computed of."""
    largest = float(rewards.abs().max())
    condition = f"be at most {_LARGEST_REWARD:g}, because losses square sums of rewards in float32"
    require(name, "largest reward", largest, largest <= _LARGEST_REWARD, condition)


def as_flags(values: Tensor, name: str, label: str) -> Tensor:
    """Return values as bool; raise unless all of them are 0 or 1.

    Args:
        values: Values of any dtype.
        name: Name of the file in messages.
        label: Name of the entry in messages.
    """
    other = values[(values != 0) & (values != 1)]
    found = other[0].item() if len(other) else None
    require(name, label, found, len(other) == 0, "be flags, 0 or 1")
    return values.bool()


def _delayed(value: Tensor) -> Tensor:
    """Return the values ``[E, L, ...]`` of the timestep before; zeros at the first."""
    return torch.cat([torch.zeros_like(value[:, :1]), value[:, :-1]], 1)


def _text(field: Field | None) -> str:
    """Format a shape and dtype for a message.

    >>> _text((torch.Size([2]), torch.float32))
    '(2,) float32'
    """
    if field is None:
        return "nothing"
    shape, dtype = field
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"
