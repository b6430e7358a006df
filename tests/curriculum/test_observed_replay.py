"""Replay that shows finished episodes to a curriculum: their seeds, their errors, and what is
stored.
"""

import pytest
import torch
from tensordict import TensorDict
from yamame.checks import ArgumentError
from yamame.curriculum import ObservedReplay, replay

LENGTHS = (3, 9, 1, 5, 9, 2)
SEEDS = (30, 31, 32, 33, 34, 35)


class Shelf(list):
    """Replay that keeps what it is given."""

    fields = ("goal",)

    def extend(self, data):
        self.append(data)


def finished():
    """Right-padded trajectories of some lengths, whose observation numbers their timesteps."""
    num, longest = len(LENGTHS), max(LENGTHS)
    step = torch.arange(longest + 1).expand(num, -1)
    length = torch.tensor(LENGTHS).unsqueeze(-1)
    row = torch.arange(num).unsqueeze(-1)
    seeds = torch.tensor(SEEDS).unsqueeze(-1)
    observed = torch.where(step <= length, 100 * row + step, 0)
    return TensorDict(
        {
            "observation": observed.unsqueeze(-1),
            "mask": (step <= length).unsqueeze(-1),
            "next": {"played_seed": torch.where(step < length, seeds, 0).unsqueeze(-1)},
        },
        [num, longest + 1],
    )


def numbered(trajectories):
    """The observation from which each transition departs, in the place of its error."""
    mask = trajectories["mask"].squeeze(-1)
    departs = trajectories["observation"].squeeze(-1)[:, :-1].float() + 1.0
    return torch.where(mask[:, 1:], departs, 0.0)


def observed(max_steps=100, kept=None, estimate=numbered):
    shelf, seen = Shelf(), []

    def observe(episodes):
        seen.append(episodes)
        return kept

    given = {"observe": observe, "td_errors": estimate, "discount": 0.5, "max_steps": max_steps}
    each = ObservedReplay(shelf, **given)
    each.extend(finished())
    return each, shelf, seen[0]


@pytest.mark.parametrize("at_once", [1, 12, 16384])
def test_errors_are_in_the_place_of_their_transitions(monkeypatch, at_once):
    monkeypatch.setattr(replay, "_TIMESTEPS_AT_ONCE", at_once)
    calls = []

    def estimate(part):
        calls.append(tuple(part.shape))
        return numbered(part)

    each, shelf, episodes = observed(estimate=estimate)
    assert calls == []  # nothing is computed that is not read
    assert episodes.task_seed.tolist() == list(SEEDS)
    td = episodes.td_errors
    assert torch.equal(td.errors, numbered(finished()))
    assert td.valid.sum(-1).tolist() == list(LENGTHS)
    assert td.discount == 0.5
    assert len(calls) == {1: 6, 12: 4, 16384: 1}[at_once]
    assert len(each) == len(shelf) == 1
    assert each.fields == ("goal",)


def test_of_long_episodes_the_end_is_evaluated():
    td = observed(max_steps=4)[2].td_errors
    whole = numbered(finished())
    for row, length in enumerate(LENGTHS):
        first = max(0, length - 4)
        assert td.valid[row].nonzero().flatten().tolist() == list(range(first, length))
        assert torch.equal(td.errors[row, first:], whole[row, first:])
        assert not td.errors[row, :first].any()


def test_only_what_the_curriculum_returns_is_stored():
    kept = torch.tensor([True, False, False, True, False, False])
    _, shelf, _ = observed(kept=kept)
    (stored,) = shelf
    assert stored["observation"][:, 1, 0].tolist() == [1, 301]
    assert ("next", "played_seed") not in stored.keys(True)
    assert list(observed()[1][0].batch_size) == [6, 10]
    assert observed(kept=torch.zeros(6, dtype=torch.bool))[1] == []
    with pytest.raises(ArgumentError, match=r"observe.*bool"):
        observed(kept=torch.ones(5, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="CurriculumEnv"):
        observed()[0].extend(finished().exclude(("next", "played_seed")))
