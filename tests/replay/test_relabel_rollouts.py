"""Relabelling of the batches of TorchRL's collectors and samplers: never across the end of an
episode.
"""

from itertools import pairwise

import pytest
import torch
from tensordict import TensorDict, assert_close
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import SerialEnv
from yamame.goals import view
from yamame.replay import (
    GoalFrequencies,
    OnPolicyBuffer,
    Relabel,
    SequencePacking,
    TrialSubsampling,
    Window,
    minibatches,
    pack,
)
from yamame.testing import check_relabeller, random_goal_trajectories
from yamame_envs import MazeRunner

ENDED = "be at the transition into the last timestep of a trajectory"


def maze(num_envs=3, **settings):
    return MazeRunner(num_envs=num_envs, size=5, num_goals=2, time_limit=7, **settings)


def collect(env, num_batches=1, frames=60, **options):
    collector = Collector(
        env,
        frames_per_batch=frames,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **options,
    )
    torch.manual_seed(0)
    batches = []
    for batch in collector:
        batches.append(batch.clone())
        if len(batches) == num_batches:
            return batches[-1]
    raise AssertionError


def relabel(strategy="all", seed=0, **options):
    return Relabel(strategy, generator=torch.Generator().manual_seed(seed), **options)


LAYOUTS = {
    "collector": lambda steps: steps,
    "flat": lambda steps: steps.reshape(-1),
    "interleaved": lambda steps: steps.transpose(0, 1).reshape(-1),
    "without ids": lambda steps: steps.exclude("collector"),
    "flat without ids": lambda steps: steps.exclude("collector").reshape(-1),
    "without is_init": lambda steps: steps.exclude("is_init", ("next", "is_init")),
    "split": split_trajectories,
    "with a mask": lambda steps: split_trajectories(steps).set(
        "mask", split_trajectories(steps)["collector", "mask"].unsqueeze(-1)
    ),
}


@pytest.mark.parametrize("strategy", ["all", "some"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_steps_is_relabelled_trajectory_by_trajectory(layout, strategy):
    steps = LAYOUTS[layout](collect(maze()))
    before = steps.clone()
    out = relabel(strategy)(steps)
    assert (steps == before).all()
    assert out.shape == steps.shape
    assert not torch.equal(out["goal"], steps["goal"])
    # Shorter trajectories end at their own places.
    assert_close(pack(out), relabel(strategy)(pack(steps)), rtol=0, atol=0)
    ends = out["next", "terminated"] | out["next", "truncated"]
    assert torch.equal(out["next", "done"], ends)
    real = out["mask"].reshape(out.shape)
    assert (out["next", "goal"][~real] == 0).all()
    assert (out["next", "reward"][~real] == 0).all()


def test_relabelled_steps_keep_the_laws():
    steps = collect(maze(8), frames=8 * 20)
    packed = pack(steps)

    def through_steps(batch):
        assert (batch == packed).all()
        return pack(Relabel("some")(steps))

    check_relabeller(through_steps, packed)


def test_the_ends_of_several_batch_dimensions_are_found():
    env = SerialEnv(2, [lambda seed=seed: maze(2, seed=seed) for seed in range(2)])
    torch.manual_seed(0)
    steps = env.rollout(20, break_when_any_done=False)
    assert steps.shape == (2, 2, 20)
    out = relabel()(steps)
    assert out.shape == steps.shape
    assert_close(pack(out), relabel()(pack(steps)), rtol=0, atol=0)


def places(starts, num_steps=10):
    """Places passed, all different; one goal that is never reached. Rows are cut at ``starts``."""
    place = torch.arange(2.0 * num_steps).reshape(2, num_steps, 1, 1)
    flag = torch.zeros(2, num_steps, 1, dtype=torch.bool)
    is_init = flag.clone()
    is_init[:, starts] = True
    entries = {"goal": torch.full_like(place, 99.0), "achieved": place, "is_init": is_init}
    entries["next"] = {"reward": flag.float(), "terminated": flag.clone(), "done": flag.clone()}
    return TensorDict(entries, [2, num_steps])


def test_rows_of_several_packed_trajectories_receive_goals_of_their_own():
    batch = places([0, 4, 7])
    for seed in range(30):
        out = relabel(seed=seed)(batch)
        assert out.shape == batch.shape
        for first, last in ((0, 3), (4, 6), (7, 9)):
            goal = out["goal"][:, first].flatten()
            reached = batch["achieved"][:, first:].flatten(1)
            assert ((goal > reached[:, 0]) & (goal <= reached[:, last - first])).all()
            paid = out["next", "reward"][:, first : last + 1].sum((1, 2))
            assert paid.tolist() == [1.0, 1.0]
    # The control: without the marks the same rows receive goals of later trajectories.
    glued = batch.exclude("is_init")
    later = [relabel(seed=seed)(glued)["goal"][0, 0].item() > 3 for seed in range(30)]
    assert sum(later) > 10


def test_packed_sequences_are_relabelled_as_before_they_were_packed():
    whole = random_goal_trajectories(30, seed=2)
    first = torch.zeros(*whole.shape, 1, dtype=torch.bool)
    first[:, 0] = True
    whole["is_init"] = first
    shared = SequencePacking()(whole)
    assert len(shared) < len(whole)
    out = relabel("some")(shared)
    assert out.shape == shared.shape
    assert out["next", "reward"].sum() > shared["next", "reward"].sum()
    # Row by row each trajectory is still one of the environment.
    starts = shared["is_init"].squeeze(-1)
    for row in range(len(shared)):
        bounds = [*starts[row].nonzero().flatten().tolist(), shared.shape[1]]
        for begin, end in pairwise(bounds):
            piece, given = out[row, begin:end], shared[row, begin:end]
            check_relabeller(
                lambda batch, piece=piece: piece.unsqueeze(0)[:, : int(piece["mask"].sum())],
                given.unsqueeze(0)[:, : int(given["mask"].sum())],
                num_draws=1,
            )


@pytest.mark.parametrize("name", ["done", "terminated", "truncated"])
def test_ends_after_which_the_layout_does_not_show_what_follows_are_refused(name):
    batch = places([0]).exclude("is_init")
    batch["next", name] = torch.zeros(2, 10, 1, dtype=torch.bool)
    batch["next", name][1, 4] = True
    with pytest.raises(ValueError, match=f"{ENDED}, got .*row 1 at timestep 4.*pack"):
        relabel()(batch)
    # At the transition into the last timestep, and where a start follows it, all is known.
    batch["next", name][1, 4] = False
    batch["next", name][1, 8] = True
    relabel()(batch)
    cut = places([0, 6])
    cut["next", name] = torch.zeros(2, 10, 1, dtype=torch.bool)
    cut["next", name][:, 4] = True
    assert (relabel()(cut)["goal"][:, 0] <= cut["achieved"][:, 5]).all()


def slices(keep_starts, **options):
    steps = collect(maze(), num_batches=3)
    marks = {} if keep_starts else {"init_key": None, "truncated_key": None}
    sampler = SliceSampler(
        slice_len=4, traj_key=("collector", "traj_ids"), strict_length=False, **marks, **options
    )
    size = 160
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=sampler, batch_size=size
    )
    buffer.extend(steps.reshape(-1))
    torch.manual_seed(1)
    return buffer.sample()


@pytest.mark.parametrize("keep_starts", [False, True])
@pytest.mark.parametrize("pad_output", [False, True])
def test_slices_that_begin_within_an_episode_keep_their_goals(keep_starts, pad_output):
    sample = slices(keep_starts, pad_output=pad_output)
    out = relabel()(sample)
    assert out.shape == sample.shape
    index, order = sample["step_index"].flatten(), torch.arange(len(sample))
    first = torch.ones_like(index, dtype=torch.bool)
    first[1:] = index[1:] != index[:-1] + 1
    begin = torch.where(first, order, 0).cummax(0).values
    is_whole = index[begin] == 0
    changed = (out["goal"] != sample["goal"]).flatten(1).any(1)
    assert changed[is_whole].any()
    assert not changed[~is_whole].any()
    assert (~is_whole).sum() > 20


def test_a_batch_without_the_beginning_of_any_episode_is_refused():
    steps = collect(maze())[:, 1:6]
    with pytest.raises(ValueError, match="'is_init' must be True at the first timestep"):
        relabel()(steps)


def test_a_batch_without_a_beginning_after_one_with_some_is_left_as_it_is():
    steps = collect(maze())
    transform = relabel()
    transform(steps)
    middle = steps[:, 1:6]
    assert torch.equal(transform(middle)["goal"], middle["goal"])


def test_future_goals_are_hidden_also_where_no_episode_begins():
    steps = collect(maze())[:, 1:6]
    out = Relabel("none", hide_future_goals=True)(steps)
    assert torch.equal(out["goal"], view(steps["goal"], hide_future_goals=True))
    assert torch.equal(out["next", "goal"], view(steps["next", "goal"], hide_future_goals=True))
    assert not torch.equal(out["goal"], steps["goal"])


def test_single_transitions_are_refused():
    steps = collect(maze()).reshape(-1)
    alone = steps[torch.tensor([5, 3, 1])].exclude("collector", "is_init")
    with pytest.raises(ValueError, match=r"Relabel: a flat batch must .*SliceSampler"):
        relabel()(alone)


def test_a_shuffled_flat_batch_is_refused_although_some_steps_follow_others():
    steps = collect(maze(), frames=120).reshape(-1)
    order = torch.randperm(len(steps), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"Relabel: a flat batch must .*SliceSampler"):
        relabel()(torch.cat([steps[:2], steps[order]]))
    # The control: steps in their order.
    assert not torch.equal(relabel()(steps)["goal"], steps["goal"])


def test_a_replay_buffer_of_torchrl_relabels_its_samples():
    steps = collect(maze(8), frames=8 * 21)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), transform=relabel(), batch_size=8)
    buffer.extend(steps)
    sample = buffer.sample()
    assert sample.shape == steps.shape
    assert sample["next", "reward"].sum() > steps["next", "reward"].sum() + 5


def test_goals_are_counted_as_of_whole_trajectories():
    steps = collect(maze())
    tables = []
    for batch in (steps, pack(steps), steps.reshape(-1)):
        table = GoalFrequencies()
        Relabel("all", rarity=table).count_goals(batch)
        tables.append(table.state_dict())
    for key, value in tables[0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(tables[1][key])), key
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(tables[2][key])), key


def trials():
    batch = pack(collect(maze()))
    return batch.set("trial_start", batch["is_init"].clone())


@pytest.mark.parametrize(
    "transform", [Window(3), SequencePacking(), TrialSubsampling(1, length=7)], ids=repr
)
def test_transforms_of_trajectories_refuse_other_layouts(transform):
    batch = trials()
    transform(batch)
    name = type(transform).__name__
    with pytest.raises(ValueError, match=rf"{name}: batch_size must be \[B, L\]"):
        transform(batch.reshape(-1))
    steps = collect(maze())
    steps["mask"] = torch.ones_like(steps["is_init"])
    steps["trial_start"] = steps["is_init"].clone()
    with pytest.raises(ValueError, match=f"{name}: the batch must hold each observation once"):
        transform(steps)
    holes = batch.clone()
    holes["mask"][0, 2] = False
    with pytest.raises(ValueError, match=f"{name}: mask must be True up to the end"):
        transform(holes)


def test_trials_of_several_episodes_in_a_row_are_not_mixed():
    shared = SequencePacking(length_multiple=16)(trials())
    with pytest.raises(ValueError, match="TrialSubsampling: a row must hold one episode"):
        TrialSubsampling(1, length=7)(shared)


def test_rollouts_are_held_for_one_update_as_packed_ones():
    steps = collect(maze())
    buffer = OnPolicyBuffer()
    buffer.extend(steps)
    assert (buffer.take() == pack(steps)).all()


def test_minibatches_keep_what_comes_after_padding():
    batch = pack(collect(maze()))
    batch["mask"][:, 1] = False
    for part in minibatches(batch, size=3):
        last = (part["mask"].squeeze(-1) * torch.arange(part.shape[1])).amax(-1)
        assert last.max() == part.shape[1] - 1
