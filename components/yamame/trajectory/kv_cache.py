"""Keys and values of what each env has seen: a ring buffer in which every env has a place of its
own.

A cache is a TensorDict ``[N]``: ``keys`` and ``values`` ``[N, layers, H, S, d]`` (S slots, H heads
of size d) and ``position`` ``[N]`` int64, how many timesteps the env has seen since its start. The
timestep at position p goes to slot p, and past the capacity to the slots in turn, so that the
oldest is overwritten; the first ``sinks`` slots are never overwritten. Nothing is shifted. Slots
that an env has not reached are hidden from its queries, so a start needs no wiping.
"""

import sys
from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional as F

from yamame.trajectory.attention import Attend, dot_product
from yamame.trajectory.base import Device

_FEWEST, _MOST_MORE = 32, 128
"""Slots of a first cache, and by how many one grows at most."""


def init_cache(
    shape: tuple[int, ...], weight: Tensor, device: Device, *, counts: Sequence[str] = ("position",)
) -> TensorDict:
    """An empty cache with keys and values of ``shape`` ``[N, layers, H, S, d]``, as precise as
    ``weight`` or as autocast on a GPU, and the integers ``counts`` ``[N]``."""
    device, dtype = weight.device if device is None else torch.device(device), weight.dtype
    if device.type != "cpu" and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    entries = {name: torch.zeros(shape, dtype=dtype, device=device) for name in ("keys", "values")}
    entries |= {name: torch.zeros(shape[0], dtype=torch.int64, device=device) for name in counts}
    return TensorDict(entries, shape[:1], device=device)


def grow_cache(
    cache: TensorDict, num_steps: int = 1, *, capacity: int | None
) -> tuple[TensorDict, int]:
    """The cache itself if it has slots for so many timesteps of every env, else a larger copy; and
    for how many it has.

    Args:
        cache: See the module.
        num_steps: Of every env.
        capacity: Number of slots from which on the oldest is overwritten; None for never.
    """
    held = slots = cache["keys"].shape[3]
    if held == capacity:
        return cache, sys.maxsize
    used = int(cache["position"].max())  # which waits for the device
    while slots < used + num_steps and slots != capacity:
        slots = max(_FEWEST, slots + min(slots, _MOST_MORE))
        slots = slots if capacity is None else min(slots, capacity)
    room = sys.maxsize if slots == capacity else slots - used
    if slots == held:
        return cache, room
    larger = {name: F.pad(cache[name], (0, 0, 0, slots - held)) for name in ("keys", "values")}
    return cache.copy().update(larger), room


class CacheStep:
    """One timestep of every env on a cache: where its keys and values go, and what its queries see.

    Args:
        cache: See the module; with room for this timestep, and written into.
        is_init: ``[N]`` bool, envs that start afresh.
        capacity: As for `grow_cache`.
        sinks: How many of the first slots are never overwritten.
    """

    def __init__(
        self, cache: TensorDict, is_init: Tensor, *, capacity: int | None, sinks: int
    ) -> None:
        self.keys, self.values = cache["keys"], cache["values"]
        num_envs, _, _, slots, _ = self.keys.shape
        self.position = position = cache["position"].masked_fill(is_init, 0)
        slot, last = position, position
        if capacity is not None:
            slot = torch.where(
                position < capacity, position, sinks + (position - sinks) % (capacity - sinks)
            )
            last = position.clamp(max=capacity - 1)
        self.slot = slot.view(num_envs, 1, 1, 1)
        reached = torch.arange(slots, device=position.device) <= last.unsqueeze(1)
        self.reached = reached.view(num_envs, 1, 1, slots)

    def attention(self, layer: int) -> Attend:
        """The attention of one layer, which also stores the keys and values it is given."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.store(layer, k, v)
            return dot_product(q.to(keys.dtype), keys, values, mask=self.reached)

        return attend

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the keys and values ``[N, H, 1, d]`` of a layer; returns all that it holds
        ``[N, H, S, d]``.
        """
        for cache, new in ((self.keys[:, layer], k), (self.values[:, layer], v)):
            # What is not finite would reach other timesteps even through a weight of zero.
            cache.scatter_(2, self.slot.expand_as(new), new.to(cache.dtype).nan_to_num())
        return self.keys[:, layer], self.values[:, layer]

    def next_cache(self) -> TensorDict:
        """The cache with this timestep in it."""
        entries = {"keys": self.keys, "values": self.values, "position": self.position + 1}
        return TensorDict(entries, [len(self.position)], device=self.position.device)
