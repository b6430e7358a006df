"""The replay buffer: a TorchRL replay buffer of trajectories, drawn as it says, and exactly
resumable.
"""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs.transforms import Compose, Transform
from yamame.replay import (
    Relabel,
    TrajectoryFollower,
    TrajectoryReplayBuffer,
    TrajectorySampler,
    Window,
    pack,
)
from yamame.replay.disk.buffer import keep_batch


def trajectories(*lengths: int, start: int = 0) -> TensorDict:
    step = torch.arange(max(lengths))
    tag = 1000 * (torch.arange(len(lengths))[:, None] + start) + step
    count = torch.tensor(lengths)[:, None]
    return TensorDict(
        {
            "observation": tag[..., None].float(),
            "action": torch.where(step < count - 1, tag + 1, 0),
            "next": {"reward": torch.where(step < count - 1, 1.0, 0.0)[..., None]},
            "mask": (step < count)[..., None],
        },
        batch_size=[len(lengths), max(lengths)],
    )


@pytest.fixture
def make(tmp_path):
    def build(name="replay", **kwargs):
        return TrajectoryReplayBuffer(
            tmp_path / name, **{"capacity": 1000, "batch_size": 4, **kwargs}
        )

    return build


def numbers(batch: TensorDict) -> list[int]:
    return [int(n) for n in batch["observation"][:, 0, 0] // 1000]


@pytest.mark.parametrize(
    ("by", "expected"), [("trajectory", [1, 1, 1, 1]), ("timestep", [4, 1, 0, 7])]
)
def test_each_trajectory_is_drawn_as_often_as_it_should_be(make, monkeypatch, by, expected):
    buffer = make(sample_by=by)
    buffer.extend(trajectories(5, 2, 1, 8))
    monkeypatch.setattr(torch, "randint", lambda high, size, generator: torch.arange(high))
    index, _ = buffer.sampler.sample(buffer.storage, sum(expected))
    assert torch.bincount(index, minlength=4).tolist() == expected


def test_a_sample_is_whole_trajectories_trimmed_to_the_longest_drawn(make):
    buffer = make(batch_size=2)
    buffer.extend(trajectories(5, 9, 3))
    longest = set()
    for _ in range(40):
        batch = buffer.sample()
        for row, number in zip(batch, numbers(batch), strict=True):
            expected = trajectories(5, 9, 3)[number, : batch.shape[1]]
            real = expected["mask"].squeeze(-1)
            assert (row[real] == expected[real]).all()
            assert not (row[~real] != 0).any()
        assert batch.shape == (2, int(batch["mask"].sum((1, 2)).max()))
        longest.add(batch.shape[1])
    assert longest == {3, 5, 9}


class Spy(Transform):
    """Remembers the shape of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def forward(self, tensordict):
        self.shapes.append(tensordict.shape)
        return tensordict


def test_transforms_see_whole_trajectories_one_after_the_other(make):
    before, after = Spy(), Spy()
    buffer = make(transform=Compose(before, Window(3)))
    buffer.append_transform(after)
    buffer.extend(trajectories(9, 9))
    assert buffer.sample().shape == (4, 4)
    assert before.shapes == [(4, 9)]
    assert after.shapes == [(4, 4)]


def test_relabelling_and_windows_work_on_what_is_stored(make):
    flag = torch.zeros(3, 8, 1, dtype=torch.bool)
    data = TensorDict(
        {
            "goal": torch.full((3, 8, 2, 1), 99.0),
            "achieved": torch.arange(24.0).reshape(3, 8, 1, 1),
            "achieved_mask": ~flag,
            "is_init": flag.index_fill(1, torch.tensor([0]), True),
            "next": {"reward": torch.zeros(3, 8, 1), "terminated": flag},
        },
        batch_size=[3, 8],
    )
    buffer = make(transform=Compose(Relabel("all"), Window(4)), batch_size=16)
    buffer.extend(data)
    rewarded = sum(float(buffer.sample()["next", "reward"].sum()) for _ in range(5))
    assert rewarded > 0
    assert buffer.storage.get([0])["next", "reward"].sum() == 0


def test_the_oldest_leave_first_and_the_counters_tell(make):
    buffer = make(capacity=20, batch_size=50)
    assert (len(buffer), buffer.num_timesteps, buffer.write_count) == (0, 0, 0)
    for start in range(6):
        buffer.extend(trajectories(5, start=start))
    assert (len(buffer), buffer.num_timesteps, buffer.write_count) == (4, 20, 6)
    assert buffer.stats()["utilization"] == 1.0
    assert set(numbers(buffer.sample())) == {2, 3, 4, 5}
    buffer.extend([trajectories(5, start=9)[0].exclude("mask")])
    assert numbers(buffer[:])[-1] == 9
    buffer.empty()
    assert (len(buffer), buffer.num_timesteps, buffer.write_count) == (0, 0, 7)
    buffer.extend(trajectories(4))
    assert len(buffer) == 1


def test_sampling_draws_from_the_given_generator_or_else_the_global_one(make):
    for generator in (torch.Generator().manual_seed(3), None):
        buffer = make(str(generator is None), generator=generator, batch_size=20)
        buffer.extend(trajectories(*[3] * 50))
        drawn = []
        for _ in range(2):
            torch.manual_seed(3) if generator is None else generator.manual_seed(3)
            drawn.append(numbers(buffer.sample()))
        torch.manual_seed(4) if generator is None else generator.manual_seed(4)
        assert drawn[0] == drawn[1] != numbers(buffer.sample())


def test_a_resumed_buffer_samples_what_the_first_would_have(make, tmp_path):
    buffer = make(capacity=200, owner="yamame")
    buffer.extend(trajectories(*[10] * 20))
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save({"replay": buffer.state_dict(), "rng": torch.get_rng_state()}, checkpoint)
    buffer.protect()

    def go_on(buffer):
        out = []
        for turn in range(6):
            buffer.extend(trajectories(*[9] * 4, start=20 + 4 * turn))
            out.append(buffer.sample())
        return out

    expected = go_on(buffer)
    buffer.close()

    resumed = make(capacity=200, owner="yamame", resume=True)
    state = torch.load(checkpoint)
    resumed.load_state_dict(state["replay"])
    torch.set_rng_state(state["rng"])
    assert len(resumed) == 20
    for one, two in zip(expected, go_on(resumed), strict=True):
        assert (one == two).all()


def test_what_is_dumped_is_loaded_by_another_buffer_which_then_samples_alike(make, tmp_path):
    buffer, other = make("one", generator=torch.Generator()), make("two", batch_size=7)
    buffer.extend(trajectories(5, 9, 3))
    buffer.dumps(tmp_path / "dump")
    other.loads(tmp_path / "dump")
    assert (other[:] == buffer[:]).all()
    assert (other.sample() == buffer.sample()).all()


def test_without_rolling_back_the_resumed_buffer_would_differ(make):
    buffer = make(capacity=200)
    buffer.extend(trajectories(*[10] * 20))
    state = buffer.state_dict()
    buffer.protect()
    buffer.extend(trajectories(*[9] * 4, start=20))
    assert numbers(buffer[:])[0] != 0
    buffer.load_state_dict(state)
    assert numbers(buffer[:]) == list(range(20))


def test_another_process_samples_through_an_ordinary_replay_buffer(make):
    buffer = make()
    buffer.extend(trajectories(4, 6))
    reader = ReplayBuffer(
        storage=TrajectoryFollower(buffer.storage.path),
        sampler=TrajectorySampler(),
        writer=ImmutableDatasetWriter(),
        collate_fn=keep_batch,
        batch_size=8,
    )
    assert set(numbers(reader.sample())) <= {0, 1}
    buffer.extend(trajectories(6, start=2))
    assert 2 in {number for _ in range(30) for number in numbers(reader.sample())}


def rollout(*done: str) -> TensorDict:
    """A TorchRL rollout ``[N, T]`` that ends episodes where there is an x."""
    ends = torch.tensor([[sign == "x" for sign in row] for row in done])[..., None]
    observation = torch.arange(float(ends.numel())).reshape(ends.shape)
    following = {
        "observation": observation + 0.5,
        "reward": observation,
        "done": ends,
        "terminated": ends.clone(),
    }
    root = {"observation": observation, "action": torch.ones(ends.shape[:2]), "next": following}
    return TensorDict(root, ends.shape[:2])


@pytest.mark.parametrize("flat", [False, True])
def test_whole_episodes_as_torchrl_has_them_are_packed(make, flat):
    steps = rollout("-x-x", "x--x")
    buffer, expected = make("one"), make("two")
    buffer.extend(steps.flatten() if flat else steps)
    expected.extend(pack(steps))
    assert buffer.storage.lengths.tolist() == [3, 3, 2, 4]
    assert (buffer[:] == expected[:]).all()


def test_what_is_not_whole_is_refused_with_a_remedy_and_can_be_packed_as_it_is(make):
    buffer = make()
    steps = rollout("-x--", "x--x")
    remedy = r"must be 0, got 2; .* pack unfinished ones with yamame.replay.pack"
    with pytest.raises(ValueError, match=f"after the last end of an episode {remedy}"):
        buffer.extend(steps)
    whole_ones = rollout("-x-x", "x--x")
    starts = torch.tensor([[False, False, True, False], [True, True, False, False]])
    with pytest.raises(ValueError, match=f"before the first beginning of an episode {remedy}"):
        buffer.extend(whole_ones.set("is_init", starts[..., None]))
    with pytest.raises(ValueError, match=r"pack trajectories with yamame\.replay\.pack"):
        buffer.extend(rollout("-x-x").exclude(("next", "done")))
    assert len(buffer) == 0
    buffer.extend(pack(steps))
    assert buffer.storage.lengths.tolist() == [3, 3, 2, 4]


def test_sampling_with_nothing_to_sample_is_an_error(make):
    with pytest.raises(RuntimeError, match="replay holds nothing to sample yet"):
        make().sample()
    buffer = make("other", sample_by="timestep")
    with pytest.raises(RuntimeError, match="other holds nothing to sample yet"):
        buffer.sample()
    buffer.extend(trajectories(1, 1))
    with pytest.raises(RuntimeError, match="other holds nothing to sample"):
        buffer.sample()


def test_arguments_out_of_range_are_errors(make):
    with pytest.raises(ValueError, match=r"by must be one of .*'timestep'.*, got 'luck'"):
        make(sample_by="luck")


def drawn(buffer, sample, *, times=20):
    """Numbers of all trajectories that a method draws."""
    found = set()
    for _ in range(times):
        found |= set(numbers(sample()))
    return found


@pytest.mark.parametrize("by", ["trajectory", "timestep"])
def test_every_nth_trajectory_is_held_out_also_after_eviction_and_a_resume(make, by):
    settings = {"capacity": 60, "batch_size": 40, "sample_by": by, "owner": "a"}
    buffer = make(held_out=4, **settings)
    for start in range(0, 33, 11):
        buffer.extend(trajectories(*[5] * 11, start=start))
    assert drawn(buffer, buffer.sample) == {21, 22, 24, 25, 26, 28, 29, 30, 32}
    assert drawn(buffer, buffer.sample_held_out) == {23, 27, 31}
    assert buffer.num_held_out == 3
    state = buffer.state_dict()
    buffer.protect()
    buffer.extend(trajectories(*[5] * 3, start=33))
    assert drawn(buffer, buffer.sample_held_out) == {27, 31, 35}
    buffer.close()

    resumed = make(held_out=4, resume=True, **settings)
    resumed.load_state_dict(state)
    assert drawn(resumed, resumed.sample_held_out) == {23, 27, 31}
    assert 23 not in drawn(resumed, resumed.sample)
    resumed.close()
    every = make(resume=True, **settings)
    assert drawn(every, every.sample) == set(range(21, 33))
    assert every.num_held_out == 0


def test_held_out_trajectories_are_drawn_in_proportion_and_transformed(make, monkeypatch):
    spy = Spy()
    buffer = make(held_out=2, sample_by="timestep", transform=spy)
    buffer.extend(trajectories(5, 2, 4, 9, 3))
    monkeypatch.setattr(torch, "randint", lambda high, size, generator: torch.arange(high))
    index, _ = buffer.sampler.sample(buffer.storage, 9)
    assert torch.bincount(index, minlength=5).tolist() == [4, 0, 3, 0, 2]
    assert numbers(buffer.sample_held_out()) == [1, *[3] * 8]
    assert spy.shapes == [(9, 9)]


def test_without_held_out_trajectories_draws_are_those_of_a_plain_sampler(make):
    plain, split = make("plain"), make("split", held_out=16)
    for buffer in (plain, split):
        buffer.extend(trajectories(*[3] * 15))
    batches = []
    for buffer in (plain, split):
        torch.manual_seed(1)
        batches.append(numbers(buffer.sample()))
    assert batches[0] == batches[1]
    with pytest.raises(RuntimeError, match="no held-out trajectory"):
        split.sample_held_out()
    with pytest.raises(ValueError, match="held_out"):
        make("other", held_out=1)


def test_a_buffer_that_would_hold_all_out_holds_none_out(make):
    buffer = make(capacity=5, held_out=2)
    for number in range(2):
        buffer.extend(trajectories(5, start=number))
    assert (len(buffer), buffer.num_held_out) == (1, 0)
    assert drawn(buffer, buffer.sample) == {1}
