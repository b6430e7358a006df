"""Sources and mixtures: drawn as they say, from whoever has something, and restored as they
were.
"""

from collections import Counter

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.transforms import Compose
from yamame.data import MemoryStore, Mixture, TrajectoryDataset
from yamame.replay import SequencePacking, TrajectoryReplayBuffer, Window


def store(*lengths, start=0):
    """Trajectories whose entry x is their number, from ``start`` on."""
    number = torch.repeat_interleave(torch.arange(len(lengths)) + start, torch.tensor(lengths))
    first = torch.cat([torch.arange(n) == 0 for n in lengths])
    return MemoryStore(
        [
            (
                TensorDict({"x": number, "is_init": first.unsqueeze(-1)}, [sum(lengths)]),
                torch.tensor(lengths),
            )
        ]
    )


def numbers(batch):
    return batch["x"][batch["is_init"].squeeze(-1)].tolist()


@pytest.mark.parametrize(
    ("by", "expected"), [("trajectory", [1, 1, 1, 1]), ("timestep", [4, 1, 0, 7])]
)
def test_each_trajectory_of_all_stores_is_drawn_as_often_as_it_should_be(monkeypatch, by, expected):
    dataset = TrajectoryDataset([store(5, 2), store(1, 8, start=2)], sample_by=by)
    monkeypatch.setattr(torch, "randint", lambda high, size: torch.arange(high))
    assert [Counter(numbers(dataset.sample(sum(expected))))[n] for n in range(4)] == expected


def test_trajectories_are_whole_and_transforms_see_them_whole():
    dataset = TrajectoryDataset([store(5, 2, 7)])
    batch = dataset.sample(30)
    assert Counter(batch["mask"].sum(1).flatten().tolist()).keys() == {5, 2, 7}
    assert (batch["x"][~batch["mask"].squeeze(-1)] == 0).all()
    cut = TrajectoryDataset([store(5, 2, 7)], transform=Compose(Window(3), SequencePacking()))
    assert cut.sample(9).shape[1] == 4


def test_nothing_to_draw_and_other_trajectories_are_refused():
    with pytest.raises(
        ValueError, match=r"trajectories must be at least one with a transition, got 2"
    ):
        TrajectoryDataset([store(1, 1)])
    with pytest.raises(ValueError, match=r"sample_by must be one of .*'timestep'.*, got 'luck'"):
        TrajectoryDataset([store(3)], sample_by="luck")
    state = TrajectoryDataset([store(3, 4)]).state_dict()
    TrajectoryDataset([store(4, 3)]).load_state_dict(state)
    with pytest.raises(
        ValueError,
        match=r"data must be those of the state, .*'timesteps': 7.*, got .*'timesteps': 8",
    ):
        TrajectoryDataset([store(4, 4)]).load_state_dict(state)
    grows = TrajectoryDataset([store(3, 4)], refresh=lambda: None)
    grows.load_state_dict(TrajectoryDataset([store(9)], refresh=lambda: None).state_dict())


def mixture(**options):
    sources = {"a": TrajectoryDataset([store(3)]), "b": TrajectoryDataset([store(5, start=1)])}
    return Mixture(sources, **{"weights": {"a": 1.0, "b": 3.0}, **options})


def test_shares_follow_the_weights_and_move_with_the_count():
    torch.manual_seed(0)
    share = Counter(numbers(mixture().sample(4000)))[1] / 4000
    assert abs(share - 0.75) < 0.028  # four standard deviations
    count = 0
    moving = mixture(final_weights={"a": 1.0, "b": 0.0}, anneal=10, count=lambda: count)
    drawn = []
    for count in (0, 5, 10, 99):
        drawn.append(Counter(numbers(moving.sample(4000)))[1] / 4000)
        assert moving.weights["b"] == pytest.approx(max(0.0, 3.0 * (1 - count / 10)))
    assert abs(drawn[0] - 0.75) < 0.028
    assert abs(drawn[1] - 0.6) < 0.031
    assert drawn[2:] == [0.0, 0.0]


def test_an_empty_source_is_not_drawn_from(tmp_path):
    replay = TrajectoryReplayBuffer(tmp_path / "replay", capacity=100)
    mixed = Mixture(
        {"data": TrajectoryDataset([store(3)]), "replay": replay},
        weights={"data": 0.2, "replay": 0.8},
    )
    assert set(numbers(mixed.sample(20))) == {0}
    replay.extend(store(4, start=1).get([0]))
    assert set(numbers(mixed.sample(40))) == {0, 1}
    assert len(mixed) == 2
    alone = Mixture(
        {"replay": TrajectoryReplayBuffer(tmp_path / "b", capacity=9)}, weights={"replay": 1}
    )
    with pytest.raises(ValueError, match=r"sources must not all be empty, got \['replay'\]"):
        alone.sample(3)
    unweighted = Mixture(
        {**mixed.sources, "replay": alone.sources["replay"]}, weights={"data": 0.0, "replay": 1.0}
    )
    assert set(numbers(unweighted.sample(5))) == {0}


def test_a_restored_mixture_draws_the_same_again(tmp_path):
    def build(resume):
        replay = TrajectoryReplayBuffer(tmp_path / "replay", capacity=100, resume=resume)
        sources = {"data": TrajectoryDataset([store(3, 4)]), "replay": replay}
        return Mixture(sources, weights={"data": 1.0, "replay": 1.0}), replay

    mixed, replay = build(False)
    replay.extend(store(4, 6, start=2).get([0, 1]))
    state, random = mixed.state_dict(), torch.get_rng_state()
    replay.protect()
    expected = numbers(mixed.sample(30))
    replay.extend(store(9, start=7).get([0]))
    replay.close()
    again, _ = build(True)
    assert len(again) == 5
    again.load_state_dict(state)
    torch.set_rng_state(random)
    assert numbers(again.sample(30)) == expected
    assert len(set(expected)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"a": 1.0}}, r"weights must be of \['a', 'b'\], got \{'a': 1.0\}"),
        ({"weights": {"a": -1.0, "b": 2.0}}, r"weights must not be negative"),
        (
            {"final_weights": {"a": 0.0, "b": 0.0}},
            r"final_weights must not be negative, and one be positive",
        ),
        ({"anneal": 0}, r"anneal must be at least 1, got 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        mixture(**options)
