"""Budgets of recipes: limits of time, and schedules that are shares of them."""

import pytest
import yamame
from yamame.checks import UsageError

TINY = ("debug=tiny", "env=tmaze", "env.length=8", "encoder=gru", "logger=none", "run.name=a")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_cpu_seconds_end_a_run_in_order_and_those_of_former_sessions_count(components):
    steps = ("budget.updates=null", "budget.env_steps=100000", "budget.minutes=null")
    run = yamame.train(*TINY, *steps, "budget.cpu_s=0.01")
    assert (run.summary["status"], run.summary["ended_by"]) == ("FINISHED", "budget.cpu_s=0.01")
    assert run.progress.env_steps == 0
    spent = components(run.path)["costs"]["cpu_s"]
    again = yamame.train(*TINY, *steps, f"budget.cpu_s={spent}", "resume=auto")
    assert again.progress.env_steps == 0
    further = yamame.train(*TINY, *steps, f"budget.cpu_s={spent + 1.5}", "resume=auto")
    assert further.progress.env_steps > 0
    assert further.summary["cpu_s"] >= spent + 1.5


def test_the_former_callback_names_the_setting_in_its_place():
    with pytest.raises(UsageError, match=r"callbacks=cost_limit: .*budget\.cpu_s"):
        yamame.train(*TINY, "callbacks=cost_limit", "callbacks.cost_limit.cpu_s=1")
    with pytest.raises(UsageError, match="callbacks=cost_limits: no such choice"):
        yamame.train(*TINY, "callbacks=cost_limits")
