"""The timestep that all rows of a hosted environment are at: arrays, and the tensors that show them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from yamame_envs.hosted.rows import Layout, Outcome
from yamame_envs.hosted.spaces import Array

Key = str | tuple[str, ...]


class Timestep:
    """All entries of the present timestep of N rows; there are none before the first reset.

    Arrays are never changed in place once they are shown.

    Args:
        layout: What rows return.
        time_limit: Steps after which an episode is over, if there is such a limit.
        device: Where tensors live.

    Attributes:
        arrays: ``[N, ...]`` by key; a key is a name or, below the root, a tuple of names.
        shown: The same as tensors, nested as their keys say.
    """

    def __init__(self, layout: Layout, time_limit: int | None) -> None:
        self.keys: list[Key] = [leaf.name[0] if len(leaf.name) == 1 else leaf.name for leaf in layout.leaves]
        self._hidden = () if layout.tells_success else ("success",)
        self._time_limit = time_limit
        self.arrays: dict[Key, Array] = {}
        self.shown: dict[str, Any] = {}

    def forget(self) -> None:
        """There is no timestep to go on from."""
        self.arrays, self.shown = {}, {}

    def column(self, name: str) -> Array:
        """An entry ``[N, 1]`` as ``[N]``."""
        return self.arrays[name][:, 0]

    def build(
        self, outcome: Outcome, action: Array, steps: Array, aborted: Array, *, starts: bool
    ) -> dict[Key, Array]:
        """All entries of R rows, as new arrays ``[R, ...]``.

        Args:
            outcome: What they returned, which is of no further use elsewhere.
            action: ``[R, A]``, the action on the way here, as it is shown.
            steps: ``[R]`` int64, steps taken.
            aborted: ``[R]`` bool.
            starts: Whether episodes begin here.
        """
        arrays: dict[Key, Array] = dict(zip(self.keys, outcome.leaves, strict=True))
        arrays["prev_action"], arrays["prev_reward"] = action, outcome.reward[:, None]
        if self._time_limit is not None:
            arrays["time"] = (steps.astype(np.float32) / np.float32(self._time_limit))[:, None]
        arrays["step_index"] = steps[:, None]
        arrays["is_init"] = np.full((len(steps), 1), starts)
        if "trial_start" not in arrays:
            arrays["trial_start"] = arrays["is_init"].copy()
        arrays["success"], arrays["aborted"] = outcome.success[:, None], aborted[:, None]
        arrays["terminated"], arrays["truncated"] = outcome.terminated[:, None], outcome.truncated[:, None]
        arrays["done"] = arrays["terminated"] | arrays["truncated"]
        return arrays

    def replace(self, arrays: Mapping[Key, Array], rows: Sequence[int], device: torch.device) -> None:
        """Some rows, or all of them, are somewhere else now."""
        if len(rows) < len(self.arrays.get("done", ())):
            changed = {key: array.copy() for key, array in self.arrays.items()}
            for key, array in arrays.items():
                changed[key][rows] = array
            arrays = changed
        self.arrays = dict(arrays)
        self.show(device)

    def show(self, device: torch.device) -> None:
        """Makes the tensors anew, on a device."""
        self.shown = {}
        on_cpu = device.type == "cpu"
        for key, array in self.arrays.items():
            tensor = torch.from_numpy(array)
            if not on_cpu:
                tensor = tensor.to(device)
            if isinstance(key, str):
                self.shown[key] = tensor
                continue
            node = self.shown
            for name in key[:-1]:
                node = node.setdefault(name, {})
            node[key[-1]] = tensor
        for key in self._hidden:
            del self.shown[key]

    def save(self) -> dict[str, Tensor]:
        """Copies of all entries; names below the root are joined."""
        return {_joined(key): torch.from_numpy(array.copy()) for key, array in self.arrays.items()}

    def load(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Goes on from what `save` returned."""
        keys = {_joined(key): key for key in self.keys}
        self.arrays = {keys.get(name, name): value.cpu().numpy().copy() for name, value in saved.items()}
        self.show(device)


def _joined(key: Key) -> str:
    return key if isinstance(key, str) else "/".join(key)
