"""What is decided where JAX, or a library of games, is not installed."""

import sys
from types import SimpleNamespace

import pytest
from yamame.checks import ArgumentError
from yamame.files.trusted import GAME_LIBRARIES, REGISTERING, own_modules
from yamame.files.untrusted import UntrustedError, check_file
from yamame_envs import JaxEnv
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.jax_games import libraries, own_names
from yamame_envs.jax_games.game import time_limit_of
from yamame_envs.jax_games.runtime import load_jax


def settings(id: str, tasks: str | None = None) -> dict:
    return {"env": {"_target_": "yamame_envs.JaxEnv", "id": id, "tasks": tasks}}


def test_a_missing_jax_is_one_line_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    load_jax.cache_clear()
    try:
        for id, extra in (("mylab:Recall", "jax"), ("gymnax:CartPole-v1", "gymnax")):
            command = rf"pip install 'yamame\[{extra}\]'$"
            with pytest.raises(MissingExtra, match=rf"the package jax .*{command}"):
                JaxEnv(id=id)
    finally:
        load_jax.cache_clear()


@pytest.mark.parametrize(
    ("id", "extra"),
    [
        ("gymnax:CartPole-v1", "gymnax"),
        ("popgym_arcade:CartPoleEasy", "arcade"),
        ("craftax:Craftax-Symbolic-v1", "craftax"),
        ("xminigrid:MiniGrid-EmptyRandom-5x5", "xland"),
    ],
)
def test_a_missing_library_is_one_line_with_its_extra(id, extra, monkeypatch):
    library = id.partition(":")[0]
    monkeypatch.setattr(libraries, "load_jax", lambda: None)
    monkeypatch.setattr(libraries, "_check_gymnax", lambda *_: None)
    for name in list(sys.modules):
        if name.partition(".")[0] == library:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library} .*pip install 'yamame\[{extra}\]'$"):
        libraries.library_game(id, {}, None, "JaxEnv")


@pytest.mark.parametrize("id", ["gymnax:CartPole-v1", "popgym_arcade:CartPoleEasy"])
def test_two_packages_that_own_one_module_are_named(id, monkeypatch):
    monkeypatch.setattr(libraries, "load_jax", lambda: None)
    monkeypatch.setattr(libraries, "version", {"gymnax": "1.0", "stable-gymnax": "0.1"}.get)
    with pytest.raises(MissingExtra, match=r"gymnax 1.0 and stable-gymnax 0.1.*yamame\[") as raised:
        libraries.library_game(id, {}, None, "JaxEnv")
    assert "\n" not in str(raised.value)


def test_a_limit_of_one_step_is_that_of_a_base_class_where_there_is_another():
    inherited, own = SimpleNamespace(max_steps_in_episode=1), SimpleNamespace(max_steps=200)
    assert time_limit_of(inherited, own) == 200
    assert time_limit_of(inherited, None) == 1
    assert time_limit_of({"max_steps": 20}, own) == 20
    assert time_limit_of(None, SimpleNamespace()) is None


def test_a_file_may_name_games_of_libraries_and_others_with_trust_alone():
    assert set(GAME_LIBRARIES) == set(libraries.LIBRARIES)
    for library in GAME_LIBRARIES:
        check_file(settings(f"{library}:Name-v0"))
    own = settings("mylab.games:Recall", "mylab.tasks:draw")
    with pytest.raises(UntrustedError) as raised:
        check_file(own)
    assert raised.value.packages == ("mylab.games.", "mylab.tasks.")
    check_file(own, ["mylab."])
    assert own_modules(own["env"]) == ["mylab.games.", "mylab.tasks."]
    assert own_modules({"ids": ["CartPole-v1", "mylab:Door-v0"]}) == ["mylab."]


HIDDEN = (
    "yamame_envs:jax_games.runtime.os.system",
    "popgym:core.os.system",
    "yamame:checks.re.sub",
)


@pytest.mark.parametrize("text", HIDDEN)
@pytest.mark.parametrize("name", ["id", "tasks"])
def test_no_game_is_found_inside_of_packages_that_ids_may_name_without_trust(
    monkeypatch, text, name
):
    def load(module):
        raise AssertionError(f"{module} was imported")

    monkeypatch.setattr(own_names, "import_module", load)
    with pytest.raises(ArgumentError, match=f"{name} must"):
        own_names.located(text, "JaxEnv", name)
    assert set(REGISTERING) <= set(own_names._NOT_OWN)


def test_a_module_has_no_games_that_it_imported(tmp_path, monkeypatch):
    (tmp_path / "imported_games.py").write_text(
        "import os\nfrom functools import partial\nfrom os import system\n"
        "def make(size=3):\n    return size\n"
        "hidden = partial(system)\nsmall = partial(make, size=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("os.system", "system", "hidden", "os", "make.__globals__"):
        with pytest.raises(ArgumentError, match="id must"):
            own_names.located(f"imported_games:{name}", "JaxEnv", "id")
    for name, size in (("make", 3), ("small", 1)):
        assert own_names.located(f"imported_games:{name}", "JaxEnv", "id")() == size


@pytest.mark.parametrize(
    "config",
    [
        settings("gymnax.registration:make"),
        settings("gymnax:CartPole-v1", "gymnax:make"),
        settings("gymnax:CartPole-v1", "yamame_envs:jax_games.runtime.os.system"),
        settings("popgym.core:os.system"),
        {"env": {**settings("gymnax:CartPole-v1")["env"], "settings": {"name": "craftax:x"}}},
    ],
)
def test_libraries_are_free_as_first_part_of_an_id_alone(config):
    with pytest.raises(UntrustedError):
        check_file(config)
