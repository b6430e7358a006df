"""Current timestep of all envs, as arrays and as tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from yamame.transforms import context_values

from yamame_envs.adapters.in_process import EnvSpaces, Outcome
from yamame_envs.adapters.spaces import Array

Key = str | tuple[str, ...]


class Timestep:
    """All entries of the current timestep of N envs. Empty before the first reset.

    Arrays are never changed in place, because the tensors that a step returned share their memory.

    Args:
        env_spaces: Observations of the envs.
        time_limit: Steps after which an episode is over; None without such a limit.

    Attributes:
        keys: Keys of the observation. A key is a name or, below the root, a tuple of names.
        arrays: ``[N, ...]`` by key.
        tensors: The same as tensors, nested by their keys.
    """

    def __init__(self, env_spaces: EnvSpaces, time_limit: int | None) -> None:
        self.keys: list[Key] = [entry.key for entry in env_spaces.observations]
        self.arrays: dict[Key, Array] = {}
        self.tensors: dict[str, Any] = {}
        self._shows_success = env_spaces.success_key is not None
        self._time_limit = time_limit

    def clear(self) -> None:
        """Remove all entries, so that the next call must be a reset."""
        self.arrays = {}
        self.tensors = {}

    def column(self, name: str) -> Array:
        """Return an entry ``[N, 1]`` as ``[N]``."""
        return self.arrays[name][:, 0]

    def build(
        self, outcome: Outcome, action: Array, steps: Array, aborted: Array, *, starts: bool
    ) -> dict[Key, Array]:
        """Build all entries of R envs, as new arrays ``[R, ...]``.

        Args:
            outcome: Result of the step. Its arrays become entries.
            action: ``[R, A]``, the encoded previous action.
            steps: ``[R]`` int64, steps taken.
            aborted: ``[R]`` bool.
            starts: True if episodes begin here.
        """
        context = context_values(
            torch.from_numpy(steps[:, None]),
            prev_action=torch.from_numpy(action),
            prev_reward=torch.from_numpy(outcome.reward[:, None]),
            is_init=torch.full((len(steps), 1), starts),
            horizon=self._time_limit,
        )
        arrays: dict[Key, Array] = {name: value.numpy() for name, value in context.items()}
        # An environment may show its own ``trial_start``, which replaces that of the context.
        arrays |= zip(self.keys, outcome.leaves, strict=True)
        arrays["success"] = outcome.success[:, None]
        arrays["aborted"] = aborted[:, None]
        arrays["terminated"] = outcome.terminated[:, None]
        arrays["truncated"] = outcome.truncated[:, None]
        arrays["done"] = arrays["terminated"] | arrays["truncated"]
        return arrays

    def replace(
        self, arrays: Mapping[Key, Array], env_ids: Sequence[int], device: torch.device
    ) -> None:
        """Replace the entries of some envs, or of all of them."""
        has_others = bool(self.arrays) and len(env_ids) < len(self.arrays["done"])
        if has_others:
            changed = {key: array.copy() for key, array in self.arrays.items()}
            for key, array in arrays.items():
                changed[key][env_ids] = array
            arrays = changed
        self.arrays = dict(arrays)
        self.make_tensors(device)

    def make_tensors(self, device: torch.device) -> None:
        """Create the tensors of all entries on a device."""
        self.tensors = {}
        on_cpu = device.type == "cpu"
        for key, array in self.arrays.items():
            if key == "success" and not self._shows_success:
                continue
            tensor = torch.from_numpy(array)
            if not on_cpu:
                tensor = tensor.to(device)
            if isinstance(key, str):
                self.tensors[key] = tensor
                continue
            node = self.tensors
            for name in key[:-1]:
                node = node.setdefault(name, {})
            node[key[-1]] = tensor

    def save(self) -> dict[str, Tensor]:
        """Return copies of all entries; names are joined by slashes, and those in them escaped."""
        return {_joined(key): torch.from_numpy(array.copy()) for key, array in self.arrays.items()}

    def load(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore what `save` returned."""
        # Earlier versions did not escape names.
        keys = {key if isinstance(key, str) else "/".join(key): key for key in self.keys}
        keys |= {_joined(key): key for key in self.keys}
        self.arrays = {}
        for name, value in saved.items():
            self.arrays[keys.get(name, name)] = value.cpu().numpy().copy()
        self.make_tensors(device)


def _joined(key: Key) -> str:
    names = (key,) if isinstance(key, str) else key
    # As in JSON pointers, RFC 6901.
    return "/".join(name.replace("~", "~0").replace("/", "~1") for name in names)
