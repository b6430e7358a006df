"""A choice whose package is not installed says in one line how to install it."""

import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yamame
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.cli.command_line import read_command_line
from yamame.cli.explain import explain
from yamame.cli.sweeps import planned
from yamame.runs.build import build_agent, build_env
from yamame_envs.adapters.extras import MissingExtra, missing_extra

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
WITHOUT_EXTRA = {
    "minihack": "pip install minihack==1.0.2 'setuptools<81'",
    "memory_gym": "pip install --no-deps memory-gym==1.0.2 && pip install pygame",
    "torchrl": "pip install 'torchrl>=0.15'",
    "mamba": "pip install mamba-ssm causal-conv1d (needs CUDA)",
}
"""Commands of packages that no extra can install beside the others."""


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def require_remedy(text: str, choice: str) -> None:
    """Fail unless a text is one line with a command that installs what is missing."""
    assert "\n" not in text
    if choice in WITHOUT_EXTRA:
        assert text.endswith(f"must be installed, run: {WITHOUT_EXTRA[choice]}")
        return
    found = re.search(r"must be installed[,;] run: pip install 'yamame\[(\w+)\]'$", text)
    assert found is not None, text
    assert found[1] in EXTRAS


@pytest.mark.parametrize("choice", choices("env"))
def test_an_environment_is_built_or_names_its_extra(choice):
    cfg = yamame.compose(f"env={choice}")
    try:
        build_env(cfg, num_envs=1, seed=0).close()
    except UsageError as error:
        require_remedy(str(error), choice)


@pytest.mark.parametrize("choice", choices("encoder"))
def test_an_encoder_is_built_or_names_its_extra(choice):
    cfg = yamame.compose(f"encoder={choice}", "env=tmaze")
    try:
        build_agent(cfg, build_env(cfg, num_envs=1, seed=0))
    except UsageError as error:
        require_remedy(str(error), choice)


@pytest.mark.parametrize("choice", [*choices("optimizer"), *choices("collector")])
def test_an_optimizer_or_collector_trains_or_names_its_extra(choice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if choice == "ray" and find_spec("ray") is not None:
        pytest.skip("Ray is installed; it takes long to start")
    group = "collector" if choice in choices("collector") else "optimizer"
    small = ["debug=tiny", "logger=none", "env=tmaze", "encoder=gru", "encoder.hidden_size=8"]
    try:
        yamame.train(f"{group}={choice}", *small)
    except UsageError as error:
        require_remedy(str(error), choice)


@pytest.mark.parametrize("group", ["launcher", "sweeper"])
def test_a_launcher_or_sweeper_is_there_or_names_its_extra(group):
    for choice in choices(group):
        text = f"{group}={choice}"
        line = read_command_line(["-m", text, "seed=0,1"], str(conf_dir()), "train")
        try:
            planned(line)
        except Exception as error:
            (told,) = explain(error, line)
            require_remedy(told, choice)


def test_an_id_of_gymnasium_whose_simulator_is_missing_names_its_extra(monkeypatch):
    """The negative control: a module that no extra installs has no extra."""
    # Another test may have imported both.
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    cfg = yamame.compose("env=gym", "env.id=HalfCheetah-v5")
    with pytest.raises(UsageError) as raised:
        build_env(cfg, num_envs=1, seed=0)
    require_remedy(str(raised.value), "gym")
    assert missing_extra(ModuleNotFoundError(name="nothing"), "Example") is None
    assert isinstance(missing_extra(ImportError(name="mujoco.x"), "Example"), MissingExtra)
