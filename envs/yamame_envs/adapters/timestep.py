"""The timestep that all envs are at, as arrays and as tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from yamame.transforms import context_values

from yamame_envs.adapters.in_process import EnvSpaces, Outcome
from yamame_envs.adapters.spaces import Array

Key = str | tuple[str, ...]


class Timestep:
    """All entries of the present timestep of N envs; there are none before the first reset.

    Arrays are never changed in place once they are handed out.

    Args:
        env_spaces: What envs return.
        time_limit: Steps after which an episode is over, if there is such a limit.
        device: Where tensors live.

    Attributes:
        arrays: ``[N, ...]`` by key; a key is a name or, below the root, a tuple of names.
        tensors: The same as tensors, nested as their keys say.
    """

    def __init__(self, env_spaces: EnvSpaces, time_limit: int | None) -> None:
        self.keys: list[Key] = [entry.key for entry in env_spaces.observations]
        self._hidden = ("success",) if env_spaces.success_key is None else ()
        self._time_limit = time_limit
        self.arrays: dict[Key, Array] = {}
        self.tensors: dict[str, Any] = {}

    def forget(self) -> None:
        """There is no timestep to go on from."""
        self.arrays, self.tensors = {}, {}

    def column(self, name: str) -> Array:
        """An entry ``[N, 1]`` as ``[N]``."""
        return self.arrays[name][:, 0]

    def build(
        self, outcome: Outcome, action: Array, steps: Array, aborted: Array, *, starts: bool
    ) -> dict[Key, Array]:
        """All entries of R envs, as new arrays ``[R, ...]``.

        Args:
            outcome: What they returned, which is of no further use elsewhere.
            action: ``[R, A]``, the action on the way here, as it is shown.
            steps: ``[R]`` int64, steps taken.
            aborted: ``[R]`` bool.
            starts: Whether episodes begin here.
        """
        arrays: dict[Key, Array] = dict(zip(self.keys, outcome.leaves, strict=True))
        context = context_values(
            torch.from_numpy(steps[:, None]),
            prev_action=torch.from_numpy(action),
            prev_reward=torch.from_numpy(outcome.reward[:, None]),
            is_init=torch.full((len(steps), 1), starts),
            horizon=self._time_limit,
        )
        arrays = {**{name: value.numpy() for name, value in context.items()}, **arrays}
        arrays["success"], arrays["aborted"] = outcome.success[:, None], aborted[:, None]
        arrays["terminated"], arrays["truncated"] = (
            outcome.terminated[:, None],
            outcome.truncated[:, None],
        )
        arrays["done"] = arrays["terminated"] | arrays["truncated"]
        return arrays

    def replace(
        self, arrays: Mapping[Key, Array], env_ids: Sequence[int], device: torch.device
    ) -> None:
        """Some envs, or all of them, are somewhere else now."""
        if len(env_ids) < len(self.arrays.get("done", ())):
            changed = {key: array.copy() for key, array in self.arrays.items()}
            for key, array in arrays.items():
                changed[key][env_ids] = array
            arrays = changed
        self.arrays = dict(arrays)
        self.show(device)

    def show(self, device: torch.device) -> None:
        """Makes the tensors anew, on a device."""
        self.tensors = {}
        on_cpu = device.type == "cpu"
        for key, array in self.arrays.items():
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
        for key in self._hidden:
            del self.tensors[key]

    def save(self) -> dict[str, Tensor]:
        """Copies of all entries; names below the root are joined."""
        return {_joined(key): torch.from_numpy(array.copy()) for key, array in self.arrays.items()}

    def load(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Goes on from what `save` returned."""
        keys = {_joined(key): key for key in self.keys}
        self.arrays = {
            keys.get(name, name): value.cpu().numpy().copy() for name, value in saved.items()
        }
        self.show(device)


def _joined(key: Key) -> str:
    return key if isinstance(key, str) else "/".join(key)
