"""Every k-th trial, as if these had been played one after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import Categorical
from yamame.actions import ActionSpace
from yamame.baselines import TabularQLearning, learning_histories
from yamame.replay import TrialSubsampling
from yamame_envs import DarkKeyDoor

STEPS = 120


@pytest.fixture(scope="module")
def histories():
    torch.manual_seed(0)
    env = DarkKeyDoor(num_envs=5, size=3, trial_limit=7, time_limit=STEPS)
    return learning_histories(env, TabularQLearning(ActionSpace(Categorical(5))), max_steps=STEPS)


def by_loop(history: TensorDict, every: int, offset: int, length: int) -> list[dict]:
    """The kept timesteps of one history ``[L]``, one after the other."""
    kept, trial, last = [], -1, None
    for t in range(int(history["mask"].sum())):
        trial += int(history["trial_start"][t])
        if trial < offset or (trial - offset) % every or len(kept) > length:
            continue
        row = {key: history[key][t] for key in ("observation", "action", "trial_start")}
        row["reward"] = history["next", "reward"][t]
        for key in ("prev_action", "prev_reward"):
            row[key] = torch.zeros_like(history[key][t]) if last is None else history[key][last + 1]
        row["step_index"], row["time"] = (
            torch.tensor([len(kept)]),
            torch.tensor([len(kept) / length]),
        )
        row["is_init"] = torch.tensor([not kept])
        kept.append(row)
        last = t
    kept[-1]["action"], kept[-1]["reward"] = torch.zeros_like(kept[-1]["action"]), torch.zeros(1)
    return kept


def history(*trials: list[int]) -> TensorDict:
    """Histories of trials of given lengths; all entries differ, and are never zero."""
    lengths = torch.tensor([sum(row) for row in trials])
    num_steps = int(lengths.max())
    step = torch.arange(num_steps)
    mask = step < lengths[:, None]
    starts = torch.zeros_like(mask)
    for b, row in enumerate(trials):
        starts[b, torch.tensor([0, *row[:-1]]).cumsum(0)] = True
    tag = torch.where(mask, 100 * torch.arange(1, len(trials) + 1)[:, None] + step, 0)[..., None]
    return TensorDict(
        {
            "observation": tag.float(),
            "action": tag,
            "prev_action": tag + 10_000 * mask[..., None],
            "prev_reward": (tag + 20_000 * mask[..., None]).float(),
            "trial_start": starts[..., None],
            "is_init": ((step == 0) & mask)[..., None],
            "step_index": (step * mask)[..., None],
            "time": (step * mask / STEPS)[..., None],
            "next": {"reward": tag.float() + 0.5},
            "mask": mask[..., None],
        },
        batch_size=mask.shape,
    )


@given(
    trials=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=7), min_size=1, max_size=4),
    every=st.one_of(st.integers(1, 4), st.just(1000)),
    length=st.integers(1, 45),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60, derandomize=True, database=None)
def test_it_retains_what_a_loop_retains(trials, every, length, seed):
    histories = history(*trials)
    before = histories.clone()
    one, two = (torch.Generator().manual_seed(seed) for _ in range(2))
    offsets = torch.randint(every, (len(trials), 1), generator=one).flatten().tolist()
    out = TrialSubsampling(every, length=length, generator=two)(histories)
    assert (histories == before).all()
    assert out.shape[1] == max(int(row["mask"].sum()) for row in out)
    for row, result, offset, given_trials in zip(histories, out, offsets, trials, strict=True):
        expected = by_loop(row, every, min(offset, len(given_trials) - 1), length)
        assert int(result["mask"].sum()) == len(expected)
        for t, retained in enumerate(expected):
            for key, value in retained.items():
                found = result["next", "reward"][t] if key == "reward" else result[key][t]
                assert torch.equal(found, value.to(found.dtype)), (t, key)
        assert not any(value[len(expected) :].any() for value in result.values(True, True))


def test_with_every_trial_and_room_enough_it_is_the_identity(histories):
    out = TrialSubsampling(1, length=STEPS)(histories)
    assert set(out.keys(True, True)) == set(histories.keys(True, True))
    assert (out == histories).all()
    assert not (TrialSubsampling(1, length=STEPS + 1)(histories)["time"] == histories["time"]).all()


@pytest.mark.parametrize("name", ["every", "length"])
def test_numbers_below_one_are_refused(name):
    settings = {"every": 1, "length": 1, name: 0}
    with pytest.raises(ValueError, match=f"TrialSubsampling: {name} must be at least 1, got 0"):
        TrialSubsampling(settings["every"], length=settings["length"])


def test_a_batch_without_trials_is_refused(histories):
    with pytest.raises(ValueError, match="TrialSubsampling: the batch must hold 'trial_start'"):
        TrialSubsampling(2, length=5)(histories.exclude("trial_start"))
