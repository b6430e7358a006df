"""One gradient step: in order, clipped, warmed up, and not made at all on a loss or gradient that is not finite."""

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


class FrozenTargets:
    """Targets that stay."""

    def step(self):
        """Nothing."""


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


def test_the_learning_rate_falls_linearly_to_zero_after_the_warm_up(tmp_path):
    learner, targets, guard = make(tmp_path, warmup_updates=2, total_updates=6)
    for step in range(8):
        learner.update(batch(1.0), guard, step=step, seed=0)
    moves = torch.tensor([1.0, *targets.seen]).diff().neg()
    assert moves.tolist() == pytest.approx([0.05, 0.1, 0.1, 0.075, 0.05, 0.025, 0.0, 0.0], abs=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path):
    learner, targets, guard = make(tmp_path)
    assert learner.update(batch(float("nan")), guard, step=3, seed=0) == {}
    assert learner.loss.weight.item() == 1.0
    assert targets.seen == []
    assert list((tmp_path / "nonfinite").glob("step-*3"))


class Root(Quadratic):
    """A loss that is finite where its gradient is not."""

    def forward(self, batch):
        return TensorDict({"loss_a": batch["slope"] * (self.weight - 1.0).sqrt()})


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path):
    loss = Root()
    targets, optimizer = Targets(loss), torch.optim.SGD(loss.parameters(), lr=0.1)
    learner = Learner(loss, optimizer, targets, max_grad_norm=2.0, warmup_updates=0)
    assert learner.update(batch(1.0), NonFiniteGuard(tmp_path), step=3, seed=0) == {}
    assert loss.weight.item() == 1.0
    assert targets.seen == []
    assert list((tmp_path / "nonfinite").glob("step-*3"))


class Fit(nn.Module):
    """A small network on data, whose precision it notes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        out = self.net(batch["x"])
        self.dtype = out.dtype
        return TensorDict({"loss_a": (out.float().squeeze(-1) - batch["y"]).square().mean()})


def test_autocast_changes_the_precision_of_products_and_little_else(tmp_path):
    torch.manual_seed(1)
    data, losses = TensorDict({"x": torch.randn(64, 8), "y": torch.randn(64)}), {}
    for autocast, dtype in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
        loss = Fit()
        optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
        settings = {"max_grad_norm": 1.0, "warmup_updates": 0, "autocast": autocast}
        learner = Learner(loss, optimizer, FrozenTargets(), **settings)
        guard = NonFiniteGuard(tmp_path)
        made = [learner.update(data, guard, step=step, seed=0)["loss"] for step in range(40)]
        losses[autocast] = torch.stack(made)
        assert loss.dtype == dtype
        assert all(p.dtype == torch.float32 for p in loss.parameters())
    assert losses["bfloat16"].isfinite().all()
    assert losses["bfloat16"][-1] < 0.5 * losses["bfloat16"][0]
    # bfloat16 keeps 8 bits: a relative error of 2^-9 per rounding, a few of them per value.
    torch.testing.assert_close(losses["bfloat16"][0], losses[None][0], rtol=0.02, atol=0)
    assert not torch.equal(losses["bfloat16"], losses[None])


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_grad_norm", 0.0), ("warmup_updates", -1), ("total_updates", 0), ("autocast", "float16")],
)
def test_impossible_settings_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"Learner: {name} .* got {value!r}"):
        make(tmp_path, **{name: value})


@pytest.mark.parametrize("slope", [1.0, float("nan")])
def test_what_is_done_meanwhile_comes_after_the_loss_and_before_anything_is_read(tmp_path, slope):
    learner, _, guard = make(tmp_path)
    order, forward, check = [], learner.loss.forward, guard.check
    learner.loss.forward = lambda data: order.append("loss") or forward(data)
    guard.check = lambda *args, **options: order.append("read") or check(*args, **options)
    learner.update(batch(slope), guard, step=0, seed=0, meanwhile=lambda: order.append("meanwhile"))
    assert order == ["loss", "meanwhile", "read"]
