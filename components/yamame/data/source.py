"""Where batches come from: whole trajectories that are there already, and mixtures of several
sources.

A source gives batches ``[B, L]`` in the format of `yamame.keys`, right padded, with ``mask``. A
`yamame.replay.TrajectoryReplayBuffer` is one, and so is whatever keeps to `DataSource`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.checks import require, require_at_least, require_choice
from yamame.replay.frequencies import Store, count_held, counting
from yamame.replay.gather import gather_timesteps
from yamame.replay.packing import join


class DataSource(Protocol):
    """What a learner draws from."""

    def sample(self, batch_size: int) -> TensorDictBase:
        """Batches of so many trajectories, transformed: ``[B, L]``."""

    def __len__(self) -> int:
        """Trajectories held; a source without any is not drawn from."""

    def state_dict(self) -> Mapping[str, Any]:
        """What `load_state_dict` needs to draw the same again; torch's random state is not part of
        it.
        """

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores `state_dict`, or raises ``ValueError``."""


class MemoryStore:
    """Trajectories in memory, without padding.

    Args:
        parts: Pairs of timesteps ``[R]``, one trajectory after the other, and lengths ``[n]`` of
            the trajectories.

    >>> store = MemoryStore([(TensorDict({"x": torch.arange(5)}, [5]), torch.tensor([3, 2]))])
    >>> store.get([1, 0])["x"]
    tensor([[3, 4, 0],
            [0, 1, 2]])
    """

    def __init__(self, parts: Sequence[tuple[TensorDictBase, Tensor]]) -> None:
        self._timesteps = torch.cat([timesteps for timesteps, _ in parts])
        self.lengths = torch.cat([lengths for _, lengths in parts])
        self._starts = self.lengths.cumsum(0) - self.lengths

    def get(self, index: Any) -> TensorDict:
        """See `Store.get`."""
        index = torch.as_tensor(index)
        lengths = self.lengths[index].unsqueeze(-1)
        step = torch.arange(int(lengths.max()))
        real = step < lengths
        batch = gather_timesteps(
            self._timesteps.unsqueeze(0), self._starts[index].unsqueeze(-1) + step, real
        )
        return batch.set("mask", real.unsqueeze(-1))


class TrajectoryDataset:
    """Trajectories that are there already, drawn at random with torch's global generator.

    Where ``transform`` weighs goals by their rarity, goals of all trajectories are counted, each
    trajectory once.

    Args:
        stores: Hold the trajectories, with equal entries. Positions count from the oldest
            trajectory; a store that also removes trajectories has ``num_appended``, as
            `yamame.replay.TrajectoryFollower`.
        transform: Applied to what was drawn, e.g. ``Compose(Relabel(), Window(128))``.
        sample_by: ``trajectory``: each is as likely as any other. ``timestep``: as likely as it is
            long (in transitions).
        refresh: Called before every draw, for stores that grow; their state cannot be restored.

    Raises:
        ValueError: There is nothing to draw; on loading a state, it was of other trajectories.

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
        sample_by: Literal["trajectory", "timestep"] = "trajectory",
        refresh: Callable[[], None] | None = None,
    ) -> None:
        require_choice("TrajectoryDataset", "sample_by", sample_by, ("trajectory", "timestep"))
        self.stores, self.transform, self.sample_by = list(stores), transform, sample_by
        self._refresh = refresh
        self._counted = [0] * len(self.stores)
        self._look()
        total = int(self._ends[-1])
        require(
            "TrajectoryDataset",
            "trajectories",
            len(self),
            total > 0,
            "be at least one with a transition",
        )

    def _look(self) -> None:
        """Reads how long the trajectories are, and counts the goals of new ones."""
        lengths = [store.lengths for store in self.stores]
        self._lengths = torch.cat(lengths)
        self._first = torch.tensor([0] + [len(part) for part in lengths]).cumsum(0)  # of each store
        self._ends = (
            (self._lengths - 1).cumsum(0)
            if len(self._lengths)
            else torch.zeros(1, dtype=torch.int64)
        )
        for number, (store, part) in enumerate(zip(self.stores, lengths, strict=True)):
            appended = getattr(store, "num_appended", len(part))
            new = min(len(part), max(0, appended - self._counted[number]))
            count_held(self.transform, store, first=len(part) - new)
            self._counted[number] = (
                appended  # fewer than before, if a writer went back to a checkpoint
            )

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def num_timesteps(self) -> int:
        """Number of timesteps held."""
        return int(self._lengths.sum())

    def sample(self, batch_size: int) -> TensorDictBase:
        """See `DataSource.sample`."""
        if self._refresh is not None:
            self._refresh()
            self._look()
        by_step = self.sample_by == "timestep"
        index = torch.randint(int(self._ends[-1]) if by_step else len(self), (batch_size,))
        if by_step:
            index = torch.searchsorted(self._ends, index, right=True)
        store = torch.searchsorted(self._first, index, right=True) - 1
        batch = join(
            [
                self.stores[n].get(index[store == n] - self._first[n])
                for n in store.unique().tolist()
            ]
        )
        return batch if self.transform is None else self.transform(batch)

    def state_dict(self) -> dict[str, Any]:
        """Number and length of the trajectories by which they are told, and the counts of their
        goals.
        """
        state = self._identity()
        if self.transform is not None and counting(self.transform):
            state |= {"counted": list(self._counted), "transform": self.transform.state_dict()}
        return state

    def _identity(self) -> dict[str, Any]:
        return {
            "trajectories": len(self),
            "timesteps": self.num_timesteps,
            "grows": self._refresh is not None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuses a state of other trajectories, unless they grow."""
        if not state_dict["grows"]:
            own = self._identity()
            saved = {key: state_dict[key] for key in own}
            require("TrajectoryDataset", "data", own, own == saved, f"be what it was, {saved}")
        # States of earlier versions have no counts; then those made when this was built stay.
        if self.transform is not None and "counted" in state_dict:
            self._counted = list(state_dict["counted"])
            self.transform.load_state_dict(state_dict["transform"])


class Mixture:
    """Several sources, each with a share of every batch that may change over the run.

    Of which source a trajectory of a batch comes is drawn at random, so that shares are kept on
    average whatever the size of a batch. A source that is empty is not drawn from; where all with a
    weight are, the first other one is. The state is that of the sources.

    Args:
        sources: By name.
        weights: Of each source, not negative: in proportion to them sources are drawn.
        final_weights: What they become, linearly. None: they stay.
        anneal: Counts after which they have become so, at least 1.
        count: Gives the present count: environment steps or updates so far.

    Raises:
        ValueError: The names differ, a weight is negative or none is positive; on sampling, all
            sources are empty.

    >>> parts = [(TensorDict({"x": torch.zeros(2), "is_init": torch.ones(2, 1)}, [2]), torch.tensor([2]))]
    >>> demos, own = (TrajectoryDataset([MemoryStore(parts)]) for _ in range(2))
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

    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        weights: Mapping[str, float],
        final_weights: Mapping[str, float] | None = None,
        anneal: int = 1,
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        require_at_least("Mixture", 1, anneal=anneal)
        final_weights = weights if final_weights is None else final_weights
        for name, given in (("weights", weights), ("final_weights", final_weights)):
            require(
                "Mixture",
                name,
                dict(given),
                given.keys() == sources.keys(),
                f"be of {list(sources)}",
            )
            possible = min(given.values()) >= 0 and sum(given.values()) > 0
            require("Mixture", name, dict(given), possible, "not be negative, and one be positive")
        self.sources = dict(sources)
        self._ends = {name: (float(weights[name]), float(final_weights[name])) for name in sources}
        self._anneal, self._count = anneal, count

    @property
    def weights(self) -> dict[str, float]:
        """The present weights."""
        part = min(1.0, self._count() / self._anneal)
        return {name: first + part * (last - first) for name, (first, last) in self._ends.items()}

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources.values())

    def sample(self, batch_size: int) -> TensorDictBase:
        """See `DataSource.sample`."""
        filled = [name for name, source in self.sources.items() if len(source)]
        weights = {name: self.weights[name] for name in filled if self.weights[name] > 0}
        weights = weights or dict.fromkeys(filled[:1], 1.0)
        require("Mixture", "sources", list(self.sources), bool(weights), "not all be empty")
        drawn = torch.multinomial(
            torch.tensor(list(weights.values())), batch_size, replacement=True
        )
        numbers = zip(weights, drawn.bincount(minlength=len(weights)).tolist(), strict=True)
        return join([self.sources[name].sample(number) for name, number in numbers if number])

    def state_dict(self) -> dict[str, Any]:
        """The states of the sources."""
        return {name: source.state_dict() for name, source in self.sources.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the sources."""
        for name, source in self.sources.items():
            source.load_state_dict(state_dict[name])
