"""Schedules: learning rates over the share of a budget that is spent, and when learning begins."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from yamame.runs.build import total_updates
from yamame.runs.schedules import annealing, begin_learning, learning_began, spent_share
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
    cfg = OmegaConf.create({"schedule": schedule, "budget": limits})
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
