"""Prioritised replay of tasks: which seeds are drawn, which are kept, and what is learned from."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tensordict import TensorDict
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate
from yamame.checks import ArgumentError
from yamame.curriculum import (
    Curriculum,
    PlayedEpisodes,
    PrioritizedReplay,
    TDErrors,
    advantages,
    prioritized,
)

DRAWS = 20_000
SCORES = {10: 5.0, 11: 1.0, 12: 3.0, 13: 3.0, 14: 0.5, 15: 0.0}
"""Scores of six seeds, two of them equal, observed in this order."""


def played(seeds, errors=None, success=None):
    """Episodes of two transitions whose errors, all alike, are given."""
    num = len(seeds)
    steps = TensorDict({"reward": torch.ones(num, 3, 1)}, [num, 3])
    if success is not None:
        flags = torch.zeros(num, 3, 1, dtype=torch.bool)
        flags[:, 1, 0] = torch.tensor(success)
        steps["success"] = flags
    trajectories = TensorDict({"next": steps}, [num, 3])

    def estimate(given):
        assert given is trajectories
        found = torch.tensor(errors).unsqueeze(-1).expand(-1, 2)
        return TDErrors(found, torch.ones(num, 2, dtype=torch.bool), 0.9)

    return PlayedEpisodes(torch.tensor(seeds), trajectories, estimate)


def filled(**options):
    curriculum = PrioritizedReplay(**{"score": "td_error", "min_seeds": 1, **options})
    curriculum.observe(played(list(SCORES), list(SCORES.values())))
    return curriculum


def drawn(curriculum, num=DRAWS, seed=0):
    """How often each seed of the table is chosen, and how often a new one is."""
    uniform = torch.rand(num, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    new = torch.arange(1000, 1000 + num)
    chosen = curriculum.choose(new, uniform)
    is_new = chosen == new
    counts = [int((chosen == task_seed).sum()) for task_seed in curriculum.seeds.tolist()]
    assert sum(counts) + int(is_new.sum()) == num
    return [*counts, int(is_new.sum())]


def expected(*, replay=0.5, temperature=1.0, staleness=0.1):
    """The law of the paper, computed seed by seed."""
    values = list(SCORES.values())
    by_score, by_age = [], []
    for place, score in enumerate(values):
        higher = sum(other > score for other in values)
        equal = values.count(score)
        by_score.append((higher + (equal + 1) / 2) ** (-1 / temperature))
        by_age.append(len(values) - 1 - place)
    shares = []
    for weight, age in zip(by_score, by_age, strict=True):
        share = (1 - staleness) * weight / sum(by_score) + staleness * age / sum(by_age)
        shares.append(DRAWS * replay * share)
    return [*shares, DRAWS * (1 - replay)]


@pytest.mark.parametrize(
    "law",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 3.0, "staleness": 0.7},
        {"staleness": 0.0, "replay": 0.8},
    ],
)
def test_seeds_are_drawn_by_rank_and_by_age(law):
    options = {key: value for key, value in law.items() if key != "replay"}
    counts = drawn(filled(**options, replay_probability=law.get("replay", 0.5)))
    assert chisquare(counts, expected(**law)).pvalue > 1e-3
    # Every part of the law is noticed.
    for other in ({"temperature": 0.6}, {"staleness": 0.4}, {"replay": 0.6}):
        assert chisquare(counts, expected(**{**law, **other})).pvalue < 1e-6


def test_before_there_are_enough_seeds_every_task_is_new():
    assert drawn(filled(min_seeds=7))[:-1] == [0] * 6
    assert drawn(filled(min_seeds=6))[-1] < 0.6 * DRAWS
    assert drawn(filled(replay_probability=0.0))[-1] == DRAWS
    assert drawn(filled(replay_probability=1.0))[-1] == 0


class Plain:
    """The table as a dictionary of dictionaries: the specification."""

    def __init__(self, capacity):
        self.capacity, self.kept, self.time = capacity, {}, 0

    def weights(self):
        scores = [entry["score"] for entry in self.kept.values()]
        ages = [self.time - entry["time"] for entry in self.kept.values()]
        ranks = [sum(o > s for o in scores) + (scores.count(s) + 1) / 2 for s in scores]
        total = sum(1 / rank for rank in ranks)
        found = {}
        for task_seed, rank, age in zip(self.kept, ranks, ages, strict=True):
            old = age / sum(ages) if sum(ages) else 1 / len(ages)
            found[task_seed] = 0.9 / rank / total + 0.1 * old
        return found

    def add(self, task_seed, score):
        self.time += 1
        if task_seed not in self.kept and len(self.kept) == self.capacity:
            weights = self.weights()
            worst = min(weights, key=weights.get)
            least = min(weights.values())
            # Of two that are equal but for rounding, either may go.
            if sum(weight < least + 1e-12 for weight in weights.values()) > 1:
                return False
            if self.kept[worst]["score"] >= score:
                return True
            del self.kept[worst]
        self.kept[task_seed] = {"score": score, "time": self.time}
        return True


EPISODES = st.lists(
    st.tuples(st.integers(0, 12), st.floats(0, 4, width=32)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(EPISODES)
def test_the_table_keeps_what_the_plain_one_keeps(episodes):
    plain, curriculum = Plain(4), PrioritizedReplay(score="td_error", capacity=4, min_seeds=1)
    for task_seed, score in episodes:
        if not plain.add(task_seed, score):
            return
        curriculum.observe(played([task_seed], [score]))
        found = dict(
            zip(curriculum.seeds.tolist(), curriculum.probabilities().tolist(), strict=True)
        )
        assert found == pytest.approx(plain.weights())


def test_a_robust_curriculum_learns_from_replayed_tasks_alone():
    episodes = played([10, 99, 15], [0.0, 9.0, 9.0])
    assert filled(robust=True).observe(episodes).tolist() == [True, False, True]
    assert filled().observe(episodes) is None
    # What was new is scored all the same, and is no longer new.
    curriculum = filled(robust=True)
    curriculum.observe(episodes)
    assert curriculum.observe(played([99], [1.0])).tolist() == [True]


def test_a_replay_whose_seed_was_evicted_meanwhile_is_learned_from(monkeypatch):
    curriculum = filled(robust=True, capacity=6)
    curriculum.observe(played([20, 21], [9.0, 9.0]))
    gone = [seed for seed in SCORES if seed not in curriculum.seeds.tolist()]
    assert gone == [14, 15]
    restored = PrioritizedReplay(score="td_error", min_seeds=1, robust=True, capacity=6)
    restored.load_state_dict(curriculum.state_dict())
    for each in (curriculum, restored):
        # Seed 22 is new, and has no place in the table: it is dropped every time.
        found = each.observe(played([15, 22, 14], [0.0, 0.0, 0.0]))
        assert found.tolist() == [True, False, True]
        assert each.observe(played([22, 15], [0.0, 0.0])).tolist() == [False, True]
    # Old seeds are forgotten, as the memory of a run must not grow.
    monkeypatch.setattr(prioritized, "_REMEMBERED_SEEDS", 2)
    curriculum.observe(played([23], [9.0]))
    assert curriculum.observe(played([15, 14], [0.0, 0.0])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("score", "better", "worse"),
    [
        ("td_error", [-3.0], [2.0]),
        ("value_loss", [-3.0], [2.0]),
        ("positive_value_loss", [2.0], [-3.0]),
    ],
)
def test_scores_are_of_the_errors_of_critics(score, better, worse):
    curriculum = PrioritizedReplay(score=score)
    curriculum.observe(played([1, 2], [*better, *worse]))
    first, second = curriculum.scores.tolist()
    assert first > second


def test_a_new_seed_of_an_equal_score_does_not_replace_one():
    curriculum = filled(capacity=6)
    curriculum.observe(played([20], [0.0]))
    assert curriculum.seeds.tolist() == list(SCORES)
    curriculum.observe(played([21], [0.1]))
    assert curriculum.seeds.tolist() == [*list(SCORES)[:-1], 21]


@pytest.mark.parametrize("error", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_network_scores_nothing(error):
    curriculum = PrioritizedReplay(score="value_loss", min_seeds=1)
    curriculum.observe(played([1, 2], [error, 1.0]))
    assert curriculum.scores.tolist() == [0.0, pytest.approx(1.0 * (1 + 1 + 0.9 * 0.95) / 2)]
    assert curriculum.probabilities().isfinite().all()


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1e-2])
def test_equal_scores_share_all_draws_at_any_temperature(temperature):
    curriculum = PrioritizedReplay(temperature=temperature, staleness=0.0)
    assert curriculum.probabilities().tolist() == []
    curriculum.observe(played([*range(32), 99], [1.0] * 32 + [0.0]))
    assert curriculum.probabilities().tolist() == pytest.approx([1 / 32] * 32 + [0.0])


def test_what_is_solved_now_and_then_is_learned_most_from():
    curriculum = PrioritizedReplay(score="learnability")
    for number in range(8):
        curriculum.observe(played([1, 2, 3], success=[True, number % 2 == 0, False]))
    solved, mixed, hopeless = curriculum.scores.tolist()
    assert mixed > max(solved, hopeless)
    # Old plays are forgotten.
    for _ in range(40):
        curriculum.observe(played([2], success=[True]))
    assert float(curriculum.scores[1]) == pytest.approx(6 / 7 * 1 / 7, abs=1e-3)
    with pytest.raises(ArgumentError, match="reports no success"):
        curriculum.observe(played([1]))


def test_a_restored_curriculum_goes_on_as_the_saved_one():
    curriculum = filled(robust=True, capacity=7)
    state = curriculum.state_dict()
    saved = copy.deepcopy(state)

    def continued(each):
        masks = [each.observe(played([20 + n, 10, 12], [4.0, 0.1 * n, 2.0])) for n in range(5)]
        return torch.stack(masks), each.seeds, each.probabilities(), drawn(each), each.metrics()

    first = continued(curriculum)
    assert all(torch.equal(state["table"][name], saved["table"][name]) for name in state["table"])
    other = PrioritizedReplay(score="td_error", min_seeds=1, robust=True, capacity=7)
    other.load_state_dict(saved)
    second = continued(other)
    assert isinstance(other, Curriculum)
    for one, another in zip(first, second, strict=True):
        assert torch.equal(one, another) if isinstance(one, torch.Tensor) else one == another
    assert drawn(filled()) != second[3]


def test_advantages_are_those_of_torchrl():
    generator = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(3, 6, 1, generator=generator) for _ in range(2))
    later = torch.randn(3, 6, 1, generator=generator)
    done = torch.zeros(3, 6, 1, dtype=torch.bool)
    done[:, -1] = True
    expected_advantage, _ = vec_generalized_advantage_estimate(
        0.9, 0.8, value, value.roll(-1, 1).where(~done, later), reward, done, done
    )
    next_value = torch.where(done, 0.0, value.roll(-1, 1))
    errors = (reward + 0.9 * next_value - value).squeeze(-1)
    td = TDErrors(errors, torch.ones(3, 6, dtype=torch.bool), 0.9)
    torch.testing.assert_close(advantages(td, 0.8), expected_advantage.squeeze(-1))
    assert not torch.allclose(advantages(td, 0.7), expected_advantage.squeeze(-1))


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 8, "min_seeds": 9},
        {"score": "regret"},
        {"temperature": 0.0},
        {"staleness": 1.5},
        {"robust": "no"},
        {"robust": True, "replay_probability": 0.0},
    ],
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(ArgumentError, match=list(options)[-1]):
        PrioritizedReplay(**options)


def test_a_state_with_more_seeds_than_there_is_room_for_is_refused():
    state = filled().state_dict()
    smaller = PrioritizedReplay(score="td_error", min_seeds=1, capacity=len(SCORES) - 1)
    with pytest.raises(ArgumentError, match=rf"capacity must be at least {len(SCORES)}"):
        smaller.load_state_dict(state)
    assert len(smaller) == 0
    same = PrioritizedReplay(score="td_error", min_seeds=1, capacity=len(SCORES))
    same.load_state_dict(state)
    same.observe(played([50], [9.0]))
    assert len(same) == len(SCORES)
