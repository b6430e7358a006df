"""Malformed command lines, drawn from the configurations of all recipes: each is answered with its
key and value, and writes nothing.

``MALFORMED_LINES`` in the environment says how many the slow test draws; a third of them may be
right, the others are not. A line may take ``LIMIT_S`` seconds until its work would begin.
"""

import importlib.util
import io
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.cli.app import main
from yamame.cli.arguments import verbatim_keys
from yamame.cli.front import check_command_line
from yamame.cli.nodes import plain
from yamame.cli.settings import CONFIGS
from yamame.collectors import SyncCollector
from yamame.deploy import Interface
from yamame.files.checkpoint import Checkpointer
from yamame.files.config import flatten
from yamame.losses.functional import bootstrapped_targets
from yamame.replay import TrajectoryReplayBuffer
from yamame.runs.build import build_agent, build_env
from yamame.runs.run import Run

RECIPES = Path(__file__).parents[2] / "recipes"
LIMIT_S = 60.0
"""Of a busy machine: most take a second."""
NUM_LINES = int(os.environ.get("MALFORMED_LINES", "750"))
SMALL = [
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "encoder.num_layers=1",
    "env.size=7",
    "env.split_by=walls_and_goals",
]
BASES = [
    ("train", ["debug=tiny"]),
    ("train", ["debug=tiny", "env=gym", "trials=repeated", "encoder=gru"]),
    ("train", ["debug=tiny", "agent=amago2", "env=tmaze", "exploration=epsilon_greedy"]),
    ("train", ["debug=tiny", "agent=separate", "encoder=linear_recurrent", "relabel=all"]),
    ("train", ["debug=tiny", "env=wind", "encoder=window", "exploration=gaussian"]),
    (
        "train",
        [
            "debug=tiny",
            "env=multi_domain",
            "encoder=lstm",
            f"collector={'ray' if find_spec('ray') else 'sync'}",
        ],
    ),
    ("ppo", ["debug=tiny"]),
    ("ppo", ["debug=tiny", "env=frozenlake", "encoder=memoryless"]),
    ("distill", ["debug=tiny"]),
    ("evaluate", ["run=trained"]),
    ("evaluate", ["run=trained", "against=trained"]),
    ("play", ["run=trained"]),
    ("report", []),
    ("export", ["run=trained", "path=new"]),
    ("serve", ["run=trained", "port=0"]),
    ("offline", ["data=runs", "data.path=trained/replay", "agent=bc", *SMALL]),
    ("sync", ["run=trained"]),
    ("replay_batch", ["bundle=trained/bundle"]),
    ("doctor", ["debug=tiny"]),
]
GROUPS = ("env", "encoder", "agent", "relabel", "optimizer", "logger", "timestep_encoder")
STRAY = "\x1b[2J\n"
CONTAINERS = ("{a:1}", "[{a:1}]", "[[1]]")
WRONG = {
    bool: ("no", "2", "0.5", "''", "[true]", "1e30", *CONTAINERS),
    int: (
        "abc",
        "1.5",
        "nan",
        "-inf",
        "inf",
        "1e30",
        str(10**20),
        str(-(10**20)),
        "true",
        "''",
        *CONTAINERS,
    ),
    float: ("abc", "nan", "[1.0]", "true", "''", "inf", *CONTAINERS),
    str: ("''", f'"a{STRAY}b"', "1.5", *CONTAINERS),
    list: ("{a:1}", "1.5", "''", f'["a{STRAY}"]', "[[{a:1}]]", "true", "null", "[nan]"),
    type(None): (f'"a{STRAY}b"', "[{a:1}]", "nan", "''"),
    dict: ("3", "abc", "null", "[1]", "''", "true"),
}
"""By the type of a default: what is none of its values, whatever the setting means."""
EDGE = ("-1", "0", "1", "-0.5", "1e30", "null", "[]", str(2**62), "abc", "cpu")
"""What some settings can be and others cannot."""
SYNTAX = ["={0}", "~=3", "{0}", "{0}==3", "{0}=[1", "{0}={{a:", "{0}='a", "{0}=1,2", "--{0}=3"]
SYNTAX += ["{0}=${{nothing}}", "@{0}=3", "{0}.a=3"]
"""What cannot be read."""
RANGES = ["range(0)", "range(3,0)", "range(0,3,0)", "range(0,1e9)", "range(0,nan)"]
RANGES += ["shuffle(range(0,10000000))"]
SWEEPS = [
    *(f"{{0}}={values}" for values in (*RANGES, "interval(0,1)", "range(a,b)")),
    "hydra.job.name=a,b",
]
SWEEPS += ["hydra.sweeper.params.{0}=1,2"]
"""Sweeps with no jobs, with too many, or that only a search can make."""
TARGETS = ("os.system", "3", "null", "''", "yamame.nowhere.Thing", "torch.hub.load", "[a]", "{a:1}")


class Accepted(SystemExit):
    """The recipe would begin to work. As a request to end the process, it is not reported."""


def begin_no_run(*_: Any, **__: Any) -> None:
    raise Accepted


@cache
def defaults(recipe: str, base: tuple[str, ...]) -> dict[str, Any]:
    """The keys of a recipe with their defaults, groups included."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = OmegaConf.to_container(compose(recipe, overrides=list(base)), resolve=False)
    below = [key.split(".") for key in flatten(config)]
    groups = {".".join(parts[:end]): {} for parts in below for end in range(1, len(parts))}
    return groups | flatten(config)


def draw(rng: random.Random, kind: str) -> tuple[str, list[str], str, str]:
    """A recipe, its arguments, the key among them that is wrong, and its value."""
    recipe, base = rng.choice(BASES)
    known = defaults(recipe, tuple(base))
    key = rng.choice([name for name in known if not name.endswith(("_recursive_", "_convert_"))])
    value = known[key]
    if kind in ("syntax", "sweep") and recipe not in ("doctor", "serve"):  # which sweep nothing
        texts = list(verbatim_keys(CONFIGS[recipe]))  # what is typed there needs no quotes
        numbers = [
            name for name in known if name not in texts and isinstance(known[name], int | float)
        ]
        key = rng.choice(numbers or ["seed"])
        text = rng.choice(SYNTAX if kind == "syntax" else SWEEPS).format(key)
        base = [*base, *(["-m"] if kind == "sweep" else [])]
        return recipe, [*base, text], text.lstrip("-").partition("=")[0], text.partition("=")[2]
    parent = rng.choice([name for name in known if isinstance(known[name], dict)] or [""])
    if kind == "edge":
        value = rng.choice(EDGE)
    elif kind == "unknown":
        plus = rng.choice(["", "+", "++"])
        key, value = f"{parent}.surprise".strip("."), rng.choice(["1", "abc", "{a:1}"])
        if recipe in ("evaluate", "play") and parent in ("env", "trials"):
            plus = ""
        return recipe, [*base, f"{plus}{key}={value}"], key, value
    elif kind == "choice":
        recipe, base = rng.choice(
            [entry for entry in BASES if entry[0] in ("train", "ppo", "distill")]
        )
        key, value = rng.choice(GROUPS[:5]), rng.choice(["nothing", "3", "null", "-1"])
        base = [text for text in base if not text.startswith(f"{key}=")]
        return recipe, [*base, f"{key}={value}"], key, value
    elif key.endswith("_target_"):
        value = rng.choice(TARGETS)
    elif key.endswith("_partial_"):
        value = rng.choice(["yes", "3", "null", "[1]"])
    else:
        kind = float if key.startswith("budget.") and isinstance(value, int) else type(value)
        value = rng.choice(WRONG[kind])
        if value in ("nan", "1.5") and key in verbatim_keys(CONFIGS[recipe]):
            # Texts need no quotes there.
            value = "''"
    base = [text for text in base if not text.startswith(f"{key}=")]
    return recipe, [*base, f"{key}={value}"], key, value


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a trained run, which command lines may name."""
    folder = tmp_path_factory.mktemp("place")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        # A run saves the numbers of its discount factors.
        cfg = compose("train", overrides=[*SMALL, "agent.gammas=[0.9,0.99]"])
    env = build_env(cfg, num_envs=1, seed=0)
    agent = build_agent(cfg, env)
    held = {"agent": agent, "interface": Interface.of(env).encode()}
    Checkpointer(folder / "trained/checkpoints", config=plain(cfg)).save(held, step=1, metric=1.0)
    with closing(build_env(cfg, num_envs=2, seed=0)) as env:
        bundle = {"agent": agent, "loss": {}, "update": {}}
        Checkpointer(folder / "trained/bundle", config=plain(cfg)).save(bundle, step=1)
        replay = TrajectoryReplayBuffer(folder / "trained/replay", capacity=1000, batch_size=4)
        SyncCollector(env, agent.policy(), replay).collect(200)
    return folder


def load(recipe: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{recipe}_recipe", RECIPES / f"{recipe}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def imported() -> None:
    """Imports all that recipes import: a module imported during a test would keep its replacements
    of functions.
    """
    for recipe in {recipe for recipe, _ in BASES}:
        load(recipe)


@pytest.fixture
def line(imported, place, monkeypatch) -> Callable[..., tuple[Any, str]]:
    """Runs a recipe until its work would begin: exit status (None: accepted), error output."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(Run, "begin", begin_no_run)
    for name in ("play_episode", "evaluate"):
        monkeypatch.setattr(f"yamame.evaluation.{name}", begin_no_run)
    monkeypatch.setattr("yamame.runs.playing.evaluate", begin_no_run)
    for name in ("report.RunReader.open", "tracking.send_rest", "doctor.machine.problems"):
        monkeypatch.setattr(f"yamame.{name}", begin_no_run)
    for name in ("save_pretrained", "export"):
        monkeypatch.setattr(f"yamame.deploy.DeployedAgent.{name}", begin_no_run)
    monkeypatch.setattr("yamame.deploy.mlflow_model.save_model", begin_no_run)
    monkeypatch.setattr("yamame.deploy.server.AgentServer.__init__", begin_no_run)

    def run(recipe: str, arguments: list[str]) -> tuple[Any, str]:
        module = load(recipe)
        monkeypatch.setattr(sys, "argv", [str(RECIPES / f"{recipe}.py"), *arguments])
        errors, status = io.StringIO(), 0
        task = {"evaluate": "score", "replay_batch": "replay"}.get(recipe, recipe)
        task = getattr(module, "train", None) or getattr(module, task)
        module.rebuild = begin_no_run  # the learner of a bundle
        try:
            with redirect_stderr(errors), redirect_stdout(io.StringIO()):
                check_command_line(recipe)
                main(task, config_name=recipe)
        except Accepted:
            status = None
        except SystemExit as exit_:
            status = exit_.code
        return status, errors.getvalue()

    return run


def told(value: str) -> Iterator[str]:
    """How a message may have a value."""
    bare = value.strip("'\"")
    yield from (
        bare,
        re.sub(r"[^\w.]+", "", bare),
        bare.replace("{a:1}", "{'a': 1}"),
        repr(bare)[1:-1],
    )
    yield from (bare.replace("{a:1}", "'{a:1}'"), repr(bare)[1:-1].replace('"', "'"))
    if re.fullmatch(r"-?[\d.]+(e\d+)?", bare):
        yield from (str(float(bare)), f"{float(bare):g}", str(int(float(bare))))
    if bare == "":
        yield "''"


def faults(status: Any, errors: str, key: str, value: str, *, may_be_accepted: bool) -> list[str]:
    """What is wrong with the answer to a malformed line."""
    if status is None:
        return [] if may_be_accepted else ["accepted"]
    wrong = [] if status == 2 else [f"status {status}"]
    # One for each key, for a value may reach others by interpolation.
    lines = errors.splitlines()
    are_lines = bool(lines) and all(re.match(r"\w+: [^ ]", text) for text in lines)
    wrong += [] if are_lines else [f"{len(lines)} lines"]
    wrong += [] if key.rpartition(".")[2] in errors else ["no key"]
    # A mapping may be told by its entries.
    is_told = value == "{a:1}" and re.search(rf"{re.escape(key)}\.a: .*\b1\b", errors)
    is_told = is_told or any(text in errors for text in told(value))
    return wrong + ([] if is_told else ["no value"])


def answers(line: Callable, place: Path, num: int, seed: int) -> list[str]:
    """What is wrong with the answers to so many lines; every third of them may be right."""
    rng, wrong = random.Random(seed), []
    kinds = ("wrong", "edge", "syntax", "unknown", "wrong", "edge", "sweep", "choice", "edge")
    for number in range(num):
        kind = kinds[number % len(kinds)]
        recipe, arguments, key, value = draw(rng, kind)
        began = time.monotonic()
        status, errors = line(recipe, arguments)
        took = time.monotonic() - began
        found = faults(status, errors, key, value, may_be_accepted=kind == "edge")
        found += [f"took {took:.0f} s"] if took > LIMIT_S else []
        found += [f"wrote {path.name}" for path in place.iterdir() if path.name != "trained"]
        wrong += [f"{recipe} {arguments}: {found}: {errors}"] if found else []
    return wrong


@pytest.mark.timeout(60)
def test_a_malformed_line_is_answered_with_key_and_value_and_writes_nothing(line, place):
    assert answers(line, place, num=9, seed=20) == []


@pytest.mark.parametrize("recipe", sorted({recipe for recipe, _ in BASES}))
def test_before_they_are_spoilt_lines_are_accepted(line, recipe):
    assert line(recipe, dict(BASES)[recipe]) == (None, "")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_so_are_hundreds_of_them(line, place):
    wrong = answers(line, place, num=NUM_LINES, seed=0)
    assert not wrong, "\n".join(wrong)


HUGE = 10**20
REPORTED = [
    ("ppo", ["debug=tiny", "+callbacks.surprise=abc"]),
    ("play", ["run=trained", "trust=[[{a:1}]]"]),
    ("ppo", ["debug=tiny", 'trust=["a\x1b[2J\n"]']),
    ("train", ["agent.critic=null"]),
    ("train", ["env=gym", "env.workers={a:1}"]),
    ("train", ["env=gym", "workers.timeout=1e30"]),
    ("train", [f"encoder.num_layers={2**62}"]),
    ("train", ["env=gym", "workers.num_processes=1e20"]),
    ("train", [f"agent.loss.n_step={HUGE}"]),
    ("train", ["agent.gammas=[]"]),
    ("train", ["+foo=1"]),
    ("train", ["encoder=gru", "context_length=0"]),
    ("train", ['logger.tracking_uri="a\nb"']),
    ("distill", ["env.size=99999999999"]),
    ("evaluate", ["run=trained", "against=-1"]),
    ("play", ["run=trained", "output={a:1}"]),
    ("play", ["run=trained", 'tracking_uri="a\nb"']),
    ("report", ['directory="a\nb"']),
    ("report", ["resampling.num_resamples=999999999999"]),
    ("train", ["=3"]),
    ("train", ["device=meta"]),
    ("train", ["agent.gammas.a=3"]),
    ("train", ["-m", "seed=range(0)"]),
    ("train", ["-m", "seed=range(0,100000000)"]),
    ("train", ["-m", "hydra.sweeper.params.seed=1,2"]),
    ("sync", ["run=[]"]),
    ("report", ["tables=1"]),
    ("sync", ["run=trained", "++surprise={a:1}"]),
]


@pytest.mark.parametrize(("recipe", "arguments"), REPORTED, ids=lambda value: str(value))
def test_lines_that_were_answered_badly_are_answered_well(line, place, recipe, arguments):
    key, _, value = arguments[-1].lstrip("+").partition("=")
    status, errors = line(recipe, arguments)
    assert faults(status, errors, key, value, may_be_accepted=False) == []
    assert [path.name for path in place.iterdir()] == ["trained"]


FORGED = {
    "timestep_encoder": {"_target_": "torch.utils.collect_env.run", "command": "touch MARK"},
    "env": {
        "_target_": "yamame_envs.Gym",
        "settings": {"x": [{"_target_": "os.system", "command": "touch MARK"}]},
    },
    "encoder": {"_target_": "yamame.cli.app.os.system", "command": "touch MARK"},
    "logger": {"_target_": "subprocess.run", "args": "touch MARK", "shell": True},
}


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("evaluate", "timestep_encoder"),
        ("play", "env"),
        ("evaluate", "encoder"),
        ("play", "logger"),
    ],
)
def test_a_strangers_file_is_one_line_and_runs_nothing(line, place, tmp_path, recipe, key):
    (honest,) = (place / "trained/checkpoints").glob("*.pt")
    payload = torch.load(honest, weights_only=True)
    assert line(recipe, [f"run={honest}"])[0] is None
    payload["config"][key] = FORGED[key]
    torch.save(payload, tmp_path / "forged.pt")
    status, errors = line(recipe, [f"run={tmp_path / 'forged.pt'}"])
    assert (status, errors.count("\n")) == (2, 1)
    for text in (f"{recipe}: run=", "forged.pt: ", f"{key}.", "_target_: must be", "got '"):
        assert text in errors
    assert [path.name for path in place.iterdir()] == ["trained"]


def test_no_module_keeps_the_functions_that_these_tests_replace(line, monkeypatch):
    for recipe, arguments in BASES:
        if recipe in ("evaluate", "play", "report", "export", "serve", "sync"):
            line(recipe, arguments)
    monkeypatch.undo()
    ours = {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] == "yamame"
    }
    kept = [name for name, module in ours.items() if begin_no_run in vars(module).values()]
    assert kept == []


def test_targets_of_many_steps_take_no_longer_than_the_batch_is_long():
    zeros = torch.zeros(1, 3)
    given = {"gammas": torch.tensor([0.9]), "valid": torch.ones(1, 3, dtype=torch.bool)}
    targets = [
        bootstrapped_targets(zeros + 1, zeros.bool(), zeros.unsqueeze(-1), n_step=steps, **given)
        for steps in (2, 3, 2**62)
    ]
    assert torch.equal(targets[1], targets[2])
    assert not torch.equal(targets[0], targets[1])
