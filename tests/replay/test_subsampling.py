"""Every k-th trial, as if these had been played one after the other."""

import pytest
import torch
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


@pytest.mark.parametrize(("every", "length"), [(1, 50), (3, 30), (4, 1000), (1000, 30)])
def test_it_keeps_what_a_plain_loop_keeps(histories, every, length):
    out = TrialSubsampling(every, length=length, generator=torch.Generator().manual_seed(1))(
        histories
    )
    offsets = (
        torch.randint(every, (5, 1), generator=torch.Generator().manual_seed(1)).flatten().tolist()
    )
    trials = (histories["trial_start"] & histories["mask"]).sum((1, 2)).tolist()
    assert every == 1 or len(set(offsets)) > 1
    for history, result, offset, num in zip(histories, out, offsets, trials, strict=True):
        expected = by_loop(history, every, min(offset, num - 1), length)
        assert int(result["mask"].sum()) == len(expected)
        for t, row in enumerate(expected):
            for key, value in row.items():
                found = result["next", "reward"][t] if key == "reward" else result[key][t]
                assert torch.equal(found, value.to(found.dtype)), (t, key)
        assert not any(value[len(expected) :].any() for value in result.values(True, True))


def test_with_every_trial_and_room_enough_it_is_the_identity(histories):
    out = TrialSubsampling(1, length=STEPS)(histories)
    assert set(out.keys(True, True)) == set(histories.keys(True, True))
    assert (out == histories).all()
    assert not (TrialSubsampling(1, length=STEPS + 1)(histories)["time"] == histories["time"]).all()


def test_the_batch_given_is_left_as_it_is(histories):
    before = histories.clone()
    TrialSubsampling(2, length=20)(histories)
    assert (histories == before).all()


@pytest.mark.parametrize("name", ["every", "length"])
def test_numbers_below_one_are_refused(name):
    settings = {"every": 1, "length": 1, name: 0}
    with pytest.raises(ValueError, match=f"TrialSubsampling: {name} must be at least 1, got 0"):
        TrialSubsampling(settings["every"], length=settings["length"])


def test_a_batch_without_trials_is_refused(histories):
    with pytest.raises(ValueError, match="TrialSubsampling: the batch must hold 'trial_start'"):
        TrialSubsampling(2, length=5)(histories.exclude("trial_start"))
