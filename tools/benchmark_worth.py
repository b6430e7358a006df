"""The worth section of the benchmark: what has no setting, beside the plain way to the same numbers.

Both ways of a row are measured in alternation, and before that their numbers are compared. All are in float32, whatever
the overrides say, but for matrices laid out once.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from benchmark_pair import COARSE_ROUNDING, ROUNDING, Pair, Way, measured
from benchmark_worth_update import block_pairs, critic_pairs, mask_pairs, optimizer_pairs
from torch import Tensor, nn

_REMEMBERED = 100
"""Timesteps of every row that acts."""
_STORED, _LONGEST = 256, 251
"""Trajectories that are held, of two to so many timesteps."""


def worth_parts(
    subject: Any, clock: Any, rows: Sequence[int], lengths: Sequence[int]
) -> Iterator[tuple[str, str, float, None, str]]:
    """Every pair that the agent and the revision have.

    Args:
        subject: Agent and environment.
        clock: Measures CPU or GPU seconds.
        rows: How many act.
        lengths: Timesteps of an update's sequences: critics at all of them, blocks at the longest, dropout at the
            shortest.

    Yields:
        Name, unit, seconds of the project's way, no limit, and a note on the plain way.
    """
    groups = (
        acting_pairs(subject, rows),
        block_pairs(subject, max(lengths)),
        mask_pairs(subject, min(lengths)),
        critic_pairs(subject, lengths),
        optimizer_pairs(subject),
        replay_pairs(subject),
    )
    for pairs in groups:
        yield from (measured(pair, clock) for pair in _known(pairs))


def _known(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The pairs, without those that a revision has no code for."""
    try:
        yield from pairs
    except ImportError:
        return


def acting_pairs(subject: Any, rows: Sequence[int]) -> Iterator[Pair]:
    """Decisions of many rows, each of which remembers a hundred timesteps."""
    from yamame.agent.policy import _FEW_ROWS, acting_copy

    policy = subject.agent.policy()
    for count in rows:
        seen = subject.make_env(count).reset()
        seen["is_init"] = torch.zeros_like(seen["is_init"])
        ours = acting_copy(policy, num_rows=count)
        memory = _memory(ours, seen)

        def decide(actor: Any, seen: Any = seen, memory: Any = memory) -> Way:
            actor.trajectory_encoder.load_memory_state_dict(memory)
            return lambda _: _decide(actor, seen)

        name, how = f"{count} rows, weights prepared once", "prepared in every step"
        unprepared = copy.deepcopy(ours)
        yield Pair(name, "step", decide(ours), decide(unprepared), how, tolerance=ROUNDING)
        if count < _FEW_ROWS:
            by_rows = copy.deepcopy(policy).requires_grad_(False).eval()
            by_rows.prepare()
            name, how = f"{count} rows, matrices column by column", "row by row"
            yield Pair(name, "step", decide(ours), decide(by_rows), how, tolerance=ROUNDING)
    for count in rows:
        yield from _laid_out_pairs(acting_copy(policy, num_rows=count), count)


@torch.no_grad()
def _decide(policy: Any, seen: Any) -> Tensor:
    """All of a decision but the draw."""
    scratch, encoder = seen.copy(), policy.trajectory_encoder
    encoder(policy.timestep_encoder(scratch))
    encoder._memory["age"].sub_(1)  # so that every call reads as much
    params: Tensor = policy._params(scratch.get(encoder.out_keys[0]))
    return params


def _memory(policy: Any, seen: Any) -> dict[str, Tensor]:
    """A memory as after many steps, with anything in it."""
    encoder = policy.trajectory_encoder
    for _ in range(2):  # the second makes room
        _decide(policy, seen)
        encoder._memory["age"].fill_(_REMEMBERED - 1)
    for value in encoder._memory.values():
        if value.is_floating_point():
            value.normal_()
    found: dict[str, Tensor] = encoder.memory_state_dict()
    return found


def _laid_out_pairs(actor: Any, count: int) -> Iterator[Pair]:
    """The products of a step in bfloat16: of the timestep encoder's trunk and of a Transformer's layers."""
    from yamame.product import Product
    from yamame.trajectory import SigmaReparamLinear, TransformerEncoder

    encoder, dtype = actor.trajectory_encoder, torch.bfloat16
    parts = [actor.timestep_encoder.mlp, *(encoder.layers if isinstance(encoder, TransformerEncoder) else ())]
    modules = [module for part in parts for module in part.modules()]
    layers = [module for module in modules if isinstance(module, nn.Linear | SigmaReparamLinear)]
    pairs = [(_weight(layer).t(), layer.bias) for layer in layers]
    inputs = [torch.randn(count, len(weight)).to(weight.device, dtype) for weight, _ in pairs]
    products = [Product(weight, bias, dtype) for weight, bias in pairs]
    plain = [(weight.to(dtype), None if bias is None else bias.to(dtype)) for weight, bias in pairs]

    def multiplied(_: None) -> list[Tensor]:
        factors = zip(inputs, plain, strict=True)
        return [x @ weight if bias is None else torch.addmm(bias, x, weight) for x, (weight, bias) in factors]

    def ours(_: None) -> list[Tensor]:
        return [product(x) for product, x in zip(products, inputs, strict=True)]

    name, how = f"{count} rows, matrices laid out once for bfloat16", "in each of the products"
    yield Pair(name, "step", ours, multiplied, f"{how}: {len(products)}", tolerance=COARSE_ROUNDING)


def _weight(layer: Any) -> Tensor:
    """What multiplies the input of a linear layer."""
    weight: Tensor = layer.weight if isinstance(layer, nn.Linear) else layer.effective_weight()
    return weight.detach()


def replay_pairs(subject: Any) -> Iterator[Pair]:
    """Reading, relabelling and counting trajectories of many lengths."""
    from yamame.replay import TrajectoryReplayBuffer

    size = subject.cfg.schedule.batch_size
    stored = subject.batch(_STORED, _LONGEST).to("cpu")
    lengths = torch.linspace(2, _LONGEST, _STORED).round().unsqueeze(-1)
    stored["mask"] = (torch.arange(_LONGEST) < lengths).unsqueeze(-1)
    with TemporaryDirectory() as folder:
        path, capacity = Path(folder) / "worth", 2 * stored.numel()
        buffer = TrajectoryReplayBuffer(path=path, capacity=capacity, batch_size=size)
        buffer.extend(stored)
        index = torch.randint(_STORED, (size,), generator=torch.Generator().manual_seed(0))
        yield _reading_pair(buffer.storage, index)
        if "achieved" in stored.keys():
            yield _relabelling_pair(buffer.storage.get(index))
            yield _counting_pair(stored, subject.cfg.schedule.num_envs)
            yield _completing_pair(buffer.storage.get(index))


def _reading_pair(storage: Any, index: Tensor) -> Pair:
    """Of a storage that holds its first trajectories still, where they were written."""
    from tensordict import TensorDict

    starts, lengths, _ = storage._index[index.numpy()].T.tolist()
    places = [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    fields = {
        field.key if len(field.key) > 1 else field.key[0]: rows.view(field.dtype).view(-1, *field.shape)
        for field, rows in zip(storage._meta.fields, storage._maps, strict=True)
    }

    def one_by_one(_: None) -> Any:
        def padded(rows: Tensor) -> Tensor:
            return nn.utils.rnn.pad_sequence([rows[place] for place in places], batch_first=True)

        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)
        entries = {key: padded(rows) for key, rows in fields.items()}
        return TensorDict({**entries, "mask": mask.unsqueeze(-1)}, batch_size=mask.shape)

    name, how = f"{len(index)} trajectories read as windows of one view", "each sliced, all padded together"
    return Pair(name, "batch", lambda _: storage.get(index), one_by_one, how)


def _relabelling_pair(batch: Any) -> Pair:
    from yamame.replay import Relabel

    calls = itertools.count()

    def given() -> Any:
        torch.manual_seed(next(calls) // 2)  # both ways draw the same, others in every round
        return batch.clone()

    name = f"{len(batch)} trajectories relabelled in place"
    return Pair(name, "batch", Relabel("some", inplace=True), Relabel("some"), "into copies", given=given)


def _completing_pair(batch: Any) -> Pair:
    from yamame.goals.completion import _completed, completed
    from yamame.replay.hindsight import RelabelKeys, Trajectories

    given = Trajectories.of(*(batch[key] for key in RelabelKeys().needed()[:4]))[:3]
    name = f"goals of {len(batch)} trajectories completed, in C"
    ways = (lambda _, find=find: torch.from_numpy(find(*given)) for find in (completed, _completed))
    return Pair(name, "batch", *ways, "in NumPy")


def _counting_pair(stored: Any, number: int) -> Pair:
    from yamame.replay import GoalFrequencies

    keys = ("achieved", "achieved_mask", "mask")
    held, new = ([part[key] for key in keys] for part in (stored, stored[-number:]))
    everything = [torch.cat(both) for both in zip(held, new, strict=True)]
    known = GoalFrequencies()
    known.update(*held)

    def counted(table: Any, trajectories: list[Tensor]) -> list[Tensor]:
        table.update(*trajectories)
        return [table.cells, table.timesteps, table.trajectories, table.totals]

    return Pair(
        f"goals of {number} new trajectories counted",
        "update",
        lambda table: counted(table, new),
        lambda _: counted(GoalFrequencies(), everything),
        f"those of all {len(everything[0])} again",
        given=lambda: copy.deepcopy(known),
    )
