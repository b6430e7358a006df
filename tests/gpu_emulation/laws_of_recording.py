"""Updates and decisions that are recorded as CUDA graphs are those that are not."""

import pytest
import torch
import yamame

TINY = (
    "debug=tiny", "logger=none", "schedule.anneal_lr=false", "evaluation.num_episodes=2", "evaluation.max_steps=12",
    "device=cuda", "budget.updates=9", "schedule.updates_per_step=0.1",
    "packing.row_multiple=4", "packing.length_multiple=64",
)  # fmt: skip
RECORDED = ("schedule.cuda_graph=true", "collector.cuda_graph=true")
NARROW = ("encoder.d_model=16", "encoder.dropout=0")
CHOICES = {
    "a maze": ("env.time_limit=20", *NARROW),
    "a dark room": ("env=dark_key_to_door", "env.time_limit=20", *NARROW),
    "continuous actions": ("env=wind", "env.time_limit=20", "encoder.sigma_reparam=true", *NARROW),
    "a window": (
        "env=tmaze",
        "env.length=12",
        "encoder.window=8",
        "encoder.positions=rotary",
        "encoder.sinks=1",
        *NARROW,
    ),
    "another encoder": ("env=bandits", "env.time_limit=20", "encoder=window", "encoder.d_model=16"),
    "another agent": ("env=frozenlake", "agent=amago2", *NARROW),
}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """What is recorded takes the general branch, which may add in another order: a tenth of an update's largest move."""
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


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_recorded_run_ends_as_one_that_is_not(choice, train):
    plain, none = train(*choice, "run.name=plain")
    recorded, launches = train(*choice, "run.name=recorded", *RECORDED)
    assert not none
    assert launches == {"training/recorded_updates.py", "agent/recorded.py"}
    assert_same(recorded, plain)


def test_a_recorded_run_that_was_resumed_ends_as_one_that_is_not(train):
    room = CHOICES["a dark room"]
    plain, _ = train(*room, "run.name=plain")
    begun, _ = train(*room, "run.name=recorded", *RECORDED, "budget.updates=5")
    ended, launches = train(*room, "run.name=recorded", *RECORDED, "resume=true")
    assert launches
    assert_same(ended, plain)
    with pytest.raises(AssertionError):
        assert_same(ended, begun)


def test_the_settings_for_a_gpu_are_recorded_and_end_as_ones_that_are_not(train):
    preset = ("hardware=gpu", "env.time_limit=20", *NARROW)
    recorded, launches = train(*preset, "run.name=recorded")
    assert launches == {"training/recorded_updates.py", "agent/recorded.py"}
    plain, _ = train(*preset, "run.name=plain", "schedule.cuda_graph=false", "collector.cuda_graph=false")
    assert_same(recorded, plain)
