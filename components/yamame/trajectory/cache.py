"""Keys and values of acting rows: a ring buffer in which every row has its own place.

``entries`` is ``[layers, 2, N, H, slots, d]`` (keys, values). A row's timestep of age a (its a-th since its
start) goes to slot a, and past the capacity to the slots in turn, so that the oldest is overwritten; the
first ``sinks`` slots are never overwritten. Nothing is shifted, and no step touches more than the slots in
use: the buffer grows by doubling, queries read up to the largest slot in use, and a row is wiped when it
starts (weights of zero would not hide a stale NaN).
"""

import torch
from torch import Tensor

from yamame.trajectory.attention import Attend, dot_product

_SMALLEST = 32


def make_room(entries: Tensor, slots: int, *, capacity: int | None) -> Tensor:
    """``entries`` with at least ``slots`` slots and at most ``capacity``: itself, or a larger copy."""
    held = entries.shape[-2]
    if held >= (slots if capacity is None else min(slots, capacity)):
        return entries
    larger = max(slots, 2 * held, _SMALLEST)
    larger = larger if capacity is None else min(larger, capacity)
    room = entries.new_zeros(*entries.shape[:-2], larger, entries.shape[-1])
    room[..., :held, :] = entries
    return room


class CacheStep:
    """One acting step on a cache, the same for every layer: where its entries go and what its queries see.

    Args:
        entries: ``[layers, 2, N, H, slots, d]``, with room for this step.
        age: ``[N]`` int64, how many timesteps each row remembers from before this one.
        span: Smallest and largest age.
        capacity: Number of slots from which on the oldest is overwritten; None for never.
        sinks: How many of the first slots are never overwritten.
    """

    def __init__(
        self, entries: Tensor, age: Tensor, *, span: tuple[int, int], capacity: int | None, sinks: int
    ) -> None:
        num_rows, num_heads, slots = entries.shape[2:5]
        shortest, longest = span
        slot = age
        if capacity is not None and longest >= capacity:
            slot = torch.where(age < capacity, age, sinks + (age - sinks) % (capacity - sinks))
            longest = capacity - 1
        first = torch.arange(0, num_rows * num_heads * slots, slots, device=age.device)
        self.entries = entries
        self.place = (first.view(num_rows, num_heads) + slot.unsqueeze(1)).view(-1)
        self.used = longest + 1
        self.mask: Tensor | None = None
        if shortest < longest:
            in_use = torch.arange(self.used, device=age.device) <= age.unsqueeze(1)
            self.mask = in_use.view(num_rows, 1, 1, self.used)

    def layer(self, index: int) -> Attend:
        """The attention of one layer, which also stores what it is given."""
        keys, values = self.entries[index].unbind(0)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for stored, new in ((keys, k), (values, v)):
                new = new.reshape(-1, new.shape[-1]).to(stored.dtype)
                stored.view(-1, stored.shape[-1]).index_copy_(0, self.place, new)
            seen_keys, seen_values = keys[:, :, : self.used], values[:, :, : self.used]
            return dot_product(q, seen_keys, seen_values, mask=self.mask)

        return attend
