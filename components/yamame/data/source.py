"""Sources of batches: existing trajectories, and mixtures of several sources.

A source returns right-padded batches ``[B, L]`` in the format of `yamame.keys`, with ``mask``. A
`yamame.replay.TrajectoryReplayBuffer` is a source, and so is any object with the methods of
`DataSource`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.checks import PositiveInt, check_bounds, require, require_choice
from yamame.replay.frequencies import Store, count_held, counting
from yamame.replay.gather import gather_timesteps
from yamame.replay.packing import join

SampleBy = Literal["trajectory", "timestep"]


class DataSource(Protocol):
    """Source of batches for a learner."""

    def sample(self, batch_size: int) -> TensorDictBase:
        """Sample and transform a number of trajectories: ``[B, L]``."""

    def __len__(self) -> int:
        """Return the number of trajectories held. An empty source is not sampled."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state for `load_state_dict`, without torch's random state."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state, or raise ``ValueError``."""


class MemoryStore:
    """Trajectories in memory, without padding.

    Args:
        parts: Pairs of timesteps ``[R]``, one trajectory after the other, and lengths ``[n]`` of
            the trajectories.

    Attributes:
        lengths: Timesteps of each trajectory ``[n]`` int64.

    >>> store = MemoryStore([(TensorDict({"x": torch.arange(5)}, [5]), torch.tensor([3, 2]))])
    >>> store.get([1, 0])["x"]
    tensor([[3, 4, 0],
            [0, 1, 2]])
    """

    def __init__(self, parts: Sequence[tuple[TensorDictBase, Tensor]]) -> None:
        timesteps, lengths = zip(*parts, strict=True)
        self._timesteps = torch.cat(timesteps)
        self.lengths = torch.cat(lengths)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def get(self, index: Any) -> TensorDict:
        """Return trajectories at positions, see `Store.get`."""
        index = torch.as_tensor(index)
        lengths = self.lengths[index].unsqueeze(-1)
        step = torch.arange(int(lengths.max()))
        real = step < lengths
        source = self._starts[index].unsqueeze(-1) + step
        # All timesteps are one row, in which a source is a position.
        batch = gather_timesteps(self._timesteps.unsqueeze(0), source, real)
        return batch.set("mask", real.unsqueeze(-1))


class TrajectoryDataset:
    """Existing trajectories, sampled at random with torch's global generator.

    If ``transform`` weighs goals by their rarity, the goals of every trajectory are counted once.

    Args:
        stores: Stores of the trajectories, with equal entries. Positions count from the oldest
            trajectory; a store that also evicts trajectories has ``num_appended``, as
            `yamame.replay.TrajectoryFollower`.
        transform: Applied to samples, e.g. ``Compose(Relabel(), Window(128))``.
        sample_by: ``trajectory``: all trajectories are equally likely. ``timestep``: in proportion
            to their numbers of transitions.
        refresh: Function called before every draw, for stores that grow; their state cannot be
            restored.

    Raises:
        ArgumentError: No trajectory has a transition; on loading a state, it is of other
            trajectories.

    >>> parts = [(TensorDict({"x": torch.arange(5)}, [5]), torch.tensor([3, 2]))]
    >>> dataset = TrajectoryDataset([MemoryStore(parts)])
    >>> len(dataset), dataset.num_timesteps, dataset.sample(7)["x"].shape[0]
    (2, 5, 7)
    """

    def __init__(
        self,
        stores: Sequence[Store],
        *,
        transform: Transform | None = None,
        sample_by: SampleBy = "trajectory",
        refresh: Callable[[], None] | None = None,
    ) -> None:
        owner = "TrajectoryDataset"
        require_choice(owner, "sample_by", sample_by, get_args(SampleBy))
        self.stores = list(stores)
        self.transform = transform
        self.sample_by = sample_by
        self._refresh = refresh
        # Trajectories appended to each store when goals were last counted.
        self._counted = [0] * len(self.stores)
        self._update()
        total = int(self._ends[-1])
        require(owner, "trajectories", len(self), total > 0, "be at least one with a transition")

    def _update(self) -> None:
        """Read the lengths of the trajectories, and count the goals of new ones."""
        lengths = []
        first = [0]
        for number, store in enumerate(self.stores):
            lengths.append(store.lengths)
            num_held = len(lengths[number])
            first.append(first[number] + num_held)
            num_appended = getattr(store, "num_appended", num_held)
            # New ones may have been evicted already. A negative number is possible, too: a writer
            # that returns to a checkpoint has appended fewer than before.
            num_new = min(num_held, max(0, num_appended - self._counted[number]))
            count_held(self.transform, store, first=num_held - num_new)
            self._counted[number] = num_appended

        self._lengths = torch.cat(lengths)
        # Position of the first trajectory of each store.
        self._first = torch.tensor(first)
        # Cumulative numbers of transitions, for draws in proportion to them.
        self._ends = torch.zeros(1, dtype=torch.int64)
        if len(self._lengths):
            self._ends = (self._lengths - 1).cumsum(0)

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def num_timesteps(self) -> int:
        """Number of timesteps held."""
        return int(self._lengths.sum())

    def sample(self, batch_size: int) -> TensorDictBase:
        """Sample trajectories, see `DataSource.sample`."""
        if self._refresh is not None:
            self._refresh()
            self._update()

        if self.sample_by == "timestep":
            num_transitions = int(self._ends[-1])
            transition = torch.randint(num_transitions, (batch_size,))
            position = torch.searchsorted(self._ends, transition, right=True)
        else:
            position = torch.randint(len(self), (batch_size,))

        store = torch.searchsorted(self._first, position, right=True) - 1
        batches = []
        # One read per store: the order of trajectories in a batch does not matter.
        for number in store.unique().tolist():
            within_store = position[store == number] - self._first[number]
            batches.append(self.stores[number].get(within_store))
        batch = join(batches)
        if self.transform is None:
            return batch
        return self.transform(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return a fingerprint of the trajectories, and the counts of their goals."""
        state = self._fingerprint()
        if self.transform is not None and counting(self.transform):
            state["counted"] = list(self._counted)
            state["transform"] = self.transform.state_dict()
        return state

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "trajectories": len(self),
            "timesteps": self.num_timesteps,
            "grows": self._refresh is not None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the counts of goals.

        Raises:
            ArgumentError: The state is of other trajectories, which do not grow.
        """
        if not state_dict["grows"]:
            present = self._fingerprint()
            saved = {key: state_dict[key] for key in present}
            condition = f"be those of the state, {saved}"
            require("TrajectoryDataset", "data", present, present == saved, condition)
        # States of earlier versions have no counts: those of the constructor stay.
        if self.transform is not None and "counted" in state_dict:
            self._counted = list(state_dict["counted"])
            self.transform.load_state_dict(state_dict["transform"])


class Mixture:
    """Several sources, each with a share of every batch that may change during a run.

    The source of each trajectory of a batch is drawn at random, so shares hold on average whatever
    the batch size. Empty sources are not sampled; if all sources with a positive weight are empty,
    the first other one is sampled. The state is that of the sources.

    Args:
        sources: Sources by name.
        weights: Weight of each source, not negative. Shares are proportional to the weights.
        final_weights: Weights after ``anneal`` counts, reached linearly. None: constant weights.
        anneal: Number of counts until ``final_weights`` are reached.
        count: Function that returns the present count: environment steps or updates so far.

    Raises:
        ArgumentError: The names differ, a weight is negative or none is positive; on sampling, all
            sources are empty.

    >>> timesteps = TensorDict({"x": torch.zeros(2), "is_init": torch.ones(2, 1)}, [2])
    >>> store = MemoryStore([(timesteps, torch.tensor([2]))])
    >>> demos, own = TrajectoryDataset([store]), TrajectoryDataset([store])
    >>> steps = 50
    >>> mixture = Mixture(
    ...     {"demos": demos, "own": own},
    ...     weights={"demos": 1.0, "own": 0.0},
    ...     final_weights={"demos": 0.2, "own": 0.8},
    ...     anneal=100,
    ...     count=lambda: steps,
    ... )
    >>> mixture.weights, len(mixture)
    ({'demos': 0.6, 'own': 0.4}, 2)
    """

    @check_bounds
    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        weights: Mapping[str, float],
        final_weights: Mapping[str, float] | None = None,
        anneal: PositiveInt = 1,
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        if final_weights is None:
            final_weights = weights
        for name, given in (("weights", weights), ("final_weights", final_weights)):
            has_names = given.keys() == sources.keys()
            require("Mixture", name, dict(given), has_names, f"be of {list(sources)}")
            values = list(given.values())
            is_possible = min(values) >= 0 and max(values) > 0
            condition = "not be negative, and one be positive"
            require("Mixture", name, dict(given), is_possible, condition)

        self.sources = dict(sources)
        self._initial = {name: float(weights[name]) for name in sources}
        self._final = {name: float(final_weights[name]) for name in sources}
        self._anneal = anneal
        self._count = count

    @property
    def weights(self) -> dict[str, float]:
        """Present weights by name."""
        progress = min(1.0, self._count() / self._anneal)
        weights = {}
        for name, initial in self._initial.items():
            weights[name] = initial + progress * (self._final[name] - initial)
        return weights

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources.values())

    def sample(self, batch_size: int) -> TensorDictBase:
        """Sample trajectories of all sources, see `DataSource.sample`."""
        weights = {}
        filled = [name for name, source in self.sources.items() if len(source)]
        for name, weight in self.weights.items():
            if name in filled and weight > 0:
                weights[name] = weight
        if not weights:
            # At the start of a run, the source with all the weight may still be empty.
            weights = dict.fromkeys(filled[:1], 1.0)
        require("Mixture", "sources", list(self.sources), bool(weights), "not all be empty")

        shares = torch.tensor(list(weights.values()))
        drawn = torch.multinomial(shares, batch_size, replacement=True)
        counts = drawn.bincount(minlength=len(weights)).tolist()
        batches = []
        for name, count in zip(weights, counts, strict=True):
            # A source cannot return an empty batch.
            if count:
                batches.append(self.sources[name].sample(count))
        return join(batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the sources by name."""
        return {name: source.state_dict() for name, source in self.sources.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the sources."""
        for name, source in self.sources.items():
            source.load_state_dict(state_dict[name])
