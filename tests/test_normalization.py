"""Running statistics equal a plain numpy account of the real timesteps, and inputs are normalised
by them.
"""

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import LossModule
from yamame.checks import ArgumentError
from yamame.normalization import RunningMoments, RunningNormalizer


def batches(seed: int, count: int = 30):
    """Batches [B, L, F] with right padding full of rubbish, and their masks [B, L]."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x = rng.normal(loc=[5.0, -2.0, 0.0], scale=[3.0, 0.5, 40.0], size=(4, 7, 3))
        lengths = rng.integers(1, 8, size=4)
        mask = np.arange(7) < lengths[:, None]
        x[~mask] = 1e6
        yield x, mask


def naive_statistics(data, decay: float):
    """Weighted averages of the batch means of x and x^2, older batches weighing less."""
    first, second, weights = [], [], []
    data = list(data)
    for i, (x, mask) in enumerate(data):
        first.append(x[mask].mean(0))
        second.append((x[mask] ** 2).mean(0))
        weights.append((1 - decay) ** (len(data) - 1 - i))
    weights = np.array(weights)[:, None] / np.sum(weights)
    mean = (weights * np.array(first)).sum(0)
    return mean, (weights * np.array(second)).sum(0) - mean**2


@pytest.mark.parametrize("decay", [1e-4, 0.1, 1.0])
def test_statistics_equal_numpy_moments_of_the_real_timesteps(decay):
    normalizer = RunningNormalizer(3, decay=decay)
    for x, mask in batches(0):
        normalizer(torch.tensor(x, dtype=torch.float32), torch.tensor(mask))
    mean, variance = naive_statistics(batches(0), decay)
    # fp32 accumulation over 30 updates against float64
    np.testing.assert_allclose(normalizer.mean.numpy(), mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(normalizer.variance.numpy(), variance, rtol=1e-3)


def test_without_the_mask_the_padding_would_count():
    """Negative control of the law above."""
    normalizer = RunningNormalizer(3)
    for x, _ in batches(0):
        normalizer(torch.tensor(x, dtype=torch.float32))
    mean, _ = naive_statistics(batches(0), 1e-4)
    assert (np.abs(normalizer.mean.numpy() - mean) > 1e3).all()


def test_padding_of_nan_does_not_reach_the_statistics():
    normalizer = RunningNormalizer(2)
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[:, 2:] = False
    expected = x[:, :2].reshape(-1, 2).mean(0)
    x[:, 2:] = torch.nan
    normalizer(x, mask)
    torch.testing.assert_close(normalizer.mean.float(), expected)
    assert bool(normalizer.variance.isfinite().all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_timestep_that_is_not_finite_does_not_reach_the_statistics(value):
    normalizer = RunningNormalizer(2)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    x[3, 1] = value
    out = normalizer(x)
    torch.testing.assert_close(normalizer.mean.float(), x[[0, 1, 2, 4]].mean(0))
    assert bool(out[[0, 1, 2, 4]].isfinite().all())


def test_a_batch_of_nothing_but_padding_changes_nothing():
    normalizer = RunningNormalizer(2)
    normalizer(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)))
    before = {name: value.clone() for name, value in normalizer.state_dict().items()}
    normalizer(torch.full((5, 2), 100.0), torch.zeros(5, dtype=torch.bool))
    assert all(torch.equal(value, before[name]) for name, value in normalizer.state_dict().items())


def test_statistics_move_in_training_mode_only_and_are_saved():
    normalizer = RunningNormalizer(1)
    x = torch.tensor([[4.0], [8.0]])
    assert normalizer.eval()(x).flatten().tolist() == [4.0, 8.0]
    assert int(normalizer.num_updates) == 0
    normalizer.train()(x)
    restored = RunningNormalizer(1)
    restored.load_state_dict(normalizer.state_dict())
    assert restored.eval()(x).flatten().tolist() == [-1.0, 1.0]


def test_a_large_mean_does_not_swallow_the_variance():
    """In float32 the square of 1e4 leaves no digit for a variance of 1."""
    x = 1e4 + torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    normalizer = RunningNormalizer(1)
    normalizer(x)
    assert float(normalizer.variance) == pytest.approx(
        float(x.double().var(correction=0)), rel=1e-2
    )


@pytest.mark.parametrize("precise", [True, False], ids=["float64", "float32"])
def test_a_large_mean_follows_a_drift_of_less_than_a_deviation(precise):
    """In float32, the negative control, small steps vanish beside a mean of 1e5."""
    moments = RunningMoments(1, decay=0.01)
    moments.mean.fill_(1e5)
    moments.num_updates.fill_(10**4)
    moments = moments if precise else moments.float()
    for _ in range(300):
        moments.update(torch.tensor([[1e5 - 0.5], [1e5 + 1.0]]))
    assert float(moments.mean - 1e5) == pytest.approx(0.25 if precise else 0.0, abs=0.02)


def test_initial_moments_weigh_as_many_updates_as_they_are_said_to():
    x = torch.tensor([[8.0], [12.0]])
    forgotten, counted = (
        RunningMoments(1, decay=1e-9),
        RunningMoments(1, decay=1e-9, initial_updates=1),
    )
    for moments in (forgotten, counted):
        moments.update(x)
    assert forgotten.mean.item() == pytest.approx(10.0)
    assert forgotten.variance.item() == pytest.approx(4.0)
    assert counted.mean.item() == pytest.approx(5.0)
    assert counted.variance.item() == pytest.approx((1.0 + 4.0) / 2 + 25.0)


def test_a_feature_whose_squares_overflow_stands_still_and_the_others_move():
    moments = RunningMoments(2, decay=0.5)
    moments.update(torch.tensor([[1.0, 1.0], [3.0, 3.0]]))
    moments.update(torch.tensor([[1e30, 5.0], [-1e30, 5.0]]))
    assert (moments.mean[0].item(), moments.variance[0].item()) == (2.0, 1.0)
    assert moments.mean[1].item() == pytest.approx(4.0)


def test_outputs_are_clipped_and_constant_features_only_shifted():
    normalizer = RunningNormalizer(2, clip=3.0)
    x = torch.zeros(1000, 2)
    x[0, 0] = 1e3
    x[:, 1] = 7.0
    y = normalizer(x)
    assert float(y[:, 0].max()) == 3.0
    assert y[:, 1].abs().max() == 0.0
    assert normalizer.eval()(torch.tensor([[0.0, 8.0]]))[0, 1] == 1.0


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (RunningNormalizer, "num_features", 0),
        (RunningNormalizer, "decay", 1.5),
        (RunningNormalizer, "decay", 0.0),
        (RunningNormalizer, "clip", -1.0),
        (RunningNormalizer, "min_std", 0.0),
        (RunningMoments, "num_features", 0),
        (RunningMoments, "decay", float("nan")),
        (RunningMoments, "initial_variance", 0.0),
        (RunningMoments, "initial_updates", -1),
    ],
)
def test_impossible_arguments_are_refused(kind, name, value):
    with pytest.raises(ArgumentError) as raised:
        kind(**{"num_features": 1, "decay": 0.1, name: value})
    error = raised.value
    assert (error.owner, error.name) == (kind.__name__, name)
    assert error.value is value


def test_an_input_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"num_features=3, got shape \(5, 2\)"):
        RunningNormalizer(3)(torch.zeros(5, 2))


def test_statistics_move_inside_a_loss_module_too():
    """A loss swaps a module's tensors in and out: updates must reach the module's own buffers."""

    class Loss(LossModule):
        encoder: nn.Module
        encoder_params: TensorDictParams
        target_encoder_params: TensorDictParams

        def __init__(self, encoder):
            super().__init__()
            self.convert_to_functional(encoder, "encoder", create_target_params=False)

        def forward(self, td):
            with self.encoder_params.to_module(self.encoder, preserve_module_state=False):
                return self.encoder(td)

    encoder = TensorDictModule(RunningNormalizer(1), in_keys=["x", "mask"], out_keys=["y"])
    mask = torch.tensor([True, True, False])
    Loss(encoder)(TensorDict(x=torch.tensor([[4.0], [8.0], [99.0]]), mask=mask, batch_size=3))
    assert encoder.module.mean.tolist() == [6.0]
    assert int(encoder.module.num_updates) == 1


def test_one_huge_number_is_left_out_and_its_feature_learns_from_the_others():
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [1e18, 6.0], [torch.nan, 9.0]])
    moments, others = RunningMoments(2, decay=0.5), RunningMoments(2, decay=0.5)
    moments.update(x)
    others.update(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert (moments.mean[0], moments.variance[0]) == (others.mean[0], others.variance[0])
    assert moments.mean[1].item() == pytest.approx(16 / 3)
