"""The evaluation recipe as people use it: on runs that the training recipe has just made."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import yamame
import yaml
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.evaluation import evaluate
from yamame.report import evaluations
from yamame.report.evaluations import in_context_curves
from yamame.runs.trained import load_trained

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = ["debug=tiny", "logger=none", "evaluation.num_episodes=2", "evaluation.video_frames=1"]
MAZES = [
    *TINY,
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "env.size=7",
    "env.split_by=walls_and_goals",
    "env.num_goals=1",
    "env.time_limit=40",
    "agent.gammas=[0.1,0.9,0.999]",
]
TRIALS = [
    *("debug=tiny", "logger=none", "env=gym", "env.time_limit=15", "trials=repeated"),
    *("encoder=gru", "encoder.hidden_size=16", "evaluation.video_frames=1"),
]
RUNS = {
    "a-seed=0": MAZES,
    "b": [*MAZES, "seed=1"],
    "twin": [*MAZES, "env.observable=true"],
    "single": [*MAZES, "+ablation=no_multigamma"],
    "trials": TRIALS,
}


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(monkeypatch, function, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["recipe", *arguments])
    try:
        function()
    except SystemExit as exit_:
        return exit_.code
    return 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with trained runs."""
    folder = tmp_path_factory.mktemp("trained")
    for name, arguments in RUNS.items():
        yamame.train(*arguments, f"run.name='{name}'", f"run.root={folder}/runs")
    return folder


def gammas_of(directory: Path) -> list[float]:
    """The discount factors that a run has saved."""
    return yaml.safe_load((directory / "config.yaml").read_text())["agent"]["gammas"]


@pytest.fixture
def run(trained, monkeypatch, tmp_path, capsys):
    """Evaluates beside the trained runs: exit status, report, output, error."""
    monkeypatch.chdir(trained)

    def evaluated(*arguments: str):
        capsys.readouterr()
        output, status, error = tmp_path / "out", 0, ""
        try:
            yamame.evaluate(f"output={output}", *arguments)
        except UsageError as raised:
            status, error = 2, str(raised)
        report = output / "evaluation.json"
        told = json.loads(report.read_text()) if report.exists() else None
        return status, told, capsys.readouterr().out, error

    return evaluated


def test_a_run_is_played_on_the_roster_of_its_training_and_the_path_is_the_last_line(
    trained, monkeypatch, capsys
):
    monkeypatch.chdir(trained)
    score = load("evaluate").score
    assert call(monkeypatch, lambda: main(score, config_name="evaluate"), "run=runs/trials") == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path.name == "evaluation.json"
    (outcome,) = json.loads(path.read_text())["run"][0]["gammas"]
    assert outcome["gamma"] == gammas_of(trained / "runs/trials")[-1]
    source = load_trained(trained / "runs/trials")
    env = source.build_env(num_envs=4, seed=2000000011)
    agent = source.build_agent(env)
    setting = {"num_episodes": 4, "max_steps": 50, "seed": 2000000011}
    result = evaluate(agent.policy(), env, **setting)
    assert outcome["episodes"]["return"] == result.returns.tolist()
    assert {key: outcome[key] for key in result.summary()} == result.summary()
    agent.actor.load_state_dict({key: -value for key, value in agent.actor.state_dict().items()})
    assert (
        outcome["episodes"]["return"] != evaluate(agent.policy(), env, **setting).returns.tolist()
    )


def test_the_same_command_writes_the_same_bytes_and_another_seed_other_episodes(run, tmp_path):
    arguments = ("run=runs/trials", "control=true")
    assert run(*arguments)[0] == 0
    first = (tmp_path / "out/evaluation.json").read_bytes()
    assert run(*arguments)[0] == 0
    assert first == (tmp_path / "out/evaluation.json").read_bytes()
    _, report, _, _ = run(*arguments, "seed=5")
    old, new = (data["run"][0]["gammas"][-1]["episodes"] for data in (json.loads(first), report))
    assert old != new


def test_every_trial_has_its_return_every_gamma_its_line_and_the_control_stands_beside(
    run, trained, tmp_path
):
    status, report, out, _ = run(
        "run=runs/trials", "control=true", "gammas=all", "trials.num_trials=4"
    )
    assert status == 0
    outcomes = report["run"][0]["gammas"]
    gammas = gammas_of(trained / "runs/trials")
    assert len(gammas) > 1
    assert [outcome["gamma"] for outcome in outcomes] == gammas
    assert [outcome["acting"] for outcome in outcomes] == [False] * (len(gammas) - 1) + [True]
    for outcome in outcomes:
        for told in (outcome, outcome["control"]):
            assert len(told["trials"]["mean"]) == 4
            columns = (told["trials"][name] for name in ("low", "mean", "high"))
            assert all(low <= mean <= high for low, mean, high in zip(*columns, strict=True))
            assert sum(told["trials"]["mean"]) == pytest.approx(told["return_mean"])
    assert out.count("memory wiped") == len(gammas)
    assert (tmp_path / "out/in_context.png").read_bytes().startswith(b"\x89PNG")


def played(success, low, high, **more):
    """Numbers of an evaluation whose returns are all equal, and so have no interval."""
    numbers = {"success_mean": success, "success_low": low, "success_high": high}
    numbers |= {"return_mean": 1.0, "return_low": 1.0, "return_high": 1.0}
    numbers |= {"trials": {"mean": [1.0]}, "length_mean": 3.0, "num_episodes": 9, "finished": 1.0}
    return numbers | more


@pytest.mark.parametrize(
    ("control", "is_named"),
    [((0.4, 0.2, 0.6), True), ((0.1, 0.0, 0.3), False), (None, False)],
)
def test_a_control_whose_interval_overlaps_that_of_the_agent_shows_no_benefit_of_memory(
    capsys, control, is_named
):
    numbers = played(0.7, 0.5, 0.9, gamma=0.9, acting=True)
    if control is not None:
        # Returns without an interval settle nothing, even if they differ.
        numbers["control"] = played(*control, return_mean=0.0, return_low=0.0, return_high=0.0)
    run = {"source": "runs/a", "evaluated_on": "new mazes", "gammas": [numbers]}
    evaluations.print_tables({"run": [run], "against": []}, {})
    out = capsys.readouterr().out
    assert ("no benefit of memory is shown" in out) == is_named
    assert ("howto/probe.html" in out) == is_named
    assert "1 (no interval)" in out


def test_every_curve_of_the_picture_names_its_run_and_runs_of_one_name_their_place():
    def outcome(mean, **more):
        return {
            "trials": {"mean": mean, "low": [0.0] * len(mean), "high": [1.0] * len(mean)},
            **more,
        }

    def played(source, mean, **more):
        return {"source": source, "gammas": [{"acting": False}, outcome(mean, acting=True, **more)]}

    curves = in_context_curves(
        [
            played("runs/a", [0.1, 0.2], control=outcome([0.0, 0.1])),
            played("other/a", [0.3, 0.4]),
            played("runs/b", [0.5, 0.6]),
            played("runs/single", [0.7]),
        ]
    )
    assert list(curves) == ["0 a", "0 a, memory wiped", "1 a", "b"]
    assert curves["0 a, memory wiped"] == [[1.0, 2.0], [0.0, 0.1], [0.0, 0.0], [1.0, 1.0]]
    assert curves["b"][1] == [0.5, 0.6]


def test_settings_of_the_environment_and_the_memory_may_differ_from_training(run, tmp_path):
    status, report, _, _ = run(
        "run=runs/a-seed=0", "env.size=13", "env.time_limit=60", "context_length=2048"
    )
    assert status == 0
    assert "size=13" in report["run"][0]["task"]
    assert max(report["run"][0]["gammas"][0]["episodes"]["length"]) > 40
    assert not (tmp_path / "out/in_context.png").exists()


def test_an_agent_of_a_single_discount_factor_is_played_with_it(run):
    status, report, _, _ = run("run=runs/single", "gammas=all")
    assert status == 0
    (outcome,) = report["run"][0]["gammas"]
    assert (outcome["gamma"], outcome["acting"]) == (0.999, True)
    assert (
        run("run=runs/single", "gamma=0.999")[1]["run"][0]["gammas"][0]["episodes"]
        == outcome["episodes"]
    )
    status, _, _, err = run("run=runs/single", "gamma=0.9")
    assert status == 2
    assert "gamma: must be one of 0.999 in" in err
    assert "gamma_index: must be in -1..0, got 1" in run("run=runs/single", "gamma_index=1")[3]


def test_the_discount_factor_that_acts_is_chosen_by_value_or_place(run):
    def played(*arguments: str):
        return run("run=runs/trials", *arguments)[1]["run"][0]["gammas"]

    (chosen,) = played("gamma=0.9")
    assert [chosen] == played("gamma_index=1")
    assert chosen["gamma"] == 0.9
    assert chosen["episodes"] != played()[0]["episodes"]


def test_a_diagnosis_is_written_drawn_and_told_and_what_a_run_does_not_allow_has_a_reason(
    run, trained, tmp_path
):
    options = ["diagnose=all", "num_episodes=12", "max_steps=15"]
    status, report, out, _ = run("run=runs/b", "diagnose_twin=runs/twin", *options)
    assert status == 0
    found = report["run"][0]["diagnosis"]
    assert list(found) == ["recall", "wiped", "observable", "probes"]
    assert sum(found["recall"]["all"]["density"]) == pytest.approx(1.0)
    assert "several attempts" in found["wiped"]["left_out"]
    gap = found["observable"]["success"]
    assert gap["gap"]["mean"] == pytest.approx(gap["twin"] - gap["ours"])
    assert len(found["probes"]["context"]["r2"]) == len(found["probes"]["encoding"]["r2"]) == 15
    assert json.loads((trained / "runs/b/diagnosis.json").read_text()) == found
    for name in ("recall", "probes"):
        assert (tmp_path / f"out/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "share of the first timestep" in out
    found = run("run=runs/trials", "diagnose=all", "num_episodes=4")[1]["run"][0]["diagnosis"]
    assert len(found["wiped"]["wiped"]["trials"]["mean"]) > 1
    assert "Gym has none" in found["probes"]["left_out"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run=runs/b", "diagnose=[recal]"],
            r"diagnose: must be all or of recall, wiped, .* got 'recal",
        ),
        (
            ["run=runs/b", "diagnose=wiped"],
            r"diagnose=wiped: the environment must have several attempts",
        ),
        (
            ["run=runs/b", "diagnose=observable"],
            r"diagnose_twin: must name a run that was trained with env.obs",
        ),
        (
            ["run=runs/b", "diagnose_twin=runs/twin"],
            r"diagnose_twin: must .* diagnose=observable .*got 'runs/twin'",
        ),
        (
            ["run=runs/b", "diagnose=observable", "diagnose_twin=runs/trials"],
            r"diagnose_twin: .*with env=MazeRunner, trials=.not set., got .env=Gym, trials=",
        ),
    ],
)
def test_a_diagnosis_that_cannot_be_is_refused(run, arguments, message):
    status, _, _, err = run(*arguments)
    assert status == 2
    assert re.search(message, err), err


def test_several_runs_are_summed_up_and_compared(run):
    status, report, out, _ = run("run=[runs/a-seed=0,runs/b]", "against=[runs/b]")
    assert status == 0
    scores = [run["gammas"][0]["return_mean"] for run in report["run"]]
    told = report["aggregate"]["run"]
    assert told["num_runs"] == 2
    assert told["return"]["mean"]["value"] == pytest.approx(sum(scores) / 2)
    better = sum((a > scores[1]) + 0.5 * (a == scores[1]) for a in scores) / 2
    assert report["improvement"]["return"]["value"] == pytest.approx(better)
    assert "how likely" in out
    # Runs that score the same show no noise between trainings, and have no interval.
    assert (told["return"]["iqm"]["low"] is None) == (scores[0] == scores[1])
    assert report["aggregate"]["against"]["return"]["iqm"]["low"] is None
    assert report["improvement"]["return"]["low"] is None


def test_one_run_of_a_task_says_nothing_of_other_seeds(run):
    _, report, out, _ = run("run=[runs/a-seed=0]", "against=[runs/b]")
    told = [report["aggregate"][group]["return"]["iqm"] for group in ("run", "against")]
    told.append(report["improvement"]["return"])
    assert [(one["low"], one["high"]) for one in told] == [(None, None)] * 3
    assert report["improvement"]["return"]["value"] in (0.0, 0.5, 1.0)
    assert "(no interval)" in out.split("how likely")[1]
    assert "[-]" not in out


def test_what_can_be_known_before_is_refused_before_anything_is_played(run, monkeypatch):
    def played(*_, **__):
        raise AssertionError("something was played")

    monkeypatch.setattr("yamame.evaluation.held_out._play_round", played)
    for arguments, message in (
        (
            ["run=[runs/a-seed=0,runs/b,runs/trials]"],
            r"run: must .* as many runs .*, got \[2, 1\]",
        ),
        (["run=runs/b", "against=runs/trials"], r"against: must have the same tasks as run"),
        (
            ["run=[runs/b,runs/trials]", "attention=true"],
            r"runs/trials: attention: must .* GRUEncoder .*TransformerEncoder",
        ),
        (
            ["run=runs/b", "output=runs/b/config.yaml"],
            r"output: must be a directory, .*config.yaml is a file",
        ),
    ):
        status, report, _, err = run(*arguments)
        assert (status, report) == (2, None)
        assert re.search(message, err), err
    with pytest.raises(AssertionError, match="something was played"):
        run("run=runs/b")


def test_pictures_of_an_earlier_evaluation_do_not_stay_beside_another(run, tmp_path):
    (tmp_path / "out").mkdir()
    for name in (
        "attention.png",
        "attention-0.png",
        "attention-12.png",
        "in_context.png",
        "my-own.png",
    ):
        (tmp_path / "out" / name).write_text("of an earlier evaluation")
    assert run("run=runs/b", "attention=true")[0] == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"attention.png", "evaluation.json", "my-own.png"}
    assert (tmp_path / "out/attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run=runs/b", "greedy=off"], r"greedy: must be true or false or null, got 'off'"),
        (["run=runs/b", "control=off"], r"control: must be true or false, got 'off'"),
        (
            ["run=runs/b", "max_steps=abc"],
            r"max_steps: must be an integer of at least 1 or null, got 'abc'",
        ),
        (["run=runs/b", "gamma_index=0.5"], r"gamma_index: must be an integer or null, got 0.5"),
        (["run=runs/b", "confidence=abc"], r"confidence: must be a number.*, got 'abc'"),
        (["run=runs/b", "env=tmaze"], r"env: there are no choices here, only settings below it"),
        (["run=a0", "tracking_uri=foo://bar"], r"tracking_uri: must be a store .* got foo://bar"),
        (
            ["run=runs/none"],
            r"runs/none must be a run directory or a checkpoint, it does not exist",
        ),
        ([], r"run: must be given"),
        (["run=runs/b", "gammas=some"], r"gammas: must be .*'all' or null, got 'some'"),
        (["run=runs/b", "gamma=0.5"], r"gamma: must be one of 0.1, .* got 0.5"),
        (["run=runs/b", "gamma_index=7"], r"gamma_index: must be in -3..2, got 7"),
        (
            ["run=runs/b", "gamma=0.9", "gamma_index=1"],
            r"gamma_index: must be null with gamma=0.9, got 1",
        ),
        (["run=runs/b", "env.sise=9"], r"env.sise: must be an argument of"),
        (
            ["run=runs/b", "env.num_goals=3"],
            r"weights of runs/b must fit the environment: .*\[64, 12\]",
        ),
        (
            ["run=runs/b", "trials.num_trials=3"],
            r"trials: must be empty, for runs/b was trained without trials",
        ),
        (["run=runs/b", "num_episodes=0"], r"num_episodes: must be .*, got 0"),
        (["run=runs/b", "confidence=1"], r"confidence: must be .*, got 1"),
        (
            ["run=runs/trials", "context_length=9"],
            r"encoder.context_length: must be an argument of .*GRUEncoder",
        ),
        (["run=runs/b", "numepisodes=3"], r"numepisodes: no such key, did you mean num_episodes"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(run, tmp_path, arguments, message):
    status, report, _, err = run(*arguments)
    assert status == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert report is None
    assert not (tmp_path / "out").exists()
