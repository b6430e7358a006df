"""One gradient step: in order, clipped, warmed up, and not made at all on a loss or gradient that
is not finite.
"""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.checks import UsageError
from yamame.files.checkpoint import Checkpointer
from yamame.training.averaging import AveragedWeights
from yamame.training.guard import NonFiniteGuard
from yamame.training.learner import Learner


class Quadratic(nn.Module):
    """Pulls a weight towards zero with slope ``batch["slope"]``, and notes where its targets see
    it.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.seen = []

    def forward(self, batch):
        return TensorDict({"loss_a": batch["slope"] * self.weight, "metric": torch.tensor(7.0)})

    def update_targets(self):
        self.seen.append(self.weight.item())


def make(tmp_path, loss=None, **options):
    loss = Quadratic() if loss is None else loss
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    settings = {"max_grad_norm": 2.0, "guard": NonFiniteGuard(tmp_path), **options}
    return Learner(loss, optimizer, **settings)


def batch(slope):
    return TensorDict({"slope": torch.tensor(slope)})


def test_targets_move_after_the_step_and_metrics_are_detached(tmp_path):
    learner = make(tmp_path)
    metrics = learner.update(batch(1.0))
    assert learner.loss.seen == pytest.approx([0.9])
    assert not any(value.requires_grad for value in metrics.values())
    assert {key: float(value) for key, value in metrics.items()} == pytest.approx(
        {"loss_a": 1.0, "metric": 7.0, "loss": 1.0, "grad_norm": 1.0}
    )


def test_gradients_are_clipped_and_do_not_pile_up(tmp_path):
    learner = make(tmp_path)
    learner.update(batch(50.0))
    learner.update(batch(1.0))
    assert learner.loss.seen == pytest.approx([0.8, 0.7], abs=1e-5)


def test_the_learning_rate_rises_linearly_over_the_warm_up(tmp_path):
    learner = make(tmp_path, warmup_updates=4)
    for _ in range(6):
        learner.update(batch(1.0))
    moves = torch.tensor([1.0, *learner.loss.seen]).diff().neg()
    assert moves.tolist() == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1], abs=1e-5)


def test_the_learning_rate_falls_linearly_to_zero_after_the_warm_up(tmp_path):
    learner = make(tmp_path, warmup_updates=2, total_updates=6)
    for _ in range(8):
        learner.update(batch(1.0))
    moves = torch.tensor([1.0, *learner.loss.seen]).diff().neg()
    assert moves.tolist() == pytest.approx([0.05, 0.1, 0.1, 0.075, 0.05, 0.025, 0.0, 0.0], abs=1e-5)


def test_the_learning_rate_falls_by_the_function_given_after_the_warm_up(tmp_path):
    shares = [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    learner = make(tmp_path, warmup_updates=2, fall=shares.__getitem__)
    for _ in range(5):
        learner.update(batch(1.0))
    moves = torch.tensor([1.0, *learner.loss.seen]).diff().neg()
    assert moves.tolist() == pytest.approx([0.05, 0.075, 0.05, 0.025, 0.0], abs=1e-5)


def test_averaged_weights_follow_every_update_that_is_made(tmp_path):
    loss = Quadratic()
    averaged = AveragedWeights(loss, decay=0.5)
    learner = make(tmp_path, loss, averaged=averaged)
    expected, made = 1.0, 0
    for slope in (1.0, torch.nan, 1.0, *[1.0] * 10):
        learner.update(batch(slope))
        if slope == 1.0:
            keep = min(0.5, (1 + made) / (10 + made))
            expected, made = keep * expected + (1 - keep) * loss.weight.item(), made + 1
    assert keep == 0.5  # in the end
    assert averaged.network.weight.item() == pytest.approx(expected)
    assert averaged.network.weight.item() != pytest.approx(loss.weight.item())
    assert learner.components()["averaged"] is averaged


def test_averaged_weights_have_the_present_statistics_and_survive_a_checkpoint(tmp_path):
    network = nn.BatchNorm1d(2)
    averaged = AveragedWeights(network, decay=0.9)
    network(torch.randn(8, 2) + 3)
    network.weight.data.fill_(2.0)
    averaged.update()
    assert torch.equal(averaged.network.running_mean, network.running_mean)
    assert averaged.network.weight.tolist() == pytest.approx([1.9, 1.9])
    assert not averaged.network.training
    again = AveragedWeights(nn.BatchNorm1d(2), decay=0.9)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save({"averaged": averaged}, step=1)
    checkpointer.load({"averaged": again})
    assert again.network.weight.tolist() == pytest.approx([1.9, 1.9])


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match=f"AveragedWeights: decay must be .*, got {decay}"):
        AveragedWeights(nn.Linear(1, 1), decay=decay)


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path):
    learner = make(tmp_path)
    for slope in (1.0, torch.nan, torch.nan, 1.0, torch.nan):
        assert bool(learner.update(batch(slope))) == (slope == 1.0)
    assert learner.loss.weight.item() == pytest.approx(0.8)
    assert learner.loss.seen == pytest.approx([0.9, 0.8])
    # After one update two refusals in a row, after two updates another.
    evidence = [path.name for path in sorted((tmp_path / "nonfinite").iterdir())]
    assert evidence == ["step-000000000001-1", "step-000000000001-2", "step-000000000002-1"]


def test_a_loss_without_targets_and_a_learner_without_a_directory_will_do():
    loss = nn.Module()
    loss.weight = nn.Parameter(torch.tensor(1.0))
    loss.forward = lambda data: {"loss_a": data["slope"] * loss.weight}
    learner = Learner(loss, torch.optim.SGD(loss.parameters(), lr=0.1), max_grad_norm=2.0)
    assert set(learner.update(batch(1.0))) == {"loss_a", "loss", "grad_norm"}
    assert loss.weight.item() == pytest.approx(0.9)
    assert learner.update(batch(torch.nan)) == learner.update(batch(torch.nan)) == {}
    with pytest.raises(FloatingPointError, match="3 times in a row"):
        learner.update(batch(torch.nan))
    assert loss.weight.item() == pytest.approx(0.9)


class Root(Quadratic):
    """A loss that is finite where its gradient is not."""

    def forward(self, batch):
        return TensorDict({"loss_a": batch["slope"] * (self.weight - 1.0).sqrt()})


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path):
    learner = make(tmp_path, Root())
    assert learner.update(batch(1.0)) == {}
    assert learner.loss.weight.item() == 1.0
    assert learner.loss.seen == []
    assert len(list((tmp_path / "nonfinite").iterdir())) == 1


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


def test_autocast_changes_the_precision_of_products_and_little_else():
    torch.manual_seed(1)
    data, losses = TensorDict({"x": torch.randn(64, 8), "y": torch.randn(64)}), {}
    for autocast, dtype in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
        loss = Fit()
        optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
        learner = Learner(loss, optimizer, max_grad_norm=1.0, autocast=autocast)
        made = [learner.update(data)["loss"] for _ in range(40)]
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
    learner = make(tmp_path)
    order, forward, accepts = [], learner.loss.forward, learner.guard.accepts
    learner.loss.forward = lambda data: order.append("loss") or forward(data)
    learner.guard.accepts = lambda metrics: order.append("read") or accepts(metrics)
    learner.update(batch(slope), meanwhile=lambda: order.append("meanwhile"))
    assert order == ["loss", "meanwhile", "read"]


class Looking(Quadratic):
    """A loss that learns by looking."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, batch):
        self.norm(torch.tensor([[1.0], [3.0]]))
        return super().forward(batch)


def test_statistics_move_with_accepted_updates_only(tmp_path):
    learner, means = make(tmp_path, Looking()), []
    for slope in (torch.nan, 1.0, torch.nan, torch.inf, 1.0):
        learner.update(batch(slope))
        means.append(
            (learner.loss.norm.running_mean.item(), learner.loss.norm.num_batches_tracked.item())
        )
    assert [count for _, count in means] == [0, 1, 1, 1, 2]
    assert means[2] == means[1] == means[3] != means[4]


class Late(Quadratic):
    """Registers its mean in its first forward, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        if way == "a place":
            self.register_buffer("mean", None)
        elif way == "another size":
            self.register_buffer("mean", torch.zeros(1))

    def forward(self, batch):
        mean = getattr(self, "mean", None)
        if mean is None or len(mean) < 2:
            mean = torch.zeros(2)
            if self.way == "a name":
                self.register_buffer("mean", mean)
            else:
                self.mean = mean
        mean += batch["slope"]
        return super().forward(batch)


@pytest.mark.parametrize("way", ["a name", "a place", "another size"])
def test_a_buffer_that_is_first_registered_in_a_refused_update_is_not_there_after_it(tmp_path, way):
    learner = make(tmp_path, Late(way))
    before = {name: value.clone() for name, value in learner.loss.state_dict().items()}
    assert learner.update(batch(torch.nan)) == {}
    learner.evaluate(batch(1.0))
    torch.testing.assert_close(learner.loss.state_dict(), before)
    for slope in (1.0, torch.nan, 1.0):
        learner.update(batch(slope))
        learner.evaluate(batch(1.0))
    assert learner.loss.mean.tolist() == [2.0, 2.0]


def test_a_bundle_holds_the_weights_and_the_random_state_from_before_the_update(tmp_path):
    learner = make(tmp_path, Looking())
    learner.update(batch(1.0))
    before = {name: value.clone() for name, value in learner.loss.state_dict().items()}
    rng = torch.get_rng_state()
    learner.loss.norm.register_forward_pre_hook(lambda norm, args: (args[0] + torch.rand(1),))
    learner.update(batch(torch.nan))
    bundle = next((tmp_path / "nonfinite").iterdir())
    kept = Checkpointer(bundle).load({"loss": None, "update": None}).values
    assert all(torch.equal(value, before[name]) for name, value in kept["loss"].items())
    assert torch.equal(kept["update"]["rng"]["cpu"], rng)
    assert not torch.equal(torch.get_rng_state(), rng)
    assert kept["update"]["batch"]["slope"].isnan()


class Writes(nn.Module):
    """Writes one entry of a shape."""

    def __init__(self, name, *shape):
        super().__init__()
        self.weight, self.name = nn.Parameter(torch.ones(shape)), name

    def forward(self, batch):
        return TensorDict({self.name: self.weight * 2.0})


def test_a_term_that_is_no_scalar_is_named_and_so_is_a_loss_without_any(tmp_path):
    with pytest.raises(
        UsageError, match=r"^Learner: loss_own of Writes must be a scalar, .* got shape \[3\]$"
    ):
        make(tmp_path, Writes("loss_own", 3)).update(TensorDict({}))
    with pytest.raises(
        UsageError, match=r"^Learner: Writes must write terms loss_\*, got \['own'\]$"
    ):
        make(tmp_path, Writes("own")).update(TensorDict({}))
    for shape in ((), (1,)):
        assert (
            float(make(tmp_path, Writes("loss_own", *shape)).update(TensorDict({}))["loss"]) == 2.0
        )


class Stateful(nn.Module):
    """Has running statistics, one in either mode, dropout, and a part in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("num_calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(2)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Linear(2, 1).eval()

    def forward(self, batch):
        self.num_calls += 1
        y = self.frozen(self.dropout(self.norm(batch["x"])))
        return TensorDict({"loss_a": y.square().mean(), "loss_b": y.abs().mean()})


def test_an_evaluation_of_the_loss_changes_nothing(tmp_path):
    learner = make(tmp_path, Stateful())
    data = TensorDict({"x": torch.randn(8, 2)}, [8])
    learner.update(data)
    before = {name: value.clone() for name, value in learner.loss.state_dict().items()}
    generator = torch.get_rng_state()

    metrics = learner.evaluate(data)
    assert metrics == learner.evaluate(data)
    assert float(metrics["loss"]) == pytest.approx(float(metrics["loss_a"] + metrics["loss_b"]))
    assert not any(value.requires_grad for value in metrics.values())
    after = learner.loss.state_dict()
    assert all(bool((after[name] == value).all()) for name, value in before.items())
    assert bool((torch.get_rng_state() == generator).all())
    modes = [learner.loss.training, learner.loss.norm.training, learner.loss.frozen.training]
    assert modes == [True, True, False]
    learner.update(data)  # which does change statistics
    assert not bool((learner.loss.norm.running_mean == before["norm.running_mean"]).all())
