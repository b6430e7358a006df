"""What becomes of experiments, also of those of which no run counts."""

import pytest
from yamame.report import Verdict, falls_short, make_sections
from yamame.report.content import unmeasured
from yamame.report.expected import Expected

DARK = {"expected__metric": "success_mean", "expected__interval": "[0.8, 1.0]"}


@pytest.fixture
def run(make_run):
    """Makes a run of an experiment from what else its command says."""

    def run(arguments="", *, seed=0, recipe="train", **options):
        tags = {"command": f"python recipes/{recipe}.py experiment=dark seed={seed} {arguments}"}
        return make_run(seed, tags=tags, **{**DARK, **options})

    return run


@pytest.mark.parametrize("options", [{"status": "FAILED"}, {"status": "RUNNING"}, {"metrics": {}}])
def test_an_experiment_of_which_no_run_counts_was_not_measured(run, options):
    lost = unmeasured(*make_sections([run(seed=seed, **options) for seed in (0, 1)]))
    assert [str(entry) for entry in lost] == [
        "dark (Maze): unknown (success_mean not measured; expected 0.8 to 1)"
    ]
    assert falls_short(lost)


@pytest.mark.parametrize("base", [None, "changed"])
def test_one_run_that_counts_measures_an_experiment(run, base):
    runs = [run(status="FAILED"), run(seed=1), run("lr=2", lr=2, name="changed")]
    assert unmeasured(*make_sections(runs, base=base)) == []


def test_runs_of_changed_experiments_and_of_other_recipes_do_not_measure_it(run):
    counted = [run("+ablation=no_memory", lr=2), run(recipe="ppo", loss="ppo")]
    failed = run(status="FAILED")
    assert [entry.section for entry in unmeasured(*make_sections([*counted, failed]))] == [
        "dark (Maze)"
    ]


def test_of_a_changed_run_that_failed_and_of_one_that_promised_nothing_nothing_is_told(
    run, make_run
):
    runs = [run("budget.env_steps=500", status="FAILED"), make_run(status="FAILED")]
    assert unmeasured(*make_sections(runs)) == []


def test_a_length_falls_short_above_what_is_expected():
    expected = Expected("length_mean", (10.0, 30.0))
    short = [
        outcome
        for outcome in ("reached", "below", "above", "unknown")
        if falls_short([Verdict("a", expected, outcome, 1.0, 1)])
    ]
    assert short == ["above", "unknown"]
