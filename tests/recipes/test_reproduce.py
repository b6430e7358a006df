"""A published experiment in pieces: what is done stays, what was measured is written, mistakes
begin nothing.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yamame
from omegaconf import OmegaConf

GRU = ("encoder.hidden_size=16", "encoder.out_features=16", "encoder.num_layers=1")
SMALL = ("memory=gru", "edition=small", "num_tasks=6", "num_resamples=100")


def overrides(*texts: str) -> str:
    """Of every run: a small one without a tracker."""
    return f"overrides=[{','.join(('logger=none', 'evaluation.video_frames=1', *GRU, *texts))}]"


def test_all_seeds_are_trained_once_and_measured_on_the_tasks_that_are_named(play, tmp_path):
    call = ("rsm/dark_key_to_door", *SMALL, "seeds=[42,100]", overrides("env.time_limit=60"))
    status, out, errors = play("reproduce", tmp_path, *call)
    assert status == 0, errors
    assert "no verdict on edition=small" in out
    report = json.loads(
        (tmp_path / "runs/rsm_dark_key_to_door-gru-small/contract.json").read_text()
    )
    assert [len(tasks) for tasks in report["tasks"]] == [6, 6]
    assert report["contract"]["published"]["gru"][0] == 29.6
    assert report["cpu_s"] > 0
    assert {"student", "bootstrap"} <= report["ours"].keys()
    of_seeds = {sum(tasks) for tasks in report["tasks"]}
    of_tasks = {score for tasks in report["tasks"] for score in tasks}
    for name, values in (("student", of_seeds), ("bootstrap", of_tasks)):
        has_spread = len(values) > 1  # agents this small may all fail
        assert (report["ours"][name] is not None) == has_spread
        assert (re.search(f"^{name}", out, re.MULTILINE | re.IGNORECASE) is not None) == has_spread
        if has_spread:
            low, high = report["ours"][name]
            assert low <= report["ours"]["value"] <= high
            assert f"[{low:.3g}, {high:.3g}]" in out
    assert report["ours"]["seeds"] == pytest.approx([sum(tasks) / 6 for tasks in report["tasks"]])
    files = sorted((tmp_path / "runs/rsm_dark_key_to_door-gru-small-42/checkpoints").iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    assert play("reproduce", tmp_path, *call)[0] == 0
    assert [file.stat().st_mtime_ns for file in files] == times


def test_one_seed_has_no_interval_and_no_verdict_and_several_have(play, tmp_path):
    """The agents are tiny, so that all of the full edition takes seconds."""
    tiny = overrides("debug=tiny", "timestep_encoder.hidden_size=16", "env.time_limit=60")
    call = ("rsm/dark_key_to_door", "memory=gru", "num_tasks=6", "num_resamples=100", tiny)
    path = tmp_path / "runs/rsm_dark_key_to_door-gru-full/contract.json"
    status, out, errors = play("reproduce", tmp_path, *call, "seeds=[42]")
    assert status == 0, errors
    assert json.loads(path.read_text())["outcome"] is None
    assert "one seed" in out
    assert "Student" not in out
    assert "bootstrap" not in out

    assert play("reproduce", tmp_path, *call, "seeds=[42,100]")[0] == 0
    report = json.loads(path.read_text())
    student = report["ours"]["student"]  # None if both seeds have the same mean
    assert (report["outcome"], report["settled"]) == (
        "below",
        student is not None and student[1] < 28.6,
    )


def test_a_piece_ends_within_its_minutes_and_says_what_the_rest_takes(play, tmp_path):
    call = ("rsm/tmaze", *SMALL, "seeds=[42]", overrides("env.length=8", "evaluation.env.length=8"))
    status, out, _ = play("reproduce", tmp_path, *call, "minutes=0.0001")
    assert status == 75
    assert "rsm_tmaze-gru-small-42: " in out
    assert "the rest takes" in out
    assert not (tmp_path / "runs/rsm_tmaze-gru-small").exists()
    assert play("reproduce", tmp_path, *call)[0] == 0
    assert (tmp_path / "runs/rsm_tmaze-gru-small/contract.json").exists()


CPU = "overrides=[debug=tiny,logger=none,evaluation.video_frames=1,encoder.hidden_size=16]"


def test_the_edition_for_one_core_trains_the_default_agent_and_compares_with_a_threshold(
    play, tmp_path
):
    call = ("long_recall", "edition=cpu", CPU, "contract.env.length=300", "num_tasks=8")
    status, out, errors = play("reproduce", tmp_path, *call, "seeds=[3,4]")
    assert status == 0, errors
    report = json.loads(
        (tmp_path / "runs/long_recall_task-gru_rounded-cpu/contract.json").read_text()
    )
    assert (report["memory"], report["threshold"]) == ("gru_rounded", 1.0)
    assert report["reached"] == [mean >= 1.0 for mean in report["ours"]["seeds"]]
    assert (report["outcome"], report["settled"]) == (None, None)
    assert report["costs"]["3"]["updates"] == 2
    assert "threshold: success 1: not reached" in out
    assert "seed 4: " in out
    assert "published: not given" in out

    run = tmp_path / "runs/long_recall_task-gru_rounded-cpu-3"
    config = OmegaConf.load(run / "config.yaml")
    default = yamame.compose("env=tmaze")
    assert config.optimizer == default.optimizer
    assert config.schedule.regulator == default.schedule.regulator
    assert config.budget.cpu_s == 600
    # Corridors of the reported tasks are longer than any in training.
    assert max(config.env.length) == 128

    # Tasks are not played twice, unless others are asked for.
    kept = json.loads((run / "reported.json").read_text())
    kept["scores"] = [1.0] * 8
    (run / "reported.json").write_text(json.dumps(kept))
    status, out, _ = play("reproduce", tmp_path, *call, "seeds=[3]")
    assert status == 0
    assert "threshold: success 1: reached, from one seed" in out
    status, out, _ = play("reproduce", tmp_path, *call, "seeds=[3]", "first_task=9")
    assert "not reached, from one seed" in out


def test_a_piece_of_an_edition_with_a_clock_tells_the_rest_and_goes_on(play, tmp_path):
    tiny = "overrides=[debug=tiny,logger=none,budget.updates=null,evaluation.env.length=8]"
    call = ("rsm/tmaze", "edition=cpu", "memory=gru", "seeds=[0]", "num_tasks=4", tiny)
    call = (*call, "contract.cpu.cpu_s=3")
    status, out, _ = play("reproduce", tmp_path, *call, "minutes=0.02")
    assert status == 75
    assert "rsm_tmaze_task-gru-cpu-0: " in out
    assert "the rest takes" in out
    status, out, _ = play("reproduce", tmp_path, *call)
    assert status == 0
    report = json.loads((tmp_path / "runs/rsm_tmaze_task-gru-cpu/contract.json").read_text())
    assert report["cpu_s"] > 3


@pytest.mark.parametrize("name", ["rsm/tmaze", "rsm/countrecall", "rsm/dark_key_to_door"])
def test_both_editions_have_one_environment(name):
    contract = yamame.compose(f"reproduce={name}", recipe="reproduce").contract
    full = yamame.compose(f"experiment={contract.experiment}", "encoder=rsm")
    own = yamame.compose(f"experiment={contract.cpu.experiment}")
    assert own.env == full.env
    assert own.evaluation.env == full.evaluation.env
    assert own.relabel == full.relabel
    assert own.optimizer != full.optimizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["long_recall"], "edition: must be one of cpu, got 'full'"),
        (["rsm/mazerunner", "edition=cpu"], "edition: must be one of full, small, got 'cpu'"),
        (["rsm/tmaze", "edition=cpu", "memory=rsm_r"], "memory: must be one of deltanet, ffm, gru"),
        (["rsm/tmaze", "contract.cpu.cpu_s=0"], "contract.cpu.cpu_s: must be a number above 0"),
        (["rsm/tmaze", "+contract.cpu.cpus=0"], "contract.cpu.cpus: must be a setting"),
        (
            ["rsm/tmaze", "memory=lstm"],
            "memory: must be one of transformer, rsm, rsm_r, memo, gru, memoryless",
        ),
        (["rsm/tmaze", "edition=large"], "edition: must be one of full, small, cpu, got 'large'"),
        (["rsm/tmazes"], "reproduce=rsm/tmazes: no such choice, did you mean rsm/tmaze?"),
        (["rsm/tmaze", "minutes=0"], "minutes: must be a number above 0 or null, got 0"),
    ],
)
def test_a_mistake_begins_nothing(play, tmp_path, arguments, message):
    status, _, errors = play("reproduce", tmp_path, *arguments)
    assert status == 2
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_contract_must_be_named(tmp_path):
    program = Path(__file__).resolve().parents[2] / "recipes" / "reproduce.py"
    ended = subprocess.run(
        [sys.executable, str(program), "edition=small"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("reproduce: name the experiment first")
    assert ended.stderr.endswith(" rsm/tmaze\n")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["dark_key_to_door", "tmaze", "mazerunner", "countrecall"])
def test_a_contract_makes_the_updates_that_were_published(name):
    cfg = yamame.compose(f"reproduce=rsm/{name}", recipe="reproduce")
    run = yamame.compose(f"experiment={cfg.contract.experiment}", *cfg.memories.rsm)
    schedule, steps = run.schedule, run.budget.env_steps
    assert int((steps - schedule.learning_starts) * schedule.updates_per_step) == 127_872
    assert (steps, schedule.batch_size, run.optimizer.lr) == (8_000_000, 16, 1e-4)
    assert set(cfg.contract.published) == set(cfg.memories)
    assert run.schedule.autocast is None
    assert run.agent.loss.reward_multiplier == 100.0
