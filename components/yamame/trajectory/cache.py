"""Keys and values of acting rows: a ring buffer in which every row has its own place.

``entries`` is ``[layers, 2, N, G, slots, w]`` (keys, values): in float32 each of the H heads is a group of its own
(G = H, w = d), in lower precision several lie side by side in one, and for a compiled kernel all do. A row's timestep
of age a (its a-th since its start) goes to slot a, and past the capacity to the slots in turn, so that the oldest is
overwritten; the first ``sinks`` slots are never overwritten. Nothing is shifted, and no step touches more than the
slots in use: the buffer grows by doubling, queries read up to the largest slot in use, and a row is wiped when it
starts (weights of zero would not hide a stale NaN).
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.capturing import capturing
from yamame.trajectory.attention import Attend
from yamame.trajectory.attention_kernel import AttentionKernel

_SMALLEST = 32
_BLOCK = 32
_MOVING = 3
"""What moving an entry costs, in entries read."""
_SHARED = 8
"""Most heads in a group."""
_ROUND = 16
"""Slots read in low precision are a multiple of this, and of about their number divided by it."""


def num_groups(num_heads: int, dtype: torch.dtype, *, compiled: bool) -> int:
    """How many groups the heads form in a cache of ``dtype``, read by a compiled kernel or by products.

    Products for a single query leave most of the processor's multipliers for low precision idle. Heads that lie side
    by side are one product, in which each of their queries is zero where the others' keys are: as fast as if it
    were one head, and it reads the cache in longer pieces.
    """
    if compiled:
        return 1
    if dtype.itemsize >= 4:
        return num_heads
    return num_heads // max(size for size in range(1, _SHARED + 1) if num_heads % size == 0)


def arrange(entries: Tensor, groups: int, head_size: int, dtype: torch.dtype) -> Tensor:
    """``entries`` in ``groups`` groups and in ``dtype``: themselves where they are so, else a copy."""
    if entries.shape[3] != groups:
        heads = entries.unflatten(-1, (-1, head_size)).transpose(-2, -3).flatten(3, 4)
        entries = heads.unflatten(3, (groups, -1)).transpose(-2, -3).flatten(-2).contiguous()
    return entries.to(dtype)


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


def sort_rows(memory: dict[str, Tensor], *, capacity: int | None) -> tuple[Tensor, Tensor] | None:
    """Keeps rows of about the same age side by side in the cache, because a step reads them block by block.

    A row that starts anew among old ones makes a step read slots it does not use. When as much has been read in
    vain as moving all entries costs, they are moved into the order of age. Rows that end in the order in which
    they began never need it.

    Args:
        memory: ``age`` ``[N]``, ``entries`` ``[layers, 2, N, G, slots, w]`` whose rows are in the cache's order,
            and its own ``place`` ``[N]``, where each acting row lies, and ``waste``.
        capacity: Number of slots from which on the oldest is overwritten; None for never.

    Returns:
        ``order`` ``[N]``, the acting row at each place, and ``place``; None if rows lie where they act.
    """
    age, entries = memory["age"], memory["entries"]
    if len(age) <= _BLOCK or not entries.is_cpu:
        unsort_rows(memory)  # where it was sorted on another device
        return None
    age = age if capacity is None else age.clamp(max=capacity)
    place = memory["place"] if "place" in memory else torch.arange(len(age))
    order = place.argsort()
    waste = memory.get("waste", torch.zeros((), dtype=torch.int64))
    sorted_age, sorted_order = age.sort(stable=True)
    waste = waste + (_longest(age[order]).sum() - _longest(sorted_age).sum()) * _BLOCK
    if int(waste) > _MOVING * int(age.sum()):
        used = int(age.max()) + 1  # the largest is beyond the end where the ring is full, and so harmless
        moved = torch.zeros_like(entries)
        for old, new in zip(entries.flatten(0, 1), moved.flatten(0, 1), strict=True):
            new[..., :used, :] = old[:, :, :used].index_select(0, place[sorted_order])
        order, place, waste = sorted_order, sorted_order.argsort(), torch.zeros_like(waste)
        memory["entries"] = moved
    memory["place"], memory["waste"] = place, waste
    return order, place


def unsort_rows(memory: dict[str, Tensor]) -> None:
    """Lets rows lie where they act, for what reads no further than each row goes."""
    place = memory.pop("place", None)
    memory.pop("waste", None)
    if place is not None:
        memory["entries"] = memory["entries"].index_select(2, place)


def wipe_rows(entries: Tensor, starts: Tensor) -> None:
    """Zeroes rows ``starts`` ``[N]`` bool of ``entries`` ``[layers, 2, N, G, slots, w]``, in place."""
    if capturing():  # how many there are is not known
        entries.masked_fill_(starts.view(-1, 1, 1, 1), 0)
    else:
        entries.index_fill_(2, starts.nonzero().squeeze(1), 0)


def _longest(age: Tensor) -> Tensor:
    """The largest age of every block."""
    missing = -len(age) % _BLOCK
    return F.pad(age, (0, missing)).view(-1, _BLOCK).amax(1)


def _slots(age: Tensor, *, capacity: int | None, sinks: int) -> Tensor:
    """Where this step's entries go, after ``age`` timesteps from before: ``[N]``."""
    if capacity is None:
        return age
    return torch.where(age < capacity, age, sinks + (age - sinks) % (capacity - sinks))


class CacheStep:
    """One acting step on a cache, the same for every layer: where its entries go and what its queries see.

    Args:
        entries: ``[layers, 2, N, G, slots, w]``, with room for this step.
        age: ``[N]`` int64, how many timesteps each row remembers from before this one.
        capacity: Number of slots from which on the oldest is overwritten; None for never.
        sinks: How many of the first slots are never overwritten.

    Attributes:
        part_size: Rows are given to `attend` in parts that begin at multiples of it.
    """

    def __init__(self, entries: Tensor, age: Tensor, *, capacity: int | None, sinks: int) -> None:
        num_rows, groups, slots = entries.shape[2:5]
        self.entries = entries
        slot = _slots(age, capacity=capacity, sinks=sinks)
        first = torch.arange(0, 2 * num_rows * groups * slots, slots, device=age.device)
        self.place = first.view(2, num_rows, groups) + slot.unsqueeze(1)
        self.part_size = _BLOCK if entries.is_cpu else num_rows
        low = entries.dtype.itemsize < 4
        self.blocks = [Block(rows, capacity, slots, rounded=low) for rows in age.split(self.part_size)]

    def attend(self, index: int, q: Tensor, kv: Tensor, first: int = 0) -> Tensor:
        """What the queries of one layer find once its new keys and values are stored.

        Args:
            index: Which layer.
            q: ``[n, H, d]``, of n rows of the cache, already multiplied by the factor of the scores.
            kv: ``[2, n, H, d]``, keys and values.
            first: Which row is the first of the n; a multiple of ``part_size``.

        Returns:
            ``[n, H, d]``.
        """
        keys, values = entries = self.entries[index]
        rows = slice(first, first + len(q))
        new = kv.reshape(-1, entries.shape[-1]).to(entries.dtype)
        entries.view(-1, entries.shape[-1]).index_copy_(0, self.place[:, rows].reshape(-1), new)
        blocks = self.blocks[first // self.part_size :]
        parts = zip(
            blocks, *(part.split(self.part_size) for part in (q, keys[rows], values[rows])), strict=False
        )
        found = [block.attend(*part) for block, *part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)

    def layer(self, index: int) -> Attend:
        """The attention of one layer, which also stores what it is given."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # Under autocast on a CPU in float32, as in sequences.
            with torch.autocast("cpu", enabled=False) if q.is_cpu else nullcontext():
                q = q.squeeze(2).to(self.entries.dtype) * q.shape[-1] ** -0.5
                return self.attend(index, q, torch.stack((k, v)).squeeze(3)).unsqueeze(2)

        return attend


class Block:
    """Neighbouring rows, which are read up to the largest slot that any of them uses.

    Args:
        age: ``[n]``.
        capacity: As for `CacheStep`.
        slots: How many there are.
        rounded: Whether somewhat more may be read so that few different lengths occur: kernels for low precision are
            compiled for every length.
    """

    def __init__(self, age: Tensor, capacity: int | None, slots: int, *, rounded: bool) -> None:
        self.num_rows = len(age)
        if capturing():  # what is used is not known, and all is read
            shortest, self.used = 0, slots
        else:
            shortest, longest = torch.stack(age.aminmax()).tolist()
            self.used = (longest if capacity is None else min(longest, capacity - 1)) + 1
            if rounded:
                piece = max(_ROUND, 2 ** self.used.bit_length() // _ROUND)
                self.used = min(-(-self.used // piece) * piece, slots)
        self.hidden: Tensor | None = None
        if shortest < self.used - 1:
            unused = torch.arange(self.used, device=age.device) > age.unsqueeze(1)
            self.hidden = unused.view(self.num_rows, 1, 1, self.used)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """``[n, H, d]``, ``[n, G, slots, w]`` twice -> ``[n, H, d]``."""
        # Two plain products read the cache once each, which a fused kernel for single queries does no better.
        keys, values = keys.flatten(0, 1)[:, : self.used], values.flatten(0, 1)[:, : self.used]
        if keys.dtype.itemsize < 4:
            return self._attend_in_groups(q, keys, values)
        scores = torch.bmm(q.reshape(-1, 1, q.shape[-1]), keys.transpose(1, 2))
        if self.hidden is not None:
            scores.view(*q.shape[:2], 1, -1).masked_fill_(self.hidden, -torch.inf)
        return torch.bmm(scores.softmax(-1), values).view(q.shape)

    def _attend_in_groups(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """``[n, H, d]``, ``[n * G, slots, w]`` twice -> ``[n, H, d]``; scores and weights in float32."""
        groups, head_size = len(keys), q.shape[-1]
        q = q.reshape(groups, -1, head_size)
        shared = q.shape[1]
        # Every head's query among zeros, and of what the weights of one head find the part of that head.
        apart = q.new_zeros(groups, shared, head_size, shared)
        apart.diagonal(dim1=1, dim2=3).copy_(q.transpose(1, 2))
        scores = torch.bmm(keys, apart.flatten(1, 2)).transpose(1, 2)
        scores = scores.to(torch.float32, memory_format=torch.contiguous_format)
        if self.hidden is not None:
            scores.view(self.num_rows, -1, 1, self.used).masked_fill_(self.hidden, -torch.inf)
        found = torch.bmm(scores.softmax(-1).to(values.dtype), values)
        found = found.view(groups, shared, shared, head_size).diagonal(dim1=1, dim2=2)
        return found.transpose(1, 2).reshape(self.num_rows, -1, head_size)


class CompiledStep:
    """As `CacheStep`, by a compiled kernel, which reads of every row what it holds and nothing else.

    Args:
        kernel: What stores and reads.
        entries: ``[layers, 2, N, 1, slots, H * d]``, with room for this step.
        age: ``[N]`` int64, how many timesteps each row remembers from before this one.
        capacity: Number of slots from which on the oldest is overwritten; None for never.
        sinks: How many of the first slots are never overwritten.
    """

    part_size = 1

    def __init__(
        self, kernel: AttentionKernel, entries: Tensor, age: Tensor, *, capacity: int | None, sinks: int
    ) -> None:
        self.kernel, self.entries = kernel, entries.squeeze(3)
        self.slot = _slots(age, capacity=capacity, sinks=sinks)
        self.last = age if capacity is None else age.clamp(max=capacity - 1)

    def attend(self, index: int, q: Tensor, kv: Tensor, first: int = 0) -> Tensor:
        """What `CacheStep.attend` returns."""
        rows = slice(first, first + len(q))
        return self.kernel(q, kv, self.entries[index, :, rows], self.slot[rows], self.last[rows])
