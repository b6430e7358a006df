"""Goals of data are counted as those of replay are, each trajectory once, so that rare goals are
drawn more often.
"""

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import Compose
from yamame.data import MemoryStore, Mixture, TrajectoryDataset, hdf5, npz, runs, torchrl
from yamame.replay import GoalFrequencies, Relabel, TrajectoryReplayBuffer, Window
from yamame.testing import goal_trajectories

COMMON, RARE = 0.0, 1.0
LENGTH = 6


def trajectories(*goals: float) -> TensorDict:
    """A trajectory for each goal, which holds at all of its timesteps; what was asked for is never
    achieved.
    """
    achieved = torch.tensor(goals).reshape(-1, 1, 1, 1).expand(-1, LENGTH, 1, 1)
    mask = torch.ones(len(goals), LENGTH, dtype=torch.bool)
    batch = goal_trajectories(
        torch.full((len(goals), 1, 1), 99.0), achieved, mask.unsqueeze(-1), mask
    )
    return batch.exclude(("next", "done"))  # as they are stored


def store(batch: TensorDict) -> MemoryStore:
    return MemoryStore([(batch.reshape(-1).exclude("mask"), torch.full((len(batch),), LENGTH))])


def relabeller(**settings) -> Relabel:
    return Relabel("all", rarity=GoalFrequencies(), **settings)


def weights(relabel: Relabel, *goals: float) -> list[float]:
    return relabel.rarity.weights(torch.tensor(goals).unsqueeze(-1)).tolist()


def counts(relabel: Relabel) -> dict[str, list]:
    """The whole table, as plain numbers."""
    return {name: value.tolist() for name, value in relabel.rarity.state_dict().items()}


def counted_directly(*batches: TensorDict) -> dict[str, list]:
    relabel = relabeller()
    for batch in batches:
        relabel.rarity.update(batch["achieved"], batch["achieved_mask"], batch["mask"])
    return counts(relabel)


@pytest.fixture
def replay(tmp_path):
    """Makes a replay buffer with a transform."""
    return lambda relabel, **options: TrajectoryReplayBuffer(
        tmp_path / "own", transform=Compose(relabel, Window(4)), **{"capacity": 1_000} | options
    )


def test_a_goal_as_frequent_in_data_as_another_in_replay_weighs_as_much(replay):
    relabel = relabeller()
    in_data, in_replay, everywhere = 3.0, 4.0, 5.0
    data = TrajectoryDataset([store(trajectories(in_data, *[everywhere] * 4))], transform=relabel)
    buffer = replay(relabel)
    buffer.extend(trajectories(in_replay, *[everywhere] * 4))
    mixture = Mixture({"data": data, "replay": buffer}, weights={"data": 0.5, "replay": 0.5})
    for _ in range(3):
        mixture.sample(4)  # drawing counts nothing
    of_data, of_replay, of_both, unseen = weights(relabel, in_data, in_replay, everywhere, 6.0)
    assert of_data == of_replay
    assert of_both < of_data < unseen


def test_of_data_alone_rare_goals_are_drawn_more_often():
    batch = trajectories(*[COMMON] * 8)
    batch["achieved"][:, 3] = RARE  # one of five timesteps
    shares = {}
    for name, relabel in (("rarity", relabeller()), ("uniform", Relabel("all"))):
        torch.manual_seed(0)
        dataset = TrajectoryDataset([store(batch)], transform=relabel)
        shares[name] = (dataset.sample(2_000)["goal"][:, 0] == RARE).float().mean().item()
    assert shares["uniform"] == pytest.approx(0.2, abs=0.03)
    assert shares["rarity"] > 0.6


def test_every_trajectory_of_every_store_is_counted_once():
    batches = trajectories(*[COMMON] * 5, RARE), trajectories(RARE, 2.0)
    relabel = relabeller()
    dataset = TrajectoryDataset(
        [store(batch) for batch in batches], transform=Compose(Window(3), relabel)
    )
    assert counts(relabel) == counted_directly(*batches)
    other = relabeller()
    for batch in batches:
        TrajectoryDataset([store(batch)], transform=other)
    assert counts(other) == counts(relabel)
    twice = relabeller()
    TrajectoryDataset(dataset.stores * 2, transform=twice)
    assert counts(twice) != counts(relabel)


def test_long_and_many_trajectories_are_counted_in_parts(monkeypatch):
    monkeypatch.setattr("yamame.replay.frequencies.COUNTED_AT_ONCE", 3 * LENGTH)
    batch, relabel = trajectories(*torch.arange(20.0).remainder(7).tolist()), relabeller()
    read = []

    class Watched(MemoryStore):
        def get(self, index):
            read.append(len(index))
            return super().get(index)

    TrajectoryDataset(
        [Watched([(batch.reshape(-1).exclude("mask"), torch.full((20,), LENGTH))])],
        transform=relabel,
    )
    assert (sum(read), max(read)) == (20, 3)
    assert counts(relabel) == counted_directly(batch)
    read.clear()
    TrajectoryDataset(
        [Watched([(batch.reshape(-1), torch.full((20,), LENGTH))])], transform=Relabel("all")
    )
    assert read == []  # where nothing counts, nothing is read


@pytest.mark.parametrize("source", ["runs", "npz", "hdf5", "torchrl"])
def test_every_source_counts_its_goals(collected, files, source):
    data, relabel = collected("goals"), relabeller()
    if source == "runs":
        runs(str(data.path), format=data.format, transform=relabel)
    elif source == "npz":
        npz(files.write(data.path, data.arrays), format=data.format, transform=relabel)
    elif source == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(data.path / "all.hdf5", "w") as file:
            for number, held in enumerate(data.arrays):
                for key, value in held.items():
                    file[f"{number}/{key}"] = value
        hdf5(str(data.path / "all.hdf5"), format=data.format, transform=relabel)
    else:
        torchrl(_rollout(data), format=data.format, transform=relabel)
    assert counts(relabel) == counted_directly(data.buffer[:])


def _rollout(data) -> TensorDict:
    """The stored trajectories as TorchRL has them, one after the other."""
    episodes = []
    for number, length in enumerate(data.buffer.storage.lengths.tolist()):
        held = data.buffer.storage.get(number)[:length]
        steps = held[:-1].exclude("mask")
        for key in data.format.observed:
            steps["next", key] = held[key][1:]
        episodes.append(steps)
    return torch.cat(episodes)


def test_what_a_followed_run_appends_is_counted_once_and_what_it_evicts_stays_counted(
    tmp_path, collected
):
    data = collected("goals")
    stored = data.buffer[:]
    writer = TrajectoryReplayBuffer(tmp_path / "grows", capacity=4 * stored.shape[1])
    relabel = relabeller()
    writer.extend(stored[:2])
    dataset = runs(str(tmp_path / "grows"), format=data.format, transform=relabel, follow=True)
    assert counts(relabel) == counted_directly(stored[:2])
    for first in range(2, 14, 2):  # the oldest are evicted
        writer.extend(stored[first : first + 2])
        for _ in range(2):
            dataset.sample(3)
        assert counts(relabel) == counted_directly(stored[: first + 2])
    assert len(dataset) < 14 <= len(stored) - 2

    resumed = relabeller()
    again = runs(str(tmp_path / "grows"), format=data.format, transform=resumed, follow=True)
    assert counts(resumed) != counts(relabel)  # what was evicted is unknown to it
    again.load_state_dict(dataset.state_dict())
    assert counts(resumed) == counts(relabel)
    writer.extend(stored[14:16])
    for source in (dataset, again):
        source.sample(3)
    assert counts(resumed) == counts(relabel) == counted_directly(stored[:16])


def test_a_resumed_mixture_has_the_same_counts(replay):
    given, collected = trajectories(*[COMMON] * 4, RARE), trajectories(RARE, 2.0)

    def mixture(resume: bool) -> tuple[Relabel, Mixture]:
        relabel = relabeller()
        buffer = replay(relabel, resume=resume)
        sources = {"data": TrajectoryDataset([store(given)], transform=relabel), "replay": buffer}
        return relabel, Mixture(sources, weights={"data": 0.5, "replay": 0.5})

    relabel, first = mixture(resume=False)
    first.sources["replay"].extend(collected)
    state, expected = first.state_dict(), counted_directly(given, collected)
    first.sources["replay"].protect()
    first.sources["replay"].close()
    assert counts(relabel) == expected
    resumed, second = mixture(resume=True)
    second.load_state_dict(state)
    second.sample(4)
    assert counts(resumed) == expected


def test_a_buffer_that_is_opened_again_or_gets_the_transform_later_counts_what_it_holds(replay):
    held, more = trajectories(COMMON, COMMON, RARE), trajectories(2.0)
    buffer = replay(Relabel("all"))
    buffer.extend(held)
    later = relabeller()
    buffer.append_transform(later)
    buffer.extend(more)
    assert counts(later) == counted_directly(held, more)
    buffer.close()
    relabel = relabeller()
    replay(relabel, resume=True)
    assert counts(relabel) == counted_directly(held, more)


def test_a_table_that_has_counted_nothing_says_so_once(capsys):
    relabel = relabeller()
    for _ in range(2):
        relabel(trajectories(COMMON, RARE))
    assert capsys.readouterr().err.count("GoalFrequencies") == 1
    relabel = relabeller()
    relabel.count_goals(trajectories(COMMON))
    relabel(trajectories(COMMON, RARE))
    assert capsys.readouterr().err == ""


def test_data_without_goals_to_count_are_refused_by_name():
    batch = trajectories(COMMON).exclude("achieved")
    with pytest.raises(ValueError, match="achieved"):
        TrajectoryDataset([store(batch)], transform=relabeller())
    assert TrajectoryDataset([store(batch)], transform=Window(3)).sample(2).shape == (2, 4)
