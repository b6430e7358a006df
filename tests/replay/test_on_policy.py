import pytest
import torch
from tensordict import TensorDict
from yamame.replay import OnPolicyBuffer, minibatches


def trajectories(*lengths: int, first: int = 0) -> TensorDict:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)
    number = torch.arange(first, first + len(lengths)).unsqueeze(-1) * mask
    return TensorDict({"mask": mask.unsqueeze(-1), "number": number}, mask.shape)


def test_what_was_given_comes_out_once_in_order():
    buffer = OnPolicyBuffer()
    buffer.extend(trajectories(2, 3))
    buffer.extend(trajectories(5, first=2))
    assert len(buffer) == 3
    batch = buffer.take()
    assert batch["mask"].sum((1, 2)).tolist() == [2, 3, 5]
    assert batch["number"].amax(-1).tolist() == [0, 1, 2]
    assert len(buffer) == 0
    with pytest.raises(RuntimeError, match="OnPolicyBuffer: the buffer is empty"):
        buffer.take()


def test_minibatches_hold_every_trajectory_once_in_random_order_without_needless_columns():
    batch = trajectories(2, 9, 4, 4, 3, 7, 2)
    orders = set()
    for _ in range(5):
        parts = list(minibatches(batch, size=3))
        assert [len(part) for part in parts] == [3, 3, 1]
        for part in parts:
            assert part.shape[1] == part["mask"].sum((1, 2)).max()
        numbers = [number for part in parts for number in part["number"].amax(-1).tolist()]
        assert sorted(numbers) == list(range(7))
        orders.add(tuple(numbers))
    assert len(orders) > 1
