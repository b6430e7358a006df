"""Trajectory files of AMAGO 3: ``.npz`` files of one episode, or of a part of one.

====================  ==============  ========================================================
array                 shape           meaning
====================  ==============  ========================================================
``_OBS_KEY_<name>``   ``[T+1, ...]``  observation of this name; ``observation`` if there is one
``actions``           ``[T, A]``      encoded: one-hot, bits, or in [-1, 1]
``rews``              ``[T, 1]``      rewards
``dones``             ``[T, 1]``      flags of the end of the task, at the last step alone
``time_idxs``         ``[T+1, 1]``    steps since the start of the episode
``rl2s``              ``[T+1, 1+A]``  reward and action that led to each timestep
====================  ==============  ========================================================

A file of a part begins with the timestep that ended the file before, so ``time_idxs`` begin above
0. It is read as a window of its episode: the memory is not fresh. A file whose last step is no
``done`` was cut there, and values count on. Pickles (``.traj``) are refused.

Source: AMAGO, arXiv 2310.09971, its package of version 3.3.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from yamame.checks import ArgumentError, UsageError, require
from yamame.data.format import TrajectoryFormat, as_flags, check_rewards
from yamame.data.numpy_files import read_npz
from yamame.data.sizes import Sizes
from yamame.data.tables import rollout
from yamame.files.paths import check_tree
from yamame.spaces.arrays import Array

_OBSERVATION = "_OBS_KEY_"
_ARRAYS = ("actions", "rews", "dones", "time_idxs", "rl2s")
_PICKLE = ".traj"
_ROUNDING = 1e-5
"""Largest distance of an encoded number from its bounds that counts as rounding."""
_MOST_STEPS = 2**31
"""Largest number of a step. Larger ones come from damaged files: no episode is so long."""


@dataclass(frozen=True)
class Segment:
    """An episode, or a part of one.

    Attributes:
        name: Name of the file.
        steps: TorchRL rollout ``[T]`` of stored entries, of which the last is an end.
        first: Steps of the episode before the first timestep.
        prev_action: Encoded action that led to the first timestep, ``[A]``; zeros at its start.
        prev_reward: Reward that led to it.
        unused: Names of observations that the environment does not have.
    """

    name: str
    steps: TensorDict
    first: int
    prev_action: Tensor
    prev_reward: float
    unused: frozenset[str]

    def continued(
        self, part: tuple[TensorDict, Tensor], format: TrajectoryFormat
    ) -> tuple[TensorDict, Tensor]:
        """Return the timesteps of the whole segment at their places in the episode.

        Args:
            part: Timesteps ``[T+1]`` and their number ``[1]``, as from the start of an episode.
            format: Format of the environment.

        Raises:
            ArgumentError: The episode is longer than those of the environment.
        """
        timesteps, lengths = part
        if self.first == 0:
            return part
        last = self.first + len(timesteps) - 1
        format.check_length(last, self.name)
        step_index = timesteps["step_index"] + self.first
        timesteps["step_index"] = step_index
        timesteps["is_init"][0] = False
        if "trial_start" in timesteps.keys():
            timesteps["trial_start"][0] = False
        if "prev_action" in timesteps.keys():
            timesteps["prev_action"][0] = self.prev_action
        if "prev_reward" in timesteps.keys():
            timesteps["prev_reward"][0] = self.prev_reward
        if format.horizon is not None:
            if "time" in timesteps.keys():
                # The same expression as in `yamame.transforms.context`.
                time = (step_index / format.horizon).clamp(max=1.0)
                timesteps["time"] = time.to(timesteps["time"].dtype)
            if last == format.horizon:
                # For an agent that sees the time, the problem itself ends at the horizon.
                timesteps["next", "terminated"][-2] = True
                timesteps["next", "truncated"][-2] = False
        return timesteps, lengths


def matching_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and those in folders at any depth.

    Raises:
        UsageError: There is a pickle, a folder holds links, or there is no file.
    """
    for path in paths:
        files = [path]
        if path.is_dir():
            check_tree(path)
            files = sorted(file for file in path.rglob("*") if file.suffix in (".npz", _PICKLE))
            require("data", "path", str(path), bool(files), "hold files of AMAGO (*.npz)")
        for file in files:
            if file.suffix == _PICKLE:
                raise UsageError(
                    f"{file}: must be a .npz file, a pickle can run code when it is read",
                    remedy=(
                        "convert it where AMAGO is installed: np.savez(name, "
                        "**amago.loading.load_traj_from_disk(path).freeze().to_dict())"
                    ),
                )
            yield file


def read_segment(path: Path, format: TrajectoryFormat, sizes: Sizes) -> Segment:
    """Read a file.

    Args:
        path: The file.
        format: Format of the environment to learn for.
        sizes: Sum of the sizes of what is read.

    Raises:
        UsageError: It cannot be read, an array is missing, or does not fit the others or the
            environment.
    """
    name = str(path)
    arrays = read_npz(path, sizes)
    _check_shapes(arrays, format, name)
    time = arrays["time_idxs"][:, 0].astype(np.float64)
    is_count = bool((np.isfinite(time) & (time == np.trunc(time))).all())
    follows = is_count and bool((np.diff(time) == 1).all())
    in_range = follows and time[0] >= 0 and time[-1] <= _MOST_STEPS
    condition = f"count the steps of one episode, in whole numbers from 0 to {_MOST_STEPS}"
    require(name, "'time_idxs'", time[:3].tolist(), in_range, condition)
    flags = torch.from_numpy(arrays["dones"][:, 0].astype(np.float64))
    done = as_flags(flags, name, "'dones'").numpy()
    condition = "be of one episode: false before the last step"
    require(name, "'dones'", int(done.sum()), not bool(done[:-1].any()), condition)

    encoded = _encoded(arrays["actions"], format, name)
    observations = {}
    for key, array in arrays.items():
        if not key.startswith(_OBSERVATION):
            continue
        length = len(array) if array is not None and array.ndim else 0
        condition = f"be {len(time)}, as that of 'time_idxs'"
        require(name, f"length of {key!r}", length, length == len(time), condition)
        observations[key.removeprefix(_OBSERVATION)] = array
    table = {
        "observations": observations,
        "actions": format.encoding.decode(encoded).numpy(),
        "rewards": arrays["rews"][:, 0],
        "terminated": done,
        "truncated": _cut_off(done),
    }
    first = int(time[0])
    arrival = torch.from_numpy(arrays["rl2s"][0].astype(np.float32))
    condition = "be finite"
    require(name, "'rl2s'", arrays["rl2s"][0].tolist(), bool(arrival.isfinite().all()), condition)
    check_rewards(arrival[:1], f"{name}: 'rl2s'")
    return Segment(
        name=name,
        steps=rollout(table, format, name, drop_unfinished=False, indices=True),
        first=first,
        prev_action=arrival[1:],
        prev_reward=float(arrival[0]),
        unused=frozenset(observations) - _names(format),
    )


def _check_shapes(arrays: dict[str, Any], format: TrajectoryFormat, name: str) -> None:
    """Raise unless a file has AMAGO's arrays, of one number of steps."""
    found = sorted(arrays)
    for key in _ARRAYS:
        array: Any = arrays.get(key)
        condition = f"hold {key!r}, as AMAGO's files"
        require(name, "arrays", found, array is not None, condition)
        require(
            name, f"dtype of {key!r}", str(array.dtype), array.dtype.kind in "biuf", "be numbers"
        )
    num_steps = len(arrays["rews"]) if arrays["rews"].ndim else 0
    require(name, "steps", num_steps, num_steps > 0, "be at least 1")
    size = format.encoding.encoded_size
    shapes = {
        "actions": (num_steps, size),
        "rews": (num_steps, 1),
        "dones": (num_steps, 1),
        "time_idxs": (num_steps + 1, 1),
        "rl2s": (num_steps + 1, 1 + size),
    }
    for key, shape in shapes.items():
        found_shape = arrays[key].shape
        condition = f"be {shape}: {num_steps} steps, actions of {size} numbers"
        require(name, f"shape of {key!r}", found_shape, found_shape == shape, condition)


def _encoded(actions: Array, format: TrajectoryFormat, name: str) -> Tensor:
    """Return encoded actions; raise unless they are AMAGO's encoding of the environment's."""
    encoded = torch.from_numpy(actions.astype(np.float32))
    kind = format.encoding.kind
    if kind == "box":
        fits = bool((encoded.abs() <= 1.0 + _ROUNDING).all())
        require(name, "'actions'", "others", fits, "be numbers in [-1, 1]")
        return encoded.clamp(-1.0, 1.0)
    is_bit = (encoded == 0) | (encoded == 1)
    fits = bool(is_bit.all())
    if kind != "bits":
        if len(format.encoding.nvec) > 1:
            condition = "be one choice: AMAGO has no actions of several"
            raise ArgumentError(name, "action space", f"{kind} {format.encoding.nvec}", condition)
        fits = fits and bool((encoded.sum(-1) == 1).all())
    condition = "be 0 or 1" if kind == "bits" else "be one-hot"
    require(name, "'actions'", "others", fits, condition)
    return encoded


def _cut_off(done: Array) -> Array:
    """Return flags of the end of a part of an episode that goes on."""
    truncated = np.zeros_like(done)
    truncated[-1] = not done[-1]
    return truncated


def _names(format: TrajectoryFormat) -> set[str]:
    """Return the names by which files may have the observations of an environment."""
    names = set()
    for key in format.observed:
        parts = (key,) if isinstance(key, str) else key
        names |= {parts[-1], "/".join(parts)}
    return names
