"""Schedules: learning rates over the share of a budget that is spent, and when learning begins."""

import time
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from yamame import compose
from yamame.cli.training_settings import TrainSchedule
from yamame.files.identity import ADDED
from yamame.runs.build import total_updates
from yamame.runs.parts import build_batches
from yamame.runs.schedules import (
    annealing,
    batch_size,
    begin_learning,
    checkpoint_is_due,
    count_evaluation,
    evaluation_is_due,
    follow_budget,
    learning_began,
    spent_share,
    timed_evaluation,
)
from yamame.system.budget import Budget
from yamame.training.learner import learning_rate_share
from yamame.training.progress import Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def annealed(offline=0, **budget):
    """The configuration of a schedule, with the limits given."""
    limits = {"env_steps": None, "updates": None, "minutes": 1.0, **budget}
    return OmegaConf.create(
        {
            "schedule": {
                "learning_starts": 1000,
                "updates_per_step": 0.02,
                "offline_updates": offline,
            },
            "budget": limits,
        }
    )


def test_the_learning_rate_ends_with_whichever_limit_comes_first():
    assert total_updates(annealed(env_steps=11_000)) == 200
    assert total_updates(annealed(offline=30, env_steps=11_000)) == 230
    assert total_updates(annealed(updates=150)) == 150
    assert total_updates(annealed(env_steps=11_000, updates=150)) == 150
    assert total_updates(annealed(env_steps=11_000, updates=250)) == 200


def test_minutes_alone_limit_no_number_of_updates():
    assert total_updates(annealed()) is None


def test_a_budget_that_ends_before_learning_starts_still_has_an_end():
    assert total_updates(annealed(env_steps=500)) == 1


def run_of(budget, **settings):
    """State of a run that collects 10 steps and makes an update for each."""
    schedule = {
        "anneal_lr": True,
        "anneal_lr_from": 0.0,
        "warmup_updates": 0,
        "learning_starts": 0,
        "learning_starts_episodes": 4,
        "offline_updates": 0,
        "updates_per_step": 1.0,
        **settings,
    }
    limits = {"env_steps": budget.env_steps, "updates": budget.updates, "minutes": budget.minutes}
    intervals = {
        "evaluation": {"interval": None, "num_episodes": 16},
        "checkpoint": {"interval": None},
    }
    cfg = OmegaConf.create({"schedule": schedule, "budget": limits, **intervals})
    return SimpleNamespace(cfg=cfg, budget=budget, progress=Progress())


def rates_of(run, *, iterations):
    """Learning rates of all updates of a run that begins to learn at once."""
    run.progress.learning_began = 0
    rate = annealing(run)
    rates = [rate(0)]
    for _ in range(iterations):
        run.progress.env_steps += 10
        for _ in range(10):
            run.progress.updates += 1
            rates.append(rate(run.progress.updates))
    return rates[:-1]  # the last one belongs to an update that is not made


@pytest.mark.parametrize(
    "limits", [{"env_steps": 50}, {"updates": 50}, {"env_steps": 50, "updates": 70}]
)
def test_every_update_has_its_own_rate_and_the_last_one_still_learns(limits):
    rates = rates_of(run_of(Budget(**limits)), iterations=5)
    assert rates == pytest.approx([1 - updates / 50 for updates in range(50)])
    late = rates_of(run_of(Budget(**limits), anneal_lr_from=0.8), iterations=5)
    assert late[:41] == [1.0] * 41
    assert late[41:] == pytest.approx([(50 - updates) / 10 for updates in range(41, 50)])


def test_the_rate_follows_clocks_as_it_follows_steps():
    clock, cpu = Clock(), Clock()
    for budget in (Budget(minutes=1, clock=clock), Budget(cpu_s=205, cpu_clock=cpu)):
        budget.start()
        run = run_of(budget)
        rate = annealing(run)
        assert rate(0) == 1.0
        clock.now += 45
        cpu.now += 45
        assert rate(1) == pytest.approx(0.25)
        run.progress.updates = 10**6
        assert rate(10**6) == pytest.approx(0.25)
    assert annealing(run_of(budget, anneal_lr=False)) is None


def test_the_clock_of_the_first_rank_decides(monkeypatch):
    asked = []
    monkeypatch.setattr("yamame.distributed.broadcast", lambda share: asked.append(share) or 0.75)
    run = run_of(Budget(minutes=5.0))
    assert annealing(run)(1) == 0.25
    assert spent_share(run) == 0.75
    assert len(asked) == 2
    assert spent_share(run_of(Budget(env_steps=5))) == 0.0
    assert len(asked) == 2


def test_a_run_of_an_earlier_version_keeps_its_rates():
    run = run_of(Budget(updates=50), anneal_lr_from=None, warmup_updates=10)
    expected = [learning_rate_share(k, warmup=10, total=50) for k in range(10, 50)]
    assert [annealing(run)(k) for k in range(10, 50)] == expected
    clock = Clock()
    run = run_of(Budget(updates=50, minutes=1, clock=clock), anneal_lr_from=None)
    clock.now += 45
    assert annealing(run)(1) == 0.5


@pytest.mark.parametrize("name", ["anneal_lr_from", "learning_starts_episodes"])
def test_configurations_without_the_settings_are_read_as_of_an_earlier_version(name):
    assert TrainSchedule.model_fields[name].default == ADDED[f"schedule.{name}"]
    current = compose("env=tmaze").schedule
    assert current[name] != ADDED[f"schedule.{name}"]


def test_learning_begins_once_with_enough_episodes_or_a_tenth_of_the_budget():
    run = run_of(Budget(env_steps=1000))
    for env_steps, episodes, began in [(50, 3, None), (60, 4, 60), (70, 9, 60)]:
        run.progress.env_steps, run.progress.episodes = env_steps, episodes
        begin_learning(run)
        assert learning_began(run) == began
    for episodes, began in [(0, None), (1, 100)]:
        run = run_of(Budget(env_steps=1000))
        run.progress.env_steps, run.progress.episodes = 100, episodes
        begin_learning(run)
        assert learning_began(run) == began
    assert learning_began(run_of(Budget(env_steps=1000), learning_starts_episodes=0)) == 0


def evaluations_of(run, *, length, steps_per_iteration=10):
    """Steps at which a run evaluates whose episodes have a length."""
    places = []
    while spent_share(run) < 1.0:
        run.progress.env_steps += steps_per_iteration
        run.progress.episodes = run.progress.env_steps // length
        if evaluation_is_due(run):
            places.append(run.progress.env_steps)
            lengths = torch.full((run.cfg.evaluation.num_episodes,), length)
            count_evaluation(run, SimpleNamespace(lengths=lengths))
    return places


def test_evaluations_are_spread_evenly_and_take_a_third_of_the_steps_of_training_at_most():
    short = evaluations_of(run_of(Budget(env_steps=800)), length=2)
    assert short == [100, 200, 300, 400, 500, 600, 700]  # the eighth is that at the end
    # An evaluation takes 64 steps: each begins once training has taken three times as many.
    long = evaluations_of(run_of(Budget(env_steps=800)), length=4)
    assert long == [200, 400, 600]
    longer = evaluations_of(run_of(Budget(env_steps=800)), length=6)
    assert longer == [290, 580]
    assert evaluations_of(run_of(Budget(env_steps=800)), length=100) == []


def test_training_takes_three_times_the_time_of_an_evaluation_where_time_is_limited():
    clock = Clock()
    run = run_of(Budget(minutes=1, clock=clock))
    run.cfg.evaluation.in_budget = True
    run.progress.env_steps, run.progress.episodes = 1000, 500
    due = []
    for _ in range(48):
        clock.now += 1
        run.progress.env_steps += 100
        if evaluation_is_due(run):
            due.append(clock.now - 100)
            with timed_evaluation(run):
                clock.now += 5.5
            count_evaluation(run, SimpleNamespace(lengths=torch.ones(16, dtype=torch.int64)))
    assert due == [8, 30.5, 53]


def test_a_number_is_an_interval_whatever_an_evaluation_takes():
    run = run_of(Budget(env_steps=100))
    run.cfg.evaluation.interval = 30
    assert evaluations_of(run, length=100) == [30, 60, 90]


def test_evaluations_follow_a_clock_as_well_as_steps():
    clock = Clock()
    budget = Budget(minutes=1, clock=clock)
    run = run_of(budget)
    run.progress.env_steps, run.progress.episodes = 1000, 100
    due = []
    for _ in range(60):
        clock.now += 1
        run.progress.env_steps += 100
        if evaluation_is_due(run):
            due.append(round(clock.now - 100))
            count_evaluation(run, SimpleNamespace(lengths=torch.ones(16, dtype=torch.int64)))
    assert due == [8, 15, 23, 30, 38, 45, 53]


def test_checkpoints_are_spread_evenly_and_none_is_older_than_some_minutes():
    run = run_of(Budget(env_steps=1000))
    now = time.monotonic()
    run.progress.env_steps = 99
    assert not checkpoint_is_due(run, now)
    assert checkpoint_is_due(run, now - 301)
    run.progress.env_steps = 100
    assert checkpoint_is_due(run, now)
    run.progress.saved_share = spent_share(run)
    assert not checkpoint_is_due(run, now)
    run.cfg.checkpoint.interval = 100
    assert checkpoint_is_due(run, now)


def test_a_raised_budget_has_evaluations_of_its_own():
    run = run_of(Budget(env_steps=800))
    evaluations_of(run, length=2)
    count_evaluation(run, SimpleNamespace(lengths=torch.ones(16)))  # at the end
    run.budget = Budget(env_steps=1600)
    follow_budget(run)
    assert evaluations_of(run, length=2) == [1000, 1200, 1400]
    run.budget = Budget(env_steps=3200)
    assert evaluations_of(run, length=2) == []  # without that


def sized(*, lengths=(), window=None, **settings):
    """A run in which episodes of some lengths have ended, with settings of its batches."""
    run = run_of(Budget(env_steps=1000), batch_size=16, **settings)
    run.cfg.window = window
    run.progress.episodes, run.progress.episode_steps = len(lengths), sum(lengths)
    return run


@pytest.mark.parametrize(
    ("lengths", "window", "size"),
    [
        ((), None, 16),
        ((10, 30), None, 16),
        ((100, 300), None, 8),
        ((100, 300), {"length": 400}, 8),
        ((100, 300), {"length": 100}, 16),
        ((100, 300), {"_target_": "mylab.Halves"}, 8),
        ((1000,), None, 2),
        ((100_000,), None, 2),
    ],
)
def test_batches_of_long_episodes_have_fewer_trajectories(lengths, window, size):
    assert batch_size(sized(lengths=lengths, window=window, batch_timesteps=1600)) == size
    assert batch_size(sized(lengths=lengths, window=window, batch_timesteps=None)) == 16


def test_every_process_has_an_equal_share_of_a_smaller_batch(monkeypatch):
    monkeypatch.setattr("yamame.distributed.world_size", lambda: 4)
    for length, each in [(100, 4), (150, 2), (1000, 1)]:
        assert batch_size(sized(lengths=(length,), batch_timesteps=1600)) == each


def test_learners_get_batches_of_the_present_size():
    run = sized(lengths=(100,), batch_timesteps=1600)
    run.cfg.device = "cpu"
    source = SimpleNamespace(sample=lambda size: TensorDict(batch_size=[size]))
    batches = build_batches(run, source)
    assert len(batches.take()) == 16
    run.progress.episode_steps = 400
    assert len(batches.take()) == 4
