"""Updates and decisions that are recorded as CUDA graphs are those that are not."""

import pytest
import torch
import yamame

TINY = (
    "debug=tiny", "logger=none", "schedule.anneal_lr=false", "evaluation.num_episodes=2", "evaluation.max_steps=12",
    "device=cuda", "budget.updates=6", "schedule.updates_per_step=0.1",
    "packing.row_multiple=4", "packing.length_multiple=64",
)  # fmt: skip
RECORDED = ("schedule.cuda_graph=true", "collector.cuda_graph=true")
NARROW = ("encoder.d_model=16", "encoder.dropout=0")
SHORT = "env.time_limit=20"
ROOM = ("env=dark_key_to_door", SHORT, *NARROW)
CHOICES = {
    "a maze": (SHORT, *NARROW),
    "continuous actions": ("env=wind", SHORT, "encoder.sigma_reparam=true", *NARROW),
    "a window": (
        "env=tmaze", "env.length=12", "encoder.window=8", "encoder.sinks=1", "encoder.positions=rotary", *NARROW,
    ),
    "recurrent layers": ("env=bandits", SHORT, "encoder=gru", "encoder.hidden_size=16", "encoder.num_layers=1"),
    "an environment of the host": ("env=gym", "env.id=Pendulum-v1", SHORT, *NARROW),
    "a linear recurrence": ("env=active_tmaze", "env.length=12", "encoder=linear_recurrent", "encoder.d_model=16"),
    "two encoders": ("env=tmaze", "env.length=12", "agent=separate", "encoder=window", "encoder.d_model=16"),
    "values as bins": ("env=active_tmaze", "env.length=12", "agent=amago2", "agent/returns=binned", *NARROW),
    "Muon": ("env=tmaze", "env.length=12", "optimizer=muon", "optimizer.smallest=16", *NARROW),
}  # fmt: skip


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """What is recorded takes the general branch, which may add in another order: a tenth of what an update moves."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=3e-6)


@pytest.fixture
def train(tmp_path, monkeypatch, counts):
    """Trains without pictures: the parameters at the end, and where graphs were launched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("yamame.runs.outcome.log_artifacts", lambda run: None)

    def train(*overrides: str) -> tuple[dict[str, torch.Tensor], set[str]]:
        with counts() as counted:
            run = yamame.train(*TINY, *overrides)
        payload = torch.load(run.checkpoints.last, map_location="cpu", weights_only=True)
        launches = {place.split(":")[0] for kind, place in counted.kernels if kind == "graph launch"}
        return payload["components"]["agent"], launches

    return train


ACTING = {"an environment of the host": {"agent/recorded.py"}}
"""What is recorded of acting, where it is not whole steps."""
RARE = ("a window", "a linear recurrence", "two encoders", "values as bins", "Muon")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in RARE else []) for name in CHOICES]
)
def test_a_recorded_run_ends_as_one_that_is_not(name, train):
    plain, none = train(*CHOICES[name], "run.name=plain")
    recorded, launches = train(*CHOICES[name], "run.name=recorded", *RECORDED)
    assert not none
    assert launches == {"training/recorded_updates.py", *ACTING.get(name, {"collectors/recorded.py"})}
    assert_same(recorded, plain)


def test_a_recorded_run_that_was_resumed_ends_as_one_that_is_not(train):
    plain, _ = train(*ROOM, "run.name=plain")
    begun, _ = train(*ROOM, "run.name=recorded", *RECORDED, "budget.updates=2")
    ended, launches = train(*ROOM, "run.name=recorded", *RECORDED, "resume=true")
    assert launches
    assert_same(ended, plain)
    with pytest.raises(AssertionError):
        assert_same(ended, begun)


def test_the_settings_for_a_gpu_are_recorded_and_end_as_ones_that_are_not(train):
    preset = ("hardware=gpu", SHORT, *NARROW)
    recorded, launches = train(*preset, "run.name=recorded")
    assert launches == {"training/recorded_updates.py", "collectors/recorded.py"}
    plain, _ = train(*preset, "run.name=plain", "schedule.cuda_graph=false", "collector.cuda_graph=false")
    assert_same(recorded, plain)
