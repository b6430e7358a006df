"""Noise at the edges of a rollout: where it acts, how often, and how it falls."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical
from yamame.exploration import EdgeEpsilon

SPEC = Categorical(4)
ROLLOUTS, HORIZON = 4_000, 20


def rollouts() -> TensorDict:
    """Every step of many rollouts, with action 0."""
    step = torch.arange(HORIZON).expand(ROLLOUTS, HORIZON).reshape(-1, 1)
    entries = {"action": torch.zeros(len(step)).long(), "step_index": step, "time": step / HORIZON}
    return TensorDict(entries, [len(step)])


def changed(noise: EdgeEpsilon) -> torch.Tensor:
    """The share of rollouts whose action was replaced by another one, at every step."""
    torch.manual_seed(0)
    return (noise(rollouts())["action"] != 0).float().reshape(ROLLOUTS, HORIZON).mean(0)


def test_the_edges_are_random_and_the_middle_hardly_ever():
    share = changed(EdgeEpsilon(SPEC, anneal_steps=10, random_steps=0.8, first=2, last=3))
    # One in four random actions is the one that was there. Five standard errors of 4,000 draws.
    assert share[[0, 1, 17, 18, 19]].tolist() == pytest.approx(
        [0.75] * 5, abs=5 * (0.25 * 0.75 / ROLLOUTS) ** 0.5
    )
    middle = 0.8 / HORIZON * 0.75
    assert share[2:17].tolist() == pytest.approx([middle] * 15, abs=5 * (middle / ROLLOUTS) ** 0.5)


def test_the_edges_anneal_with_the_steps_of_training_and_the_middle_stays():
    noise = EdgeEpsilon(SPEC, anneal_steps=100, start=0.9, end=0.1)
    row = TensorDict(
        {"action": torch.zeros(2).long(), "step_index": torch.tensor([[19], [5]])}, [2]
    )
    row["time"] = row["step_index"] / HORIZON
    seen = []
    for _ in range(3):
        seen.append(noise.epsilon(row).tolist())
        noise.step(50)
    assert seen == [pytest.approx([epsilon, 0.5 / HORIZON]) for epsilon in (0.9, 0.5, 0.1)]


def test_without_edges_nothing_is_random_but_the_middle():
    share = changed(EdgeEpsilon(SPEC, anneal_steps=10, random_steps=0.0, first=0, last=0))
    assert share.tolist() == [0.0] * HORIZON
    last = changed(EdgeEpsilon(SPEC, anneal_steps=10, random_steps=0.0, first=0, last=1))
    assert (last > 0).tolist() == [False] * (HORIZON - 1) + [True]


def test_boxes_get_noise_of_that_size():
    torch.manual_seed(0)
    td = rollouts().set("action", torch.zeros(ROLLOUTS * HORIZON, 1))
    moved = EdgeEpsilon(Bounded(-1.0, 1.0, (1,)), anneal_steps=10, random_steps=0.0, first=1)(td)[
        "action"
    ]
    moved = moved.reshape(ROLLOUTS, HORIZON)
    assert not moved[:, 1:-1].any()
    assert (moved[:, [0, -1]] != 0).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("start", 1.5), ("end", -0.1), ("random_steps", -1.0), ("first", -1), ("last", -2)],
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"EdgeEpsilon: {name} must .* got {value}"):
        EdgeEpsilon(SPEC, anneal_steps=10, **{name: value})


@pytest.mark.parametrize("key", ["time", "step_index"])
def test_what_tells_the_horizon_must_be_there(key):
    with pytest.raises(ValueError, match=f"EdgeEpsilon: tensordict must hold '{key}'"):
        EdgeEpsilon(SPEC, anneal_steps=10)(rollouts().exclude(key))


def test_an_action_that_is_no_tensordict_is_refused():
    with pytest.raises(ValueError, match=r"EdgeEpsilon: tensordict must be a TensorDict"):
        EdgeEpsilon(SPEC, anneal_steps=10)(torch.zeros(3))
