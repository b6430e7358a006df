"""Prioritised replay of tasks by their seeds."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from yamame.checks import (
    PositiveFloat,
    PositiveInt,
    UnitInterval,
    check_bounds,
    require,
    require_choice,
)
from yamame.curriculum.base import PlayedEpisodes
from yamame.curriculum.scores import positive_value_loss, value_loss

Score = Literal["positive_value_loss", "value_loss", "td_error", "learnability"]
_REMEMBERED_PLAYS = 5.0
"""Plays of a task that its rate of success is an average of, at most: the agent changes."""
_REMEMBERED_SEEDS = 65_536
"""Last seeds without a place in the table whose replays may still be played."""


class PrioritizedReplay:
    """Replays tasks from which much can be learned (prioritised level replay, arXiv 2010.03934).

    The table holds the seeds of tasks that were played, each with a score and the number of
    episodes since it was last observed. The next episode of an env is, with probability
    ``replay_probability``, an episode of a seed in the table, and otherwise of a new task. A seed
    is drawn with probability ``(1 - staleness) P_S + staleness P_C``, where P_S is proportional to
    ``rank^(-1 / temperature)`` of its score (the highest has rank 1; equal scores share their mean
    rank) and P_C to the episodes since it was last observed. A new seed enters the full table in
    place of the seed of the smallest probability, if that has a smaller score.

    Scores of an episode, all of the last one of its seed but for ``learnability``:

    * ``positive_value_loss``: mean positive part of the generalised advantages (arXiv 2110.02439);
    * ``value_loss``: their mean magnitude (arXiv 2010.03934);
    * ``td_error``: mean magnitude of the one-step errors of the critics;
    * ``learnability``: ``p (1 - p)`` for the rate of success p of the seed (arXiv 2408.15099),
      estimated from about its last five episodes; critics are not needed.

    It has no generator: choices are a function of new seeds, their random numbers and the table.

    Args:
        score: Score of a task.
        temperature: Temperature of the ranks. At 0.1, nearly all draws are of the first one; the
            larger, the more alike all seeds are.
        replay_probability: Probability of a replay, once there are ``min_seeds``.
        staleness: Share of the draws that goes by the time since a seed was observed.
        capacity: Largest number of seeds.
        min_seeds: Seeds before the first replay, at most ``capacity``.
        robust: Learn from replayed tasks alone (arXiv 2110.02439): episodes of new tasks are scored
            and dropped. A replay is learned from even if its seed has lost its place in the
            meantime. Steps of dropped episodes count for ``schedule.updates_per_step``, so each
            stored step takes part in about ``1 / replay_probability`` as many updates.
        gae_lambda: Trace parameter of the advantages.

    Raises:
        ArgumentError: A number is out of its range, ``robust`` never replays, there is no such
            score, or, when episodes are observed, the environment reports no success, which
            ``learnability`` needs.

    >>> curriculum = PrioritizedReplay(min_seeds=1, replay_probability=1.0)
    >>> new = torch.tensor([7])
    >>> curriculum.choose(new, torch.rand(1, 2)).tolist()
    [7]
    """

    @check_bounds
    def __init__(
        self,
        *,
        score: Score = "positive_value_loss",
        temperature: PositiveFloat = 1.0,
        replay_probability: UnitInterval = 0.5,
        staleness: UnitInterval = 0.1,
        capacity: PositiveInt = 256,
        min_seeds: PositiveInt = 32,
        robust: bool = False,
        gae_lambda: UnitInterval = 0.95,
    ) -> None:
        owner = type(self).__name__
        require_choice(owner, "score", score, get_args(Score))
        condition = f"be at most capacity, {capacity}"
        require(owner, "min_seeds", min_seeds, min_seeds <= capacity, condition)
        learns = not robust or replay_probability > 0
        condition = "be above 0 with robust, which learns from replays alone"
        require(owner, "replay_probability", replay_probability, learns, condition)
        self.score = score
        self.temperature = temperature
        self.replay_probability = replay_probability
        self.staleness = staleness
        self.capacity = capacity
        self.min_seeds = min_seeds
        self.robust = robust
        self.gae_lambda = gae_lambda
        self._table = {
            "seed": torch.zeros(0, dtype=torch.int64),
            "score": torch.zeros(0, dtype=torch.float64),
            # Number of the last observed episode.
            "observed": torch.zeros(0, dtype=torch.int64),
            # Sums over the last episodes, older ones with less weight.
            "plays": torch.zeros(0, dtype=torch.float64),
            "successes": torch.zeros(0, dtype=torch.float64),
        }
        self._rows: dict[int, int] = {}
        # Seeds that have lost their place, the last one at the end. Environments may still play
        # them, and only a replay can play a seed again.
        self._evicted: dict[int, None] = {}
        self._num_observed = 0
        self._num_replayed = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def needs(self) -> tuple[str, ...]:
        """See `Curriculum`."""
        return ("success",) if self.score == "learnability" else ("td_errors",)

    @property
    def seeds(self) -> Tensor:
        """Seeds in the table, ``[K]`` int64."""
        return self._table["seed"].clone()

    @property
    def scores(self) -> Tensor:
        """Their scores, ``[K]`` float64."""
        return self._table["score"].clone()

    def probabilities(self) -> Tensor:
        """Return the probabilities ``[K]`` float64 with which a replay draws the seeds."""
        if not len(self):
            return torch.zeros(0, dtype=torch.float64)
        ranks = self._ranks()
        # Relative to the first rank, which may be a shared one: at a small temperature, all powers
        # could vanish otherwise.
        by_score = (ranks / ranks.min()).pow(-1.0 / self.temperature)
        by_score = by_score / by_score.sum()
        age = (self._num_observed - self._table["observed"]).to(torch.float64)
        total = age.sum()
        # All are of equal age only if there is one.
        by_age = age / total if total > 0 else torch.full_like(age, 1.0 / len(age))
        return torch.lerp(by_score, by_age, self.staleness)

    def _ranks(self) -> Tensor:
        """Return the ranks ``[K]`` float64 of the scores; the highest score has rank 1."""
        _, group, sizes = self._table["score"].unique(return_inverse=True, return_counts=True)
        # Of ascending groups, each has the ranks after those of all higher ones.
        higher = sizes.sum() - sizes.cumsum(0)
        return (higher + (sizes + 1) / 2.0)[group].to(torch.float64)

    def choose(self, seeds: Tensor, uniform: Tensor) -> Tensor:
        """See `Curriculum.choose`."""
        if len(self) < self.min_seeds:
            return seeds
        bounds = self.probabilities().cumsum(0)
        # Rounding may leave the last bound below the largest number.
        row = torch.searchsorted(bounds, uniform[:, 1].contiguous(), right=True)
        drawn = self._table["seed"][row.clamp(max=len(self) - 1)]
        replays = uniform[:, 0] < self.replay_probability
        return torch.where(replays, drawn, seeds)

    def observe(self, episodes: PlayedEpisodes) -> Tensor | None:
        """Score episodes, and return those that are learned from, see `Curriculum.observe`."""
        seeds = episodes.task_seed.tolist()
        was_played = [seed in self._rows or seed in self._evicted for seed in seeds]
        replayed = torch.tensor(was_played)
        success = self._success(episodes)
        for seed, score, done in zip(seeds, self._scores(episodes), success, strict=True):
            self._num_observed += 1
            self._add(seed, score, done)
        self._num_replayed += int(replayed.sum())
        return replayed if self.robust else None

    def _success(self, episodes: PlayedEpisodes) -> list[float]:
        success = episodes.success
        if success is None:
            owner = type(self).__name__
            condition = "not be learnability, as the environment reports no success"
            require(owner, "score", self.score, self.score != "learnability", condition)
            return [0.0] * len(episodes)
        return success.to(torch.float64).tolist()

    def _scores(self, episodes: PlayedEpisodes) -> list[float]:
        """Return scores from critics; those of ``learnability`` follow from the table."""
        if self.score == "learnability":
            return [0.0] * len(episodes)
        td = episodes.td_errors
        if self.score == "positive_value_loss":
            scores = positive_value_loss(td, self.gae_lambda)
        elif self.score == "value_loss":
            scores = value_loss(td, self.gae_lambda)
        else:
            scores = value_loss(td, 0.0)
        # Values of a diverged network have no rank.
        return scores.to(torch.float64).nan_to_num(nan=0.0, posinf=0.0).tolist()

    def _add(self, seed: int, score: float, success: float) -> None:
        """Write an episode into the table, unless the seed is new and not worth a place."""
        row = self._rows.get(seed)
        plays = successes = 0.0
        if row is not None:
            plays = float(self._table["plays"][row])
            successes = float(self._table["successes"][row])
        # With this decay, the weights of all plays sum up to _REMEMBERED_PLAYS.
        decay = 1.0 - 1.0 / _REMEMBERED_PLAYS
        plays = decay * plays + 1.0
        successes = decay * successes + success
        if self.score == "learnability":
            # A rate of 1/2 is the expectation before the first play.
            rate = (successes + 1.0) / (plays + 2.0)
            score = rate * (1.0 - rate)
        if row is None:
            row = self._place(score)
        if row is None:
            return

        entry = {
            "seed": seed,
            "score": score,
            "observed": self._num_observed,
            "plays": plays,
            "successes": successes,
        }
        for name, value in entry.items():
            self._table[name][row] = value
        self._rows[seed] = row

    def _place(self, score: float) -> int | None:
        """Return a free row for a new seed; None if no seed in the table has a smaller score."""
        if len(self) < self.capacity:
            for name, column in self._table.items():
                self._table[name] = torch.cat([column, column.new_zeros(1)])
            return len(self)
        row = int(self.probabilities().argmin())
        if float(self._table["score"][row]) >= score:
            return None
        evicted = int(self._table["seed"][row])
        del self._rows[evicted]
        self._evicted.pop(evicted, None)
        self._evicted[evicted] = None
        if len(self._evicted) > _REMEMBERED_SEEDS:
            del self._evicted[next(iter(self._evicted))]
        return row

    def metrics(self) -> dict[str, float]:
        """Return the number of seeds, their mean score, and the share of replayed episodes."""
        share = self._num_replayed / max(1, self._num_observed)
        metrics = {"seeds": float(len(self)), "replayed": share}
        if len(self):
            metrics["score"] = float(self._table["score"].mean())
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the table, the seeds that have left it, and the counters."""
        return {
            "table": {name: column.clone() for name, column in self._table.items()},
            "evicted": torch.tensor(list(self._evicted), dtype=torch.int64),
            "num_observed": self._num_observed,
            "num_replayed": self._num_replayed,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`.

        Raises:
            ArgumentError: An entry is missing, or the state has more seeds than ``capacity``.
        """
        names = sorted(state_dict)
        for name in ("table", "num_observed", "num_replayed"):
            condition = f"hold {name}"
            require(type(self).__name__, "state_dict", names, name in state_dict, condition)
        num_seeds = len(state_dict["table"]["seed"])
        condition = f"be at least {num_seeds}, the number of seeds in the state"
        fits = num_seeds <= self.capacity
        require(type(self).__name__, "capacity", self.capacity, fits, condition)
        self._table = {name: column.clone() for name, column in state_dict["table"].items()}
        self._rows = {seed: row for row, seed in enumerate(self._table["seed"].tolist())}
        # Checkpoints of earlier versions have none.
        evicted = state_dict.get("evicted", torch.zeros(0, dtype=torch.int64))
        self._evicted = dict.fromkeys(evicted.tolist())
        self._num_observed = int(state_dict["num_observed"])
        self._num_replayed = int(state_dict["num_replayed"])
