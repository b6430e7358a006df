"""Recipes from Python: the same as from the command line, with values given back."""

import asyncio
import json
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yamame
from hydra.core.hydra_config import HydraConfig
from yamame.checks import UsageError

TINY = ("debug=tiny", "env=tmaze", "env.length=8", "encoder=gru", "logger=none")
NAME = "tmaze-gru-debug=tiny-env.length=8-seed=0"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def typed(play, tmp_path_factory):
    """A folder with what the command line trains."""
    folder = tmp_path_factory.mktemp("typed")
    status, _, errors = play("train", folder, *TINY)
    assert status == 0, errors
    return folder


def test_it_trains_what_the_command_line_trains(components, differing, typed):
    run = yamame.train(*TINY)
    other = typed / run.path
    assert run.name == NAME
    assert (other / "config.yaml").read_text() == (run.path / "config.yaml").read_text()
    assert differing(components(run.path), components(other)) == []
    assert run.objective == run.progress.curve[-1]["success_mean"]
    assert run.summary["status"] == "FINISHED"
    assert run.checkpoints.best.is_file()


def test_a_loop_is_a_sweep_and_what_is_done_is_given_back(typed):
    shutil.copytree(typed / "runs", "runs")
    runs = [yamame.train(*TINY, f"seed={seed}", "resume=auto") for seed in (0, 1, 0)]
    assert [run.name[-6:] for run in runs] == ["seed=0", "seed=1", "seed=0"]
    done = json.loads((typed / "runs" / NAME / "summary.json").read_text())
    assert runs[0].summary == runs[2].summary == done
    assert runs[0].objective == runs[2].objective == done["success"]


DISTILL = ("env.time_limit=20", "source.horizon=40", "source.subsample=2", "encoder.d_model=16")


@pytest.mark.parametrize(
    ("recipe", "settings"), [("ppo", ["env.time_limit=9"]), ("distill", DISTILL)]
)
def test_other_recipes_train_too(recipe, settings):
    run = yamame.train("debug=tiny", "logger=none", *settings, recipe=recipe)
    assert run.name.startswith(recipe)
    assert run.progress.updates > 0


def test_a_run_is_evaluated_and_reported(empty_store):
    shutil.copy(empty_store, ".")
    short = (
        "env=bandits",
        "env.time_limit=9",
        "logger.models=false",
        "logger.system_metrics=false",
    )
    run = yamame.train("debug=tiny", "encoder=gru", *short)
    report = yamame.evaluate(f"run={run.path}", "num_episodes=4", "control=true")
    assert report["run"][0]["source"] == str(run.path)
    assert isinstance(report["score"], float)
    page = yamame.make_report("directory=page", "resampling.num_resamples=50")
    assert run.name in page.read_text()


def test_a_configuration_is_composed_from_a_folder_of_ones_own(tmp_path):
    (tmp_path / "conf" / "encoder").mkdir(parents=True)
    own = "_target_: yamame.trajectory.GRUEncoder\nhidden_size: 7\n"
    (tmp_path / "conf" / "encoder" / "mine.yaml").write_text(own)
    cfg = yamame.compose("encoder=mine", config_dir="conf")
    assert cfg.encoder.hidden_size == 7
    assert "hydra" not in cfg
    assert yamame.compose("run='runs/a=b'", recipe="evaluate").run == "runs/a=b"


@pytest.mark.parametrize(
    ("overrides", "recipe", "message"),
    [
        (["env=tmze"], "train", "env=tmze: no such choice, did you mean tmaze"),
        (["enc=gru"], "train", "enc: no such key, did you mean"),
        (["ablation=no_memory"], "train", r"did you mean \+ablation=no_memory\?"),
        (["seed=-1"], "train", "seed: must be an integer of at least 0"),
        (["--help"], "train", "must be texts as 'encoder=gru', got '--help'"),
        ([3], "train", "must be texts as 'encoder=gru', got 3"),
        (["env.length=0"], "train", "length"),
        ([], "trian", "recipe: must be one of distill, .* got 'trian'"),
        (["encoder=gru,lstm"], "train", "encoder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(overrides, recipe, message, tmp_path):
    former = HydraConfig.instance().cfg
    with pytest.raises(UsageError, match=message) as caught:
        yamame.train(*overrides, *(["logger=none"] if recipe == "train" else []), recipe=recipe)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert HydraConfig.instance().cfg is former


def test_within_a_program_of_hydra_everything_stays_its_own(tmp_path, monkeypatch, capsys):
    program = tmp_path / "theirs.py"
    program.write_text(
        "import hydra\nfrom hydra.core.hydra_config import HydraConfig\nimport yamame\n"
        "@hydra.main(version_base='1.3', config_path=None)\n"
        "def main(cfg):\n"
        f"    run = yamame.train(*{TINY!r})\n"
        "    print(HydraConfig.get().job.name, run.name, 'main')\n"
        "main()\n"
    )
    silent = [
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
    ]  # which would stay in this process
    monkeypatch.setattr(sys, "argv", [str(program), *silent])
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == f"theirs {NAME} main"


def test_it_trains_within_an_event_loop_as_of_a_notebook():
    async def cell():
        return yamame.train(*TINY)

    assert asyncio.run(cell()).summary["status"] == "FINISHED"


def test_threads_wait_for_each_other_and_leave_the_callers_random_numbers(components, typed):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with ThreadPoolExecutor(2) as pool:  # as a tuner has
        runs = list(pool.map(lambda n: yamame.train(*TINY, f"run.name=thread-{n}"), range(2)))
    assert torch.equal(torch.rand(3), expected)
    assert [run.summary["status"] for run in runs] == ["FINISHED"] * 2
    alone = components(typed / "runs" / NAME)["agent"]
    for run in runs:
        other = components(run.path)["agent"]
        assert all(torch.equal(value, other[key]) for key, value in alone.items())


def test_a_study_of_optuna_calls_it_and_learns_of_every_evaluation():
    optuna = pytest.importorskip("optuna", reason="needs Optuna: pip install optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    class Report(yamame.Callback):
        def __init__(self, trial):
            self.trial = trial

        def on_evaluate(self, run, result):
            self.trial.report(result.summary()["return_mean"], run.progress.step)
            if self.trial.should_prune():
                run.stop("pruned")

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-4, 1e-3, log=True)
        own = (f"optimizer.lr={lr}", f"run.name=trial-{trial.number}")
        return yamame.train(*TINY, *own, callbacks=[Report(trial)]).objective

    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert all(trial.intermediate_values for trial in study.trials)


def test_importing_the_package_loads_nothing():
    program = (
        "import sys, yamame; print([m for m in ('torch', 'hydra', 'mlflow') if m in "
        "sys.modules], dir(yamame))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("[] ")
    assert "'train'" in done.stdout
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        yamame.tarin  # noqa: B018


def test_recipes_stand_beside_the_yaml_files():
    assert yamame.recipes_dir() == Path(yamame.conf_dir()).parent / "recipes"


@pytest.mark.parametrize(("before", "asked"), [("highest", "high"), ("high", "highest")])
def test_float32_products_have_the_precision_that_is_asked_for(before, asked):
    class Look(yamame.Callback):
        def on_begin(self, run):
            raise RuntimeError(torch.get_float32_matmul_precision())

    torch.set_float32_matmul_precision(before)
    try:
        with pytest.raises(RuntimeError, match=f"^{asked}$"):
            yamame.train(*TINY, f"float32_matmul_precision={asked}", callbacks=[Look()])
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_cpu_is_the_default_and_changes_nothing():
    cpu = yamame.compose()
    assert cpu == yamame.compose("hardware=cpu") == yamame.compose("~hardware")
    assert cpu != yamame.compose("hardware=gpu")


def test_hardware_gives_way_to_what_is_written_behind_it():
    cfg = yamame.compose("experiment=dark_key_to_door", "hardware=gpu", "schedule.num_envs=64")
    assert (cfg.device, cfg.schedule.num_envs, cfg.collector.cuda_graph) == ("cuda", 64, True)
