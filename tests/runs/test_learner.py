"""One gradient step: in order, clipped, warmed up, and not made at all on a loss that is not finite."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.runs import Learner, NonFiniteGuard


class Quadratic(nn.Module):
    """Pulls a weight towards zero with slope ``batch["slope"]``."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, batch):
        return TensorDict({"loss_a": batch["slope"] * self.weight, "metric": torch.tensor(7.0)})


class Targets:
    """Notes the weight it is shown."""

    def __init__(self, loss):
        self.loss, self.seen = loss, []

    def step(self):
        self.seen.append(self.loss.weight.item())


def make(tmp_path, **options):
    loss = Quadratic()
    targets = Targets(loss)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    settings = {"max_grad_norm": 2.0, "warmup_updates": 0, **options}
    return Learner(loss, optimizer, targets, **settings), targets, NonFiniteGuard(tmp_path)


def batch(slope):
    return TensorDict({"slope": torch.tensor(slope)})


def test_targets_move_after_the_step_and_metrics_are_detached(tmp_path):
    learner, targets, guard = make(tmp_path)
    metrics = learner.update(batch(1.0), guard, step=0, seed=0)
    assert targets.seen == pytest.approx([0.9])
    assert not any(value.requires_grad for value in metrics.values())
    assert {key: float(value) for key, value in metrics.items()} == pytest.approx(
        {"loss_a": 1.0, "metric": 7.0, "loss": 1.0, "grad_norm": 1.0}
    )


def test_gradients_are_clipped_and_do_not_pile_up(tmp_path):
    learner, targets, guard = make(tmp_path)
    learner.update(batch(50.0), guard, step=0, seed=0)
    learner.update(batch(1.0), guard, step=1, seed=0)
    assert targets.seen == pytest.approx([0.8, 0.7], abs=1e-5)


def test_the_learning_rate_rises_linearly_over_the_warm_up(tmp_path):
    learner, targets, guard = make(tmp_path, warmup_updates=4)
    for step in range(6):
        learner.update(batch(1.0), guard, step=step, seed=0)
    moves = torch.tensor([1.0, *targets.seen]).diff().neg()
    assert moves.tolist() == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1], abs=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path):
    learner, targets, guard = make(tmp_path)
    assert learner.update(batch(float("nan")), guard, step=3, seed=0) == {}
    assert learner.loss.weight.item() == 1.0
    assert targets.seen == []
    assert list((tmp_path / "nonfinite").glob("step-*3"))


@pytest.mark.parametrize(("name", "value"), [("max_grad_norm", 0.0), ("warmup_updates", -1)])
def test_impossible_settings_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"Learner: {name} .* got {value}"):
        make(tmp_path, **{name: value})
