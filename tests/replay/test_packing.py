"""Packing TorchRL rollouts: each observation once, the last one kept, as a plain loop would do
it.
"""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from yamame.replay import pack


class Count(EnvBase):
    """Row n ends after n + 1 steps; the observation counts them, the reward is ten times it."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(batch_size=[num_envs])
        shape = (num_envs, 1)
        self.observation_spec = Composite(
            observation=Unbounded(shape),
            nested=Composite(row=Unbounded(shape), shape=(num_envs,)),
            shape=(num_envs,),
        )
        self.action_spec = Categorical(2, shape=(num_envs,))
        self.reward_spec = Unbounded(shape)
        flag = Binary(1, shape=shape, dtype=torch.bool)
        self.full_done_spec = Composite(
            terminated=flag.clone(), truncated=flag.clone(), done=flag.clone(), shape=(num_envs,)
        )

    def _seen(self, observation):
        row = torch.arange(self.batch_size[0])[:, None]
        done = observation > row
        flags = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
        return {"observation": observation, "nested": {"row": row.float()}, **flags}

    def _reset(self, tensordict=None, **kwargs):
        return TensorDict(self._seen(torch.zeros(*self.batch_size, 1)), self.batch_size)

    def _step(self, tensordict):
        observation = tensordict["observation"] + 1
        return TensorDict({**self._seen(observation), "reward": 10 * observation}, self.batch_size)

    def _set_seed(self, seed):
        return seed


def naive(rollout: TensorDict, split: bool = True) -> list[dict]:
    """One dict of lists per episode."""
    episodes = []
    for row in rollout:
        current: list[int] = []
        for t in range(len(row)):
            current.append(t)
            done = bool(row["next", "done"][t])
            if done or t == len(row) - 1:
                observations = [float(row["observation"][s]) for s in current]
                episodes.append(
                    {
                        "observation": [*observations, float(row["next", "observation"][t])],
                        "row": [float(row["nested", "row"][s]) for s in current]
                        + [float(row["nested", "row"][t])],
                        "action": [int(row["action"][s]) for s in current] + [0],
                        "reward": [float(row["next", "reward"][s]) for s in current] + [0.0],
                        "terminated": [bool(row["next", "terminated"][s]) for s in current]
                        + [False],
                    }
                )
                current = []
            if done and not split:
                break
    return episodes


def check(packed: TensorDict, expected: list[dict]) -> None:
    assert packed.shape[0] == len(expected)
    assert packed.shape[1] == max(len(one["action"]) for one in expected)
    for row, one in zip(packed, expected, strict=True):
        count = len(one["action"])
        assert row["mask"].squeeze(-1).tolist() == [t < count for t in range(packed.shape[1])]
        for name, key in [
            ("observation", "observation"),
            ("row", ("nested", "row")),
            ("action", "action"),
            ("reward", ("next", "reward")),
            ("terminated", ("next", "terminated")),
        ]:
            assert row[key].flatten().tolist() == one[name] + [0] * (packed.shape[1] - count), name


@pytest.mark.parametrize("steps", [1, 2, 7, 12])
def test_every_episode_of_a_rollout_becomes_a_row_as_in_a_plain_loop(steps):
    torch.manual_seed(0)
    rollout = Count(5).rollout(steps, break_when_any_done=False)
    before = rollout.clone()
    check(pack(rollout), naive(rollout))
    assert (rollout == before).all()


def test_steps_after_the_end_are_dropped_where_nothing_follows():
    rollout = Count(5).rollout(20, break_when_all_done=True)
    check(pack(rollout, split=False), naive(rollout, split=False))
    assert pack(rollout, split=False).shape == (5, 6)
    assert pack(rollout).shape[0] > 5


def test_the_last_observation_is_that_before_the_reset_and_the_first_that_after():
    packed = pack(Count(3).rollout(6, break_when_any_done=False))
    whole = packed[packed["next", "terminated"].any(1).squeeze(-1)]
    for row in whole:
        count = int(row["mask"].sum())
        assert row["observation"][:count, 0].tolist() == list(range(count))
        assert float(row["next", "reward"].max()) == 10 * (count - 1)


def test_the_entries_are_those_of_the_format_and_no_done():
    packed = pack(Count(3).rollout(4, break_when_any_done=False))
    keys = {"observation", ("nested", "row"), "action", "mask"}
    assert set(packed.keys(True, True)) == keys | {
        ("next", k) for k in ("reward", "terminated", "truncated")
    }
    assert packed["mask"].shape == (*packed.shape, 1)
    assert packed["action"].dtype == torch.int64
    assert packed["next", "terminated"].dtype == torch.bool


def test_success_and_what_only_next_holds_describe_the_transition():
    rollout = Count(3).rollout(4, break_when_any_done=False)
    rollout["success"] = torch.ones(3, 4, 1, dtype=torch.bool)
    rollout["next", "success"] = rollout["next", "done"].clone()
    rollout["next", "cost"] = rollout["next", "reward"].clone()
    packed = pack(rollout)
    assert "success" not in packed
    assert torch.equal(packed["next", "success"], packed["next", "terminated"])
    assert torch.equal(packed["next", "cost"], packed["next", "reward"])


def test_a_list_of_rollouts_of_any_length_is_the_concatenation():
    first, second = (Count(n).rollout(t, break_when_any_done=False) for n, t in [(2, 3), (4, 7)])
    check(pack([first, second]), naive(first) + naive(second))
    check(pack([second[3], first[0]]), naive(second[3:]) + naive(first[:1]))


def test_padding_of_a_collector_is_left_out():
    rollout = Count(4).rollout(3, break_when_any_done=False)
    mask = torch.tensor(
        [[True] * 3, [True, True, False], [True, True, False], [True, False, False]]
    )
    packed = pack(rollout.clone().set(("collector", "mask"), mask))
    expected = [one for n in range(4) for one in naive(rollout[n : n + 1, : int(mask[n].sum())])]
    check(packed, expected)
    assert "collector" not in packed


def test_what_is_no_rollout_is_an_error():
    with pytest.raises(
        ValueError, match=r"pack: a rollout must hold \('next', 'done'\), got \['x'\]"
    ):
        pack(TensorDict({"x": torch.zeros(1, 3)}, batch_size=[1, 3]))
    empty = Count(2).rollout(1).set(("collector", "mask"), torch.zeros(2, 1, dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"pack: a rollout must have at least one step, got \(2, 1\)"
    ):
        pack(empty)
