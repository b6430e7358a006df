"""A stranger's checkpoint runs nothing: every exploit is refused in one line, and none leaves its
mark.
"""

import contextlib
import copy
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.cli.nodes import plain, targets
from yamame.files.checkpoint import Checkpointer
from yamame.files.trusted import KINDS, is_of_kind, without_foreign_weights
from yamame.runs.build import build_agent, build_env
from yamame.runs.trained import load_trained

SMALL = [
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "encoder.num_layers=1",
    "env.size=7",
    "env.split_by=walls_and_goals",
]
TOUCH = "open('MARK', 'w').close()"
SHELL = "touch MARK"


def node(target, **arguments):
    return {"_target_": target, **arguments}


CALLS = {
    **{
        target: {"command": SHELL}
        for target in (
            "torch.utils.collect_env.run",
            "os.system",
            "os.popen",
            "yamame.cli.app.os.system",
        )
    },
    **{
        f"subprocess.{name}": {"args": SHELL, "shell": True}
        for name in ("run", "Popen", "call", "check_output")
    },
    "yamame.cli.app.subprocess.run": {"args": SHELL, "shell": True},
    "asyncio.create_subprocess_shell": {"cmd": SHELL},
    "pty.spawn": {"argv": ["touch", "MARK"]},
    "os.spawnlp": {"mode": 0, "file": "touch"},
    "functools.partial": {"_args_": [node("os.system", _partial_=True), SHELL]},
    "builtins.exec": {"_args_": [TOUCH]},
    "builtins.eval": {"_args_": [TOUCH]},
    "builtins.open": {"file": "MARK", "mode": "w"},
    "builtins.__import__": {"name": "evil_module"},
    "timeit.timeit": {"stmt": TOUCH, "number": 1},
    "cProfile.run": {"statement": TOUCH},
    "code.interact": {"local": {"x": 1}},
    "webbrowser.open": {"url": "file:///MARK"},
    "importlib.import_module": {"name": "evil_module"},
    "pkgutil.resolve_name": {"name": "evil_module:x"},
    "pydoc.locate": {"path": "evil_module.x"},
    "hydra.utils.get_class": {"path": "evil_module.Evil"},
    "hydra.utils.instantiate": {"config": node("os.system", command=SHELL)},
    "yamame.cli.nodes.instantiate": {"node": node("os.system", command=SHELL)},
    "yamame.files.trusted.resolve_name": {"name": "evil_module:x"},
    "yamame_envs.adapters.registered.find": {"id": "evil_module:x"},
    "yamame_envs.adapters.registered.import_module": {"name": "evil_module"},
    "yamame_envs.adapters.extras.import_extra": {
        "module": "evil_module",
        "extra": "a",
        "owner": "b",
    },
    "evil_module.Evil": {},
    "gymnasium.make": {"id": "evil_module:x"},
    "torchrl.envs.GymEnv": {"env_name": "evil_module:x"},
    "runpy.run_path": {"path_name": "evil_module.py"},
    "runpy.run_module": {"mod_name": "evil_module"},
    "pickle.loads": {"data": "cos\nsystem\n(S'touch MARK'\ntR."},
    "numpy.load": {"file": "evil.pkl", "allow_pickle": True},
    "joblib.load": {"filename": "evil.pkl"},
    "pandas.read_pickle": {"filepath_or_buffer": "evil.pkl"},
    "torch.load": {"f": "evil.pkl", "weights_only": False},
    "torch.serialization.load": {"f": "evil.pkl", "weights_only": False},
    "torch.nn.modules.module.torch.load": {"f": "evil.pkl", "weights_only": False},
    "torch.hub.load": {"repo_or_dir": ".", "model": "evil", "source": "local"},
    "torch.jit.load": {"f": "evil.pkl"},
    "torch.package.PackageImporter": {"file_or_buffer": "evil.pkl"},
    "torch.ops.load_library": {"path": "./evil.so"},
    "torch.classes.load_library": {"path": "./evil.so"},
    "torch.utils.cpp_extension.load": {"name": "evil", "sources": ["evil.cpp"]},
    "torch.utils.cpp_extension.load_inline": {"name": "evil", "cpp_sources": "int x;"},
    "torch.multiprocessing.spawn": {"fn": node("os.system", _partial_=True), "args": [SHELL]},
    "torch.optim.optimizer.functools.partial": {
        "_args_": [node("os.system", _partial_=True), SHELL]
    },
    # In two parts, for tests/test_house.py takes a file with this word for one that loads C.
    "cty" + "pes.CDLL": {"name": "./evil.so"},
    "site.addsitedir": {"sitedir": "."},
    "logging.config.dictConfig": {"config": {"version": 1}},
    "shutil.rmtree": {"path": "VICTIM"},
    "yamame.files.run_directory.shutil.rmtree": {"path": "VICTIM"},
    "yamame.files.run_directory._clear": {"path": "VICTIM"},
    "yamame.replay.TrajectoryReplayBuffer": {"path": "VICTIM", "capacity": 9, "batch_size": 1},
    "yamame.tracking.MLflowTracker": {"tracking_uri": "sqlite:///MARK"},
    "mlflow.pyfunc.load_model": {"model_uri": "file:."},
    "omegaconf.OmegaConf.load": {"file_": "MARK"},
}
PLACES = ("encoder", "timestep_encoder", "agent.critic", "env", "trials", "logger")
"""Where calls stand, one after the other; all of them are tried at the first one."""
NESTED = {
    "env.settings.deep.x": "env.settings.deep.x",
    "env.kwargs.x": "env.kwargs.x",
    "evaluation.env.workers": "evaluation.env.workers",
    "encoder._args_": "encoder._args_",
    "agent.parts.0.1.x": "agent.parts",
    "hydra.callbacks.evil": "hydra.callbacks.evil",
    "hydra.launcher": "hydra.launcher",
    "surprise.a.b.c": "surprise.a.b.c",
    "relabel.frequencies": "relabel.frequencies",
}
"""Where a call stands deeper inside: the key that a message begins with, or ends in, and what is
set.
"""
VALUES = {
    "a module before an id": ("env", node("yamame_envs.Gym", id="evil_module:Evil-v0"), "env.id"),
    "a module in a package": ("env", node("yamame_envs.Gym", id="a.b.evil_module:E"), "env.id"),
    "two colons": ("env", node("yamame_envs.Gym", id="popgym:evil_module:E"), "env.id"),
    "among ids": (
        "env",
        node("yamame_envs.MultiDomain", ids=["CartPole-v1", "evil_module:E"]),
        "env.ids.1",
    ),
    "an id of held-out tasks": ("evaluation.env", {"id": "evil_module:E"}, "evaluation.env.id"),
    "an id in settings": (
        "env",
        node("yamame_envs.Gym", settings={"env_id": "evil_module:E"}),
        "env.settings.env_id",
    ),
    "an interpolation": ("encoder.dropout", "${oc.env:HOME}", "encoder.dropout"),
    "a made node": (
        "encoder.ff",
        "${oc.create:{_target_:os.system,command:touch MARK}}",
        "encoder.ff",
    ),
    "a name by interpolation": ("encoder._target_", "${name}", "encoder._target_"),
    "an interpolated key": ("encoder", {"${a}": 1}, "encoder.${a}"),
    "no name": ("encoder._target_", None, "encoder._target_"),
    "a list as a name": ("encoder._target_", ["os.system"], "encoder._target_"),
    "a node as a name": ("encoder._target_", node("os.system"), "encoder._target_"),
    "a name with a colon": ("encoder._target_", "yamame.trajectory:GRUEncoder", "encoder._target_"),
    "a hidden name": (
        "encoder._target_",
        "yamame.trajectory.GRUEncoder.__init__.__globals__",
        "encoder",
    ),
    "ours elsewhere": ("encoder._target_", "yamame_envs.Gym", "encoder._target_"),
    "conversion": ("encoder._convert_", "object", "encoder._convert_"),
    "recursion": ("encoder._recursive_", False, "encoder._recursive_"),
    "a partial that is none": ("agent.critic._partial_", "yes", "agent.critic._partial_"),
    "bytes": ("encoder.data", pickle.dumps(1), "encoder.data"),
    "a tuple": ("encoder.data", (node("os.system", command=SHELL),), "encoder.data"),
    "a tensor": ("encoder.data", torch.zeros(1), "encoder.data"),
}


class Evil:
    """What a pickle does when it is read."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return exec, (f"open({str(self.mark)!r}, 'w').close()",)


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """What a small honest checkpoint holds."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=SMALL)
    folder = tmp_path_factory.mktemp("honest")
    agent = build_agent(cfg, build_env(cfg, num_envs=1, seed=0))
    path = Checkpointer(folder, config=plain(cfg)).save({"agent": agent}, step=1, metric=1.0)
    return torch.load(path, weights_only=True)


@pytest.fixture
def unharmed(tmp_path, monkeypatch):
    """Works in a folder with what exploits need; tells whether one has succeeded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.input", lambda *_: (_ for _ in ()).throw(EOFError))
    (tmp_path / "VICTIM").mkdir()
    (tmp_path / "VICTIM" / "thesis.tex").write_text("ten years")
    for name in ("evil_module.py", "hubconf.py"):
        (tmp_path / name).write_text(f"{TOUCH}\nx = print\nclass Evil: pass\ndef evil(): pass\n")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "MARK")))
    yield (
        lambda: (
            not Path("MARK").exists() and [*Path("VICTIM").glob("*")] == [Path("VICTIM/thesis.tex")]
        )
    )
    sys.modules.pop("evil_module", None)


def set_in(config: dict, key: str, value: object) -> None:
    *parents, last = key.split(".")
    for name in parents:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    config[last] = value


def forged(payload: dict, key: str, value: object, path: str = "forged.pt") -> str:
    """A checkpoint file that is honest but for one key."""
    changed = {**payload, "config": copy.deepcopy(payload["config"])}
    set_in(changed["config"], key, value)
    torch.save(changed, path)
    return path


def used(source: object, **options: object) -> None:
    """Everything that evaluation and play do with a run before they play."""
    trained = load_trained(source, **options)
    trained.build_agent(trained.build_env(num_envs=1, seed=0))


def refused(source: object, *words: str, **options: object) -> None:
    with pytest.raises(UsageError) as caught:
        used(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


def test_an_honest_checkpoint_is_used(payload, unharmed):
    used(forged(payload, "seed", 0))
    assert unharmed()


@pytest.mark.parametrize("target", CALLS)
def test_a_call_is_refused_by_its_key_and_name_and_not_made(payload, unharmed, target):
    places = {PLACES[0], PLACES[list(CALLS).index(target) % len(PLACES)]}
    if target == "yamame.tracking.MLflowTracker":
        places.discard("logger")  # where it belongs, and is not built
    for place in places:
        refused(
            forged(payload, place, node(target, **CALLS[target])), f"{place}._target_", repr(target)
        )
        assert unharmed()


@pytest.mark.parametrize("place", NESTED)
def test_a_call_is_found_wherever_it_stands(payload, unharmed, place):
    call = node("torch.utils.collect_env.run", command=SHELL)
    value = {"agent.parts.0.1.x": [[1, {"x": call}]], "encoder._args_": [call]}.get(place, call)
    refused(forged(payload, NESTED[place], value), f"{NESTED[place]}", "collect_env.run")
    assert unharmed()


@pytest.mark.parametrize("name", VALUES)
def test_what_names_or_makes_something_indirectly_is_refused_by_its_key(payload, unharmed, name):
    key, value, told = VALUES[name]
    refused(forged(payload, key, value), told)
    assert unharmed()


def test_a_file_cannot_trust_itself(payload, unharmed):
    payload = {**payload, "config": {**payload["config"], "trust": ["evil_module.", "os."]}}
    refused(
        forged(payload, "encoder", node("evil_module.Evil")),
        "encoder._target_",
        "'evil_module.Evil'",
    )
    refused(forged(payload, "env", node("yamame_envs.Gym", id="evil_module:E")), "env.id")
    assert unharmed()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_pickles_are_not_read(payload, unharmed):
    for value in (Evil(Path("MARK").absolute()), [{"x": Evil(Path("MARK").absolute())}]):
        refused(forged(payload, "encoder.x", value), "forged.pt must be a checkpoint")
    refused("evil.pkl", "evil.pkl must be a checkpoint")
    torch.jit.script(torch.nn.Linear(1, 1)).save("script.pt")
    refused("script.pt", "script.pt must be a checkpoint")
    assert unharmed()


def test_nesting_without_end_is_refused(payload, unharmed):
    deep: dict = {}
    for _ in range(200):
        deep = {"a": deep}
    refused(forged(payload, "surprise", deep), "surprise.a.a", "levels deep")


def test_a_run_directory_and_an_artifact_are_checked_like_a_file(
    payload, unharmed, start, tracking_uri
):
    folder = Path("runs/forged/checkpoints")
    folder.mkdir(parents=True)
    call = node("torch.utils.collect_env.run", command=SHELL)
    file = forged(payload, "timestep_encoder", call, str(folder / "step-000000000001.pt"))
    words = ("timestep_encoder._target_", "'torch.utils.collect_env.run'")
    refused("runs/forged", *words, checkpoint="last")
    with start() as tracker:
        tracker.log_artifact(Path(file), folder="checkpoints")
        run_id = tracker.run.run_id
    refused(run_id, *words, tracking_uri=tracking_uri)
    assert unharmed()


def do(target: str) -> None:
    """What an exploit would do, were it built."""
    arguments = dict(CALLS[target])
    positional = arguments.pop("_args_", [])
    resolve_name(target)(*positional, **arguments)


EFFECTIVE = """
    torch.utils.collect_env.run os.system subprocess.run builtins.exec timeit.timeit runpy.run_path
    torch.load importlib.import_module pkgutil.resolve_name yamame.files.trusted.resolve_name
    yamame_envs.adapters.registered.find
    torch.hub.load shutil.rmtree yamame.files.run_directory.shutil.rmtree
"""


@pytest.mark.parametrize("attack", EFFECTIVE.split())
def test_the_exploits_leave_their_mark_where_nothing_stops_them(unharmed, attack):
    importlib.invalidate_caches()
    assert unharmed()
    with contextlib.suppress(Exception):  # some fail once the harm is done
        do(attack)
    assert not unharmed()


def test_a_package_that_the_command_line_trusts_may_be_named_and_only_what_is_in_it(
    payload, unharmed, own_module
):
    own_module(
        "mylab",
        "import os\nfrom yamame.trajectory import TransformerEncoder\nclass "
        "Encoder(TransformerEncoder): pass\n",
    )
    encoder = payload["config"]["encoder"] | {"_target_": "mylab.Encoder"}
    refused(forged(payload, "encoder", encoder), "encoder._target_", "'mylab.Encoder'")
    used(forged(payload, "encoder", encoder), trust=["mylab."])
    refused(
        forged(payload, "encoder", node("mylab.os.system")), "mylab.os.system", trust=["mylab."]
    )
    refused(forged(payload, "encoder", node("mylabs.Encoder")), "mylabs.Encoder", trust=["mylab"])
    for wrong in ("", ".", "*", 3, "my lab"):
        refused(forged(payload, "encoder", encoder), "trust: must be", trust=[wrong])


@pytest.mark.parametrize(
    "target", ["this", "evil_module", "evil_module:Evil", "yamame_envs.base:partial", "os:system"]
)
def test_settings_of_an_environment_import_no_module(payload, unharmed, target, capsys):
    config = payload["config"]["env"] | {
        "_target_": "yamame_envs.Gym",
        "id": "yamame/MazeRunner-v0",
    }
    settings = {"settings": {"target": target}, "time_limit": "registered"}
    env = {key: config[key] for key in ("_target_", "id")} | settings
    refused(forged(payload, "env", env))
    assert unharmed()
    assert "this" not in sys.modules
    assert "evil_module" not in sys.modules
    assert capsys.readouterr().out == ""


def test_weights_that_are_not_finite_are_refused(payload, tmp_path):
    weights = payload["components"]["agent"]
    name = next(name for name, value in weights.items() if value.is_floating_point())
    weights = weights | {name: torch.full_like(weights[name], torch.nan)}
    torch.save(
        payload | {"components": payload["components"] | {"agent": weights}}, tmp_path / "nan.pt"
    )
    trained = load_trained(tmp_path / "nan.pt")
    with pytest.raises(UsageError, match=f"weights of .*nan.pt must be finite, {name} is not"):
        trained.build_agent(trained.build_env(num_envs=1, seed=0))


def named_in_yaml() -> set[str]:
    lines = [line for path in conf_dir().rglob("*.yaml") for line in path.read_text().splitlines()]
    return {line.split("_target_:")[1].strip(" }") for line in lines if "_target_:" in line}


def nodes_in_yaml() -> Iterator[tuple[str, str]]:
    """Place and name of every target in the YAML files."""
    for path in conf_dir().rglob("*.yaml"):
        folder = path.parent.relative_to(conf_dir()).parts
        is_global = "# @package _global_" in path.read_text()
        package = folder[:1] if folder and not is_global else ()
        for key, node in targets(yaml.safe_load(path.read_text())):
            place = [*package, *filter(None, key.split("."))][0]
            yield place, node["_target_"]


def test_a_file_may_name_what_the_yaml_files_name_where_they_name_it():
    named = set(nodes_in_yaml())
    refused = {(place, name) for place, name in named if not is_of_kind(name, place)}
    # Those of a sweep, a leaderboard and a report are in no run.
    assert refused == {
        ("compare", "yamame.baselines.RecurrentPPO"),
        ("hydra", "hydra_plugins.yamame_local.LocalLauncher"),
        ("hydra", "yamame.tracking.sweep.SweepParent"),
        ("resampling", "yamame.report.Resampling"),
    }
    elsewhere = {"compare", "hydra", "resampling"}
    assert {place for place, _ in named} - elsewhere == set(KINDS) - {"evaluation"}


WRONG_KINDS = {
    "env": "yamame.trajectory.GRUEncoder",
    "evaluation": "yamame_envs.Gym",
    "trials": "yamame_envs.Gym",
    "curriculum": "yamame.curriculum.ObservedReplay",
    "workers": "yamame_envs.Gym",
    "timestep_encoder": "yamame.timestep.ImageEncoder",
    "goal_encoder": "yamame.timestep.MLPTimestepEncoder",
    "encoder": "yamame.trajectory.SigmaReparamLinear",
    "agent": "yamame.heads.ActionInputCritic",
    "relabel": "yamame.replay.TrajectoryStorage",
    "exploration": "yamame.exploration.disable_exploration",
    "optimizer": "torch.optim.lr_scheduler.StepLR",
    "schedule": "yamame.training.NonFiniteGuard",
    "replay": "yamame.replay.TrajectoryStorage",
    "collector": "yamame.collectors.TrajectoryAssembler",
    "packing": "yamame.replay.TrajectoryReplayBuffer",
    "window": "yamame.replay.minibatches",
    "callbacks": "yamame.runs.MLflowTracker",
    "data": "yamame.data.TrajectoryDataset",
    "source": "yamame.baselines.learning_histories",
    "logger": "yamame.tracking.send_rest",
}
"""A class or function of the wrong kind for every place, of the right room where it has one."""


@pytest.mark.parametrize("place", KINDS)
def test_a_class_of_the_wrong_kind_is_refused_at_every_place_and_not_called(
    payload, unharmed, monkeypatch, place
):
    name = WRONG_KINDS[place]
    called = []
    below = {
        "agent": "agent.critic",
        "evaluation": "evaluation.env.workers",
        "schedule": "schedule.regulator",
    }
    key = below.get(place, place)
    value = {"mine": node(name)} if place == "callbacks" else node(name)
    refused(forged(payload, key, value), f"{key}", repr(name))
    with monkeypatch.context() as replaced:
        replaced.setattr(name, called.append)
        refused(forged(payload, key, value), f"{key}", repr(name))
    assert not called


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("env", "yamame_envs.import_module"),
        ("env", "yamame_envs.register"),
        ("env", "yamame_envs.adapters.gym.Gym"),
        ("encoder", "yamame.trajectory.transformer"),
        ("encoder", "yamame.trajectory.nothing"),
        ("encoder", "yamame.trajectory.transformer.nothing"),
        ("encoder", "yamame.trajectory.nothing.TransformerEncoder"),
        ("encoder", "yamame.trajectory.transformer.TransformerEncoder.__init__"),
        ("encoder", "yamame.trajectory.base.TensorDictModuleBase"),
        ("logger", "yamame.tracking.tracker.MLflowTracker"),
        ("window", "yamame.replay.Relabel"),
        ("packing", "yamame.replay.Window"),
        ("relabel", "yamame.replay.Window"),
        ("data", "yamame.data.sources"),
        ("surprise", "yamame.trajectory.GRUEncoder"),
    ],
)
def test_what_is_not_of_the_kind_of_a_place_is_refused(place, name):
    assert not is_of_kind(name, place)


@pytest.mark.parametrize(
    "name", ["yamame.trajectory.HFEncoder", "yamame.trajectory.adapters.hf.HFEncoder"]
)
def test_paths_of_pretrained_weights_are_dropped_under_every_name(name):
    config = {"agent": [{"encoder": {"_target_": name, "path": "/elsewhere", "size": 1}}]}
    assert without_foreign_weights(config) == {
        "agent": [{"encoder": {"_target_": name, "path": None, "size": 1}}]
    }
    other = {"_target_": "yamame.trajectory.GRUEncoder", "path": "/elsewhere"}
    assert without_foreign_weights(other) == other


def test_a_component_need_not_be_exported_by_its_room():
    assert is_of_kind("yamame.trajectory.transformer.TransformerEncoder", "encoder")
