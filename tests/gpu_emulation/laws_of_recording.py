"""Updates and decisions that are recorded as CUDA graphs are those that are not."""

import pytest
import torch

TINY = (
    "debug=tiny", "logger=none", "optimizer=adamw", "schedule.regulator=null",
    "schedule.autocast=null", "schedule.anneal_lr=false", "exploration.anneal_steps=60000",
    "evaluation.num_episodes=2",
    "evaluation.max_steps=12",
    "device=cuda", "budget.updates=6", "schedule.updates_per_step=0.1",
    "packing.row_multiple=4", "packing.length_multiple=64",
)  # fmt: skip
RECORDED = ("schedule.cuda_graph=true", "collector.cuda_graph=true", "run.name=recorded")
NARROW = ("encoder.d_model=16", "encoder.dropout=0")
SHORT = "env.time_limit=20"
MAZE = ("env=mazerunner", SHORT, *NARROW)
CHOICES = {
    "continuous actions": ("env=wind", SHORT, "encoder.sigma_reparam=true", *NARROW),
    "a window": (
        "env=tmaze", "env.length=12", "encoder.window=8", "encoder.sinks=1",
        "encoder.positions=rotary", *NARROW,
    ),
    # Its cache has its full size at once, and blocks follow updates: one recording acts with all
    # weights there are.
    "a short context": (
        "env=wind", SHORT, "encoder.context_length=21", "encoder.sigma_reparam=true",
        "schedule.average_decay=0.9",
        "optimizer.lr=0.003", "schedule.warmup_updates=0", "schedule.updates_per_step=0.02",
        *NARROW,
    ),
    "recurrent layers": (
        "env=bandits", SHORT, "encoder=gru", "encoder.hidden_size=16", "encoder.num_layers=1",
    ),
    "an environment of the host": ("env=gym", "env.id=Pendulum-v1", SHORT, *NARROW),
    "a linear recurrence": (
        "env=active_tmaze", "env.length=12", "encoder=linear_recurrent", "encoder.d_model=16",
    ),
    "two encoders": (
        "env=tmaze", "env.length=12", "agent=separate", "encoder=window", "encoder.d_model=16",
    ),
    "values as bins": (
        "env=active_tmaze", "env.length=12", "agent=amago2", "agent/returns=binned", *NARROW,
    ),
    "Muon": ("env=tmaze", "env.length=12", "optimizer=muon", *NARROW),
}  # fmt: skip


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """What is recorded takes the general branch, which may add in another order: a tenth of what an
    update moves.
    """
    torch.testing.assert_close(one, other, rtol=1e-4, atol=3e-6)


UPDATES = "execution/recorded_updates.py"
STEPS = "execution/recorded_steps.py"
DECISIONS = "execution/recorded_function.py"
ACTING = {"an environment of the host": DECISIONS}
"""What is recorded of acting, where it is not whole steps."""
RARE = ("a window", "a linear recurrence", "two encoders", "values as bins")


@pytest.fixture(autouse=True)
def orthogonalised_in_float32(monkeypatch):
    """Muon in float32: in bfloat16, a last bit of a gradient would move weights a thousand times
    more.
    """
    monkeypatch.setattr("yamame.training.muon.multiplies_bfloat16", lambda device: False)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in RARE else []) for name in CHOICES],
)
def test_a_recorded_run_ends_as_one_that_is_not(name, train):
    plain = train(*TINY, *CHOICES[name], "run.name=plain")
    recorded = train(*TINY, *CHOICES[name], *RECORDED)
    assert not plain.launches
    assert recorded.launches == {UPDATES, ACTING.get(name, STEPS)}
    assert_same(recorded.weights, plain.weights)


def test_a_recorded_run_that_was_resumed_ends_as_one_that_is_not(train):
    settings = (*TINY, *MAZE, "schedule.updates_per_step=0.03")
    plain = train(*settings, "run.name=plain")
    begun = train(*settings, *RECORDED, "budget.updates=2")
    ended = train(*settings, *RECORDED, "resume=true")
    assert ended.launches == {UPDATES, STEPS}
    assert_same(ended.weights, plain.weights)
    with pytest.raises(AssertionError):
        assert_same(ended.weights, begun.weights)


def test_the_settings_for_a_gpu_are_recorded_and_end_as_ones_that_are_not(train):
    settings = (*TINY, "hardware=gpu", "schedule.autocast=bfloat16", SHORT, *NARROW)
    recorded = train(*settings, "run.name=recorded")
    plain = train(
        *settings, "run.name=plain", "schedule.cuda_graph=false", "collector.cuda_graph=false"
    )
    assert recorded.launches == {UPDATES, STEPS}
    assert_same(recorded.weights, plain.weights)
