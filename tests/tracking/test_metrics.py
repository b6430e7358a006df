"""Every logged metric has exactly one description, and every description a metric."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch
import yamame
from yamame.collectors.throughput import Throughput
from yamame.evaluation import EvaluationResult
from yamame.tracking.costs import CostMeter, SystemMetrics
from yamame.tracking.metrics import METRICS, label_of, matching
from yamame.tracking.tracker import NullTracker

TINY = ("debug=tiny", "logger=none", "evaluation.max_steps=20", "evaluation.video_frames=1")
RUNS = {
    "goals, curriculum": (
        "train",
        "env=mazerunner",
        "env.time_limit=10",
        "curriculum=plr",
        "encoder.num_layers=1",
    ),
    "trials, bins, exponential cloning": (
        "train",
        "env=mazerunner",
        "env.time_limit=10",
        "relabel=none",
        "trials=repeated",
        "trials.num_trials=2",
        "encoder=gru",
        "agent=amago2",
        "agent.loss.cloning_filter=exponential",
        "agent.loss.online_coeff=1.0",
        "agent.critic.num_critics=2",
    ),
    "on-policy": ("ppo", "env=bandits", "encoder=gru", "+agent.loss.value_clip=0.1"),
}
PLACEHOLDERS = {"<gamma>": "0.99", "<i>": "0", "<k>": "2", "<name>": "loss", "<group>": "lr=1"}


def undescribed(names):
    """The names that have no description, or several."""
    return {name for name in names if len(matching(name)) != 1}


@pytest.mark.parametrize("kind", RUNS)
def test_what_runs_log_is_described(kind, tmp_path, monkeypatch):
    logged = set()
    monkeypatch.setattr(NullTracker, "log", lambda self, metrics, *, step: logged.update(metrics))
    recipe, *settings = RUNS[kind]
    yamame.train(*TINY, *settings, f"run.root={tmp_path}", recipe=recipe)
    assert {"train/loss", "eval/return_mean", "cost/cpu_s"} <= logged
    assert undescribed(logged) == set()
    # Negative control: what a custom loss logs has no description.
    assert undescribed({*logged, "train/loss_weights"}) == {"train/loss_weights"}


def test_what_evaluations_costs_actors_and_the_machine_report_is_described():
    values = torch.ones(4, dtype=torch.float64)
    result = EvaluationResult(
        values,
        torch.ones(4).long(),
        values.bool(),
        torch.ones(4, 2, dtype=torch.float64),
        success=values.bool(),
        num_goals=torch.tensor([1, 1, 2, 2]),
        tasks=torch.tensor([1, 1, 2, 2]),
    )
    names = {f"eval/{name}" for name in result.summary()}
    assert "eval/intervals_over_tasks" in names
    names |= {f"cost/{name}" for name in CostMeter().state_dict()}
    names |= {f"collector/{name}" for name in Throughput(2).metrics()}
    names |= set(SystemMetrics().sample())
    assert undescribed(names) == set()


def names_it(text, name):
    """Whether a string of the code is a name, or a part of an f-string that makes it."""
    if text == name:
        return True
    is_head = len(text) > 3 and text[-1] in "_/" and name.startswith(text)
    return is_head or (len(text) > 3 and text[0] == "_" and name.endswith(text))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_source_of_a_description_names_the_metric(metric):
    path = importlib.util.find_spec(metric.source).origin
    texts = [
        node.value
        for node in ast.walk(ast.parse(Path(path).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for name in metric.names:
        whole = name.partition("<")[0]
        forms = (whole, whole.partition("/")[2] or whole)
        assert any(names_it(text, form) for text in texts for form in forms), name


def test_no_two_descriptions_fit_one_name():
    for metric in METRICS:
        for name in metric.names:
            for placeholder, value in PLACEHOLDERS.items():
                name = name.replace(placeholder, value)
            assert matching(name) == [metric], name


def test_a_label_has_the_unit_and_an_unknown_metric_its_name():
    assert label_of("train/entropy") == "entropy of the policy, nats"
    assert label_of("train/my_term") == "my term"


def test_the_page_of_metrics_is_that_of_the_descriptions():
    path = Path(__file__).parents[2] / "tools" / "metrics_page.py"
    spec = importlib.util.spec_from_file_location("metrics_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run python tools/metrics_page.py"
    # Every description has its place on the page.
    assert all(f"`{name}`" in module.page() for metric in METRICS for name in metric.names)
