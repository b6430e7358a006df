"""Budgets of recipes: limits of time, and schedules that are shares of them."""

import json
import signal
from types import SimpleNamespace

import pytest
import yamame
from yamame.checks import UsageError
from yamame.runs import schedules
from yamame.runs.limits import with_minutes
from yamame.system.budget import Budget
from yamame.training import Progress

TINY = ("debug=tiny", "env=tmaze", "env.length=8", "encoder=gru", "logger=none", "run.name=a")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_cpu_seconds_end_a_run_in_order_and_those_of_former_sessions_count(components, capsys):
    steps = ("budget.updates=null", "budget.env_steps=100000", "budget.minutes=null")
    run = yamame.train(*TINY, *steps, "budget.cpu_s=0.01")
    assert (run.summary["status"], run.summary["ended_by"]) == ("FINISHED", "budget.cpu_s=0.01")
    assert run.progress.env_steps == 0
    spent = components(run.path)["costs"]["cpu_s"]
    again = yamame.train(*TINY, *steps, f"budget.cpu_s={spent}", "resume=auto")
    assert again.progress.env_steps == 0
    idle = "resumed, but no update was made"
    capsys.readouterr()
    yamame.train(*TINY, *steps, f"budget.cpu_s={spent}", "resume=true")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if idle in line]
    assert "used up before; set budget.cpu_s=" in line
    spent = components(run.path)["costs"]["cpu_s"] + 60  # far more than the end of that session
    summary = run.path / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "cpu_s": spent}))
    slow = yamame.train(*TINY, *steps, f"budget.cpu_s={spent + 0.001}", "resume=true")
    assert slow.progress.env_steps == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if idle in line]
    assert "CPU-seconds, and 0.0" in line
    spent = slow.summary["cpu_s"]
    further = yamame.train(*TINY, *steps, f"budget.cpu_s={spent + 1.5}", "resume=auto")
    assert further.progress.env_steps > 0
    assert further.summary["cpu_s"] >= spent + 1.5
    assert idle not in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["env_steps", "updates", "minutes", "cpu_s"])
def test_a_limit_without_end_is_refused(limit):
    with pytest.raises(UsageError, match=rf"budget.{limit}: must be .*below inf.*, got inf"):
        yamame.train(*TINY, f"budget.{limit}=inf")


def test_a_run_that_would_never_end_is_refused():
    updates = ("budget.env_steps=null", "budget.updates=3", "schedule.updates_per_step=0")
    with pytest.raises(
        UsageError, match=r"updates_per_step: must be positive where budget.updates"
    ):
        yamame.train(*TINY, *updates)
    run = yamame.train(*TINY, *updates, "budget.minutes=0.001")
    assert run.summary["ended_by"] == "budget.minutes=0.001"


def test_the_command_with_a_larger_budget_is_printed_and_continues_the_run(capsys):
    run = yamame.train(*TINY, "budget.updates=2", "resume=auto")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "larger budget" in line]
    words = line.partition("  #")[0].split()
    assert words[:2] == ["yamame", "train"]
    assert words[-2:] == ["resume=true", "budget.updates=4"]
    longer = yamame.train(*words[2:])
    assert (longer.path, longer.progress.updates) == (run.path, 4)


def test_a_start_that_takes_the_whole_budget_is_named(capsys):
    yamame.train(*TINY, "budget.updates=null", "budget.minutes=null", "budget.cpu_s=0.01")
    err = capsys.readouterr().err
    assert "the run ended before the first one (budget.cpu_s=0.01, of which the start took" in err


def test_a_sweep_over_budgets_asks_for_names_with_the_budget(play, tmp_path):
    without_name = [text for text in TINY if text != "run.name=a"]
    status, _, err = play("train", tmp_path, *without_name, "-m", "budget.updates=1,2")
    assert (status, err.count("\n")) == (2, 1)
    assert "share" in err
    assert err.endswith("name the setting that differs, as in run.name='mine-${budget.cpu_s}'\n")


class Learning(yamame.Callback):
    """Keeps the metrics of the schedules."""

    def __init__(self):
        self.shares = []

    def on_log(self, run, metrics, step):
        names = ("train/learning_rate_share", "collector/exploration_share")
        if all(name in metrics for name in names):
            self.shares.append([metrics[name] for name in names])


def test_the_shares_of_the_schedules_are_logged():
    seen = Learning()
    steps = ("budget.updates=null", "budget.env_steps=1024", "schedule.steps_per_iteration=64")
    yamame.train(*TINY, *steps, "schedule.warmup_updates=5", callbacks=[seen])
    rates = [rate for rate, _ in seen.shares]
    noise = [noise for _, noise in seen.shares]
    assert noise == sorted(noise, reverse=True)
    assert (noise[-1], max(noise) > 0.5) == (0.0, True)
    assert (rates[-1], max(rates)) == (pytest.approx(0.0, abs=0.1), pytest.approx(0.8, abs=0.2))


class Curves(yamame.Callback):
    """Compares every evaluation with the last entry of the curve."""

    def __init__(self):
        self.seen = []

    def on_evaluate(self, run, result):
        self.seen.append(run.progress.curve[-1] == {"env_steps": 256} | result.summary())


def test_more_updates_after_the_same_steps_have_an_evaluation_of_their_own(capsys):
    many = ("schedule.steps_per_iteration=256", "schedule.updates_per_step=1", "optimizer.lr=0.05")
    first = yamame.train(*TINY, *many, "budget.updates=2")
    watch = Curves()
    more = (*TINY, *many, "resume=true")
    other = ("budget.updates=20", "evaluation.num_episodes=6")  # so that the summaries differ
    second = yamame.train(*more, *other, callbacks=[watch])
    assert (first.progress.env_steps, second.progress.updates) == (256, 20)
    assert second.progress.env_steps == 256
    assert watch.seen == [True]
    assert len(second.progress.curve) == 1
    assert second.progress.curve[-1]["return_mean"] == second.summary["return_mean"]
    assert second.progress.curve[-1]["num_episodes"] == 6
    assert "resumed with" not in capsys.readouterr().err
    yamame.train(*more, other[1], "budget.updates=null", "budget.env_steps=260")
    changes = "a: resumed with other limits: env_steps: null -> 260; updates: 20 -> null"
    assert changes in capsys.readouterr().err


def test_the_former_callback_names_the_setting_in_its_place():
    with pytest.raises(UsageError, match=r"callbacks=cost_limit: .*budget\.cpu_s"):
        yamame.train(*TINY, "callbacks=cost_limit", "callbacks.cost_limit.cpu_s=1")
    with pytest.raises(UsageError, match="callbacks=cost_limits: no such choice"):
        yamame.train(*TINY, "callbacks=cost_limits")


STEPS = ("budget.updates=null", "budget.minutes=null", "schedule.num_envs=4")


class Interrupt(yamame.Callback):
    """Asks the run to end after a number of updates."""

    def __init__(self, updates):
        self.updates = updates

    def on_update(self, run, metrics):
        if run.progress.updates == self.updates:
            signal.raise_signal(signal.SIGTERM)


class Watch(yamame.Callback):
    """Notes the learning rate of every update, and the exploration after every collection."""

    def __init__(self):
        self.rates, self.strengths = [], []

    def on_begin(self, run):
        self.optimizer = run.components["optimizer"]

    def on_collect(self, run, episodes):
        self.strengths.append(float(run.components["collector"].exploration.anneal(1.0, 0.0)))

    def on_update(self, run, metrics):
        self.rates.append(self.optimizer.param_groups[0]["lr"])


def test_shares_of_a_budget_in_steps_are_resumed_bit_for_bit(components, differing):
    settings = (*TINY, *STEPS, "budget.env_steps=768", "schedule.learning_starts_episodes=12")
    whole = yamame.train(*settings, "run.name=whole")
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*settings, callbacks=[Interrupt(whole.progress.updates // 2)])
    part = yamame.train(*settings, "resume=true")
    assert part.resumed
    assert differing(components(whole.path), components(part.path)) == []
    other = yamame.train(*settings, "run.name=other", "exploration.anneal=1.0")
    assert differing(components(whole.path), components(other.path)) != []


def test_exploration_and_learning_rate_follow_any_limit():
    quarter = "exploration.anneal=0.5"
    by_steps, by_updates = Watch(), Watch()
    run = yamame.train(*TINY, *STEPS, quarter, "budget.env_steps=1024", callbacks=[by_steps])
    strengths = by_steps.strengths
    iterations = 1024 // 64
    assert strengths[: iterations // 2] == pytest.approx(
        [1 - 2 * index / iterations for index in range(iterations // 2)]
    )
    assert set(strengths[iterations // 2 :]) == {0.0}
    rates = by_steps.rates
    assert rates[-1] < 0.1 * max(rates)
    assert rates[-1] > 0  # the last iteration learns, though its steps have spent the budget

    limit = f"budget.updates={run.progress.updates}"
    more = ("budget.env_steps=100000", "run.name=b", quarter)
    yamame.train(*TINY, *STEPS, *more, limit, callbacks=[by_updates])
    assert min(by_updates.strengths) == 0.0
    assert by_updates.strengths == sorted(by_updates.strengths, reverse=True)
    assert by_updates.rates[-1] == pytest.approx(by_updates.rates[0] / len(by_updates.rates), rel=1)


def test_a_raised_budget_stretches_the_schedules_and_never_makes_noise_stronger():
    first, second = Watch(), Watch()
    whole = ("exploration.anneal=1.0",)
    yamame.train(*TINY, *STEPS, *whole, "budget.env_steps=512", callbacks=[first])
    longer = (*whole, "budget.env_steps=1024", "resume=true")
    yamame.train(*TINY, *STEPS, *longer, callbacks=[second])
    assert min(first.strengths) > 0
    # Half of the new budget was spent, which is less noise than there was at the end of the old.
    assert max(second.strengths) <= min(first.strengths)
    assert max(second.rates) > first.rates[-1]


def test_only_a_run_with_a_limit_of_time_prints_that_it_cannot_be_reproduced(capsys):
    yamame.train(*TINY, "budget.minutes=5", "budget.env_steps=128", "budget.updates=null")
    lines = [line for line in capsys.readouterr().err.splitlines() if "reproduced" in line]
    assert len(lines) == 1
    assert "budget.minutes=5" in lines[0]
    yamame.train(*TINY, *STEPS, "budget.env_steps=128", "run.name=b")
    assert "reproduced" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "minutes"),
    [
        ([], 2.0),
        (["budget.env_steps=80000"], None),
        (["budget.updates=3"], None),
        (["budget.cpu_s=60"], None),
        (["budget.env_steps=80000", "budget.minutes=5"], 5),
        (["budget.minutes=5"], 5),
        (["experiment=cpu_tmaze"], None),
    ],
)
def test_the_minutes_of_the_default_hold_where_no_other_limit_is_given(given, minutes):
    resolved = with_minutes(yamame.compose(*given))
    assert resolved.budget.minutes == minutes
    assert with_minutes(resolved) is resolved


class EndAtOnce(yamame.Callback):
    """Ends a run after its first iteration."""

    def on_collect(self, run, episodes):
        run.stop("enough")


def test_a_run_saves_its_minutes_as_a_number(capsys):
    limited = yamame.train(*TINY, "budget.minutes=auto")
    assert limited.checkpoints.read_config()["budget"]["minutes"] is None
    assert limited.cfg.budget.minutes is None
    assert limited.summary["ended_by"] == "budget.updates=2"
    assert "reproduced" not in capsys.readouterr().err

    unlimited = ("run.name=b", "budget.updates=null", "budget.minutes=auto")
    run = yamame.train(*TINY, *unlimited, callbacks=[EndAtOnce()])
    assert run.checkpoints.read_config()["budget"]["minutes"] == 2.0
    assert "budget.minutes=2:" in capsys.readouterr().err
    # A budget may change: the steps are the only limit of the continued run.
    more = yamame.train(*TINY, *unlimited, "budget.env_steps=256", "resume=true")
    assert (more.resumed, more.summary["ended_by"]) == (True, "budget.env_steps=256")


def test_no_limit_at_all_is_refused():
    with pytest.raises(UsageError, match=r"budget: must have a limit"):
        yamame.train(*TINY, "budget.updates=null", "budget.minutes=null")


class Counts(yamame.Callback):
    """Notes environment steps and ended episodes after every collection."""

    def __init__(self):
        self.counts = []

    def on_collect(self, run, episodes):
        self.counts.append((run.progress.env_steps, run.progress.episodes))


def test_learning_starts_after_enough_episodes_or_a_tenth_of_the_budget():
    def progress(name, *settings, counts=None):
        callbacks = [] if counts is None else [counts]
        given = ("schedule.updates_per_step=0.0625", "schedule.regulator=null")
        given += ("budget.env_steps=1280", f"run.name={name}")
        return yamame.train(*TINY, *STEPS, *given, *settings, callbacks=callbacks).progress

    counts = Counts()
    enough = progress("a", "schedule.learning_starts_episodes=10", counts=counts)
    assert enough.learning_began == min(steps for steps, ended in counts.counts if ended >= 10)
    assert enough.updates == (enough.env_steps - enough.learning_began) // 16
    few = progress("b", "schedule.learning_starts_episodes=100000")
    assert few.learning_began == 128
    both = progress("c", "schedule.learning_starts_episodes=1", "schedule.learning_starts=600")
    assert both.learning_began == 640
    # As in earlier versions, updates are counted from the setting.
    former = progress("d", "schedule.learning_starts=600")
    assert former.updates == (former.env_steps - 600) // 16


@pytest.mark.parametrize(("in_budget", "share"), [(True, 0.5), (False, 0.0)])
def test_evaluations_cost_budget_unless_they_are_left_out(in_budget, share):
    clock = [0.0]
    run = SimpleNamespace(
        cfg=SimpleNamespace(evaluation=SimpleNamespace(in_budget=in_budget)),
        budget=Budget(cpu_s=100, cpu_clock=lambda: clock[0]),
        costs=SimpleNamespace(gather=lambda: None),
        progress=Progress(),
    )
    run.budget.start()
    with schedules.timed_evaluation(run):
        clock[0] = 50.0
    assert run.budget.fraction(env_steps=0, updates=0) == share
    assert run.progress.evaluation_share == share
