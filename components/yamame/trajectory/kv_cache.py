"""Keys and values of the timesteps that each env has seen, as one ring buffer per env.

A cache is a TensorDict ``[N]``: ``keys`` and ``values`` ``[N, layers, H, S, d]`` (S slots, H heads
of size d) and ``position`` ``[N]`` int64, the number of timesteps since the start of each env. The
timestep at position p is stored in slot p, and past the capacity in the slots in turn, so that the
oldest is overwritten; the first ``sinks`` slots are never overwritten. Nothing is shifted. Slots
that an env has not reached are masked, so a start needs no wiping.
"""

import sys
from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional as F

from yamame.execution.capturing import capturing
from yamame.trajectory.attention import Attend, dot_product
from yamame.trajectory.base import Device

_FEWEST_SLOTS = 32
"""Slots of a cache after its first growth."""
_LARGEST_GROWTH = 128
"""Most slots added at once; below it a cache doubles."""
_READ_MULTIPLE = 16
"""Attention reads a multiple of this number of slots: its sums then have the order of all slots."""


def init_cache(
    shape: tuple[int, ...],
    *,
    like: Tensor,
    device: Device = None,
    counts: Sequence[str] = ("position",),
) -> TensorDict:
    """Return an empty cache.

    Args:
        shape: Shape of keys and values, ``[N, layers, H, S, d]``.
        like: Tensor that determines the dtype and the default device. Under autocast on a GPU the
            dtype is that of autocast.
        device: Device of the cache; None for that of ``like``.
        counts: Names of the entries ``[N]`` int64.
    """
    device = like.device if device is None else torch.device(device)
    dtype = like.dtype
    if device.type != "cpu" and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)

    entries: dict[str, Tensor] = {}
    for name in ("keys", "values"):
        entries[name] = torch.zeros(shape, dtype=dtype, device=device)
    for name in counts:
        entries[name] = torch.zeros(shape[0], dtype=torch.int64, device=device)
    return TensorDict(entries, shape[:1], device=device)


def grow_cache(
    cache: TensorDict, num_steps: int = 1, *, capacity: int | None
) -> tuple[TensorDict, int]:
    """Return a cache with slots for more timesteps, and the number of timesteps it has slots for.

    Args:
        cache: A cache; returned itself if it has enough slots.
        num_steps: Number of further timesteps of every env.
        capacity: Number of slots at which the oldest timestep is overwritten; None to grow without
            end.
    """
    num_slots = cache["keys"].shape[3]
    if num_slots == capacity:
        return cache, sys.maxsize

    used = int(cache["position"].max())  # synchronises with the device
    larger = num_slots
    while larger < used + num_steps and larger != capacity:
        # Doubling keeps copies rare; unlimited, it would waste memory in long episodes.
        larger = max(_FEWEST_SLOTS, larger + min(larger, _LARGEST_GROWTH))
        if capacity is not None:
            larger = min(larger, capacity)

    room = sys.maxsize if larger == capacity else larger - used
    if larger == num_slots:
        return cache, room
    grown = cache.copy()
    for name in ("keys", "values"):
        added = larger - num_slots
        grown[name] = F.pad(cache[name], (0, 0, 0, added))
    return grown, room


class CacheStep:
    """Slots of one timestep of every env: those that it is written to and those that it sees.

    Args:
        cache: A cache with a slot for this timestep. It is written into.
        is_init: ``[N]`` bool, envs that start afresh.
        capacity: Number of slots at which the oldest timestep is overwritten; None for never.
        sinks: Number of first slots that are never overwritten.

    Attributes:
        position: ``[N]`` int64, number of timesteps since the start.
        reached: ``[N, 1, 1, S]`` bool, slots that the queries see.
        bias: ``[N, 1, 1, R]``, 0 for these slots and minus infinity for others; of the dtype of the
            cache. R is S or, on a CPU, fewer first slots that hold all that any env has reached.
    """

    def __init__(
        self, cache: TensorDict, is_init: Tensor, *, capacity: int | None, sinks: int
    ) -> None:
        self.keys: Tensor = cache["keys"]
        self.values: Tensor = cache["values"]
        num_envs, _, num_heads, num_slots, head_size = self.keys.shape
        position = cache["position"].masked_fill(is_init, 0)

        slot = position
        last = position
        # A smaller cache has a slot for every position.
        if capacity is not None and num_slots >= capacity:
            # Past the capacity, positions cycle through the slots after the sinks.
            cycled = sinks + (position - sinks) % (capacity - sinks)
            slot = torch.where(position < capacity, position, cycled)
            last = position.clamp(max=capacity - 1)

        index = torch.arange(num_slots, device=position.device)
        reached = index <= last.unsqueeze(1)  # [N, S]
        self.position = position
        self.reached = reached.view(num_envs, 1, 1, num_slots)
        self._num_read = num_slots
        if position.is_cpu and not capturing():
            # Slots that no env has reached take time and change no bit of the result.
            num_reached = int(last.max()) + 1
            self._num_read = min(num_slots, -(-num_reached // _READ_MULTIPLE) * _READ_MULTIPLE)
        # Attention would convert a mask of bool anew in every layer.
        seen = self.reached[..., : self._num_read]
        self.bias = self.keys.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        # The same for all layers: their keys and values, and the slot of every new number.
        self._keys = self.keys.unbind(1)  # [N, H, S, d]
        self._values = self.values.unbind(1)
        self._slot = slot.view(num_envs, 1, 1, 1).expand(num_envs, num_heads, 1, head_size)

    def attention(self, layer: int) -> Attend:
        """Return the attention of one layer; calling it also stores the new keys and values."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.store(layer, k, v)
            q = q.to(keys.dtype)
            keys = keys[:, :, : self._num_read]
            values = values[:, :, : self._num_read]
            return dot_product(q, keys, values, mask=self.bias)

        return attend

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of one layer and return all that it holds.

        Args:
            layer: Index of the layer.
            k: ``[N, H, 1, d]``.
            v: ``[N, H, 1, d]``.

        Returns:
            Keys and values of all slots, ``[N, H, S, d]``.
        """
        keys = self._keys[layer]
        values = self._values[layer]
        # NaN and Inf would reach other timesteps even through an attention weight of zero.
        new_keys = k.to(keys.dtype).nan_to_num()
        new_values = v.to(values.dtype).nan_to_num()
        keys.scatter_(2, self._slot, new_keys)
        values.scatter_(2, self._slot, new_values)
        return keys, values

    def next_cache(self) -> TensorDict:
        """Return the cache that contains this timestep."""
        position = self.position + 1
        entries = {"keys": self.keys, "values": self.values, "position": position}
        return TensorDict(entries, [len(position)], device=position.device)
