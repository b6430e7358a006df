"""Games that draw numbers or keep values outside JAX, which would be constants in silence."""

import re
from importlib.metadata import PackageNotFoundError, version
from itertools import count

import pytest
from jax_sources import CATCH, RECALL
from yamame.checks import ArgumentError
from yamame.system.messages import OutsideError
from yamame.system.user_code import UserCodeError
from yamame_envs import JaxEnv

HEAD = "import random\nfrom functools import partial\nimport numpy as np\n"
STEP = "    def step_env(self, key, state, action, params):\n"
RESET = "    def reset_env(self, key, params):\n"
CUE = 'state["cue"]'


def changed(*pairs: tuple[str, str]) -> str:
    source = RECALL
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return HEAD + source


def skip_without_gymnax():
    # The module of this name may be that of another distribution.
    try:
        version("gymnax")
    except PackageNotFoundError:
        pytest.skip("gymnax is not installed")


def line_of(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n") + 1


@pytest.mark.parametrize(
    ("source", "method", "text"),
    [
        (changed(("1.0 * won", "np.random.rand() * won")), "step_env", "np.random"),
        (changed(("1.0 * won", "random.randint(0, 1) * won")), "step_env", "random.randint(0, 1)"),
        (changed(("0, 3)", "0, 3) + np.random.randint(2)")), "reset_env", "np.random"),
        # Functions compiled by the game itself.
        (
            changed(
                (STEP, f"    @partial(jax.jit, static_argnums=0)\n{STEP}"),
                ("1.0 * won", "np.random.rand() * won"),
            ),
            "step_env",
            "np.random",
        ),
        (
            changed(
                (STEP, f"    num = 0\n{STEP}        self.num += 1\n"),
                ("1.0 * won", "self.num * won"),
            ),
            "step_env",
            "self.num * won",
        ),
        (
            changed(
                (RESET, f"    table = np.zeros(3)\n{RESET}        self.table = self.table + 1\n"),
                ("jax.nn.one_hot(cue, 3)", "self.table + cue"),
            ),
            "reset_env",
            "self.table + cue",
        ),
    ],
)
def test_numbers_and_state_outside_jax_are_named_with_their_line(game, source, method, text):
    game(source)
    place = rf"mylab.py:{line_of(source, text)}\)$"
    with pytest.raises(
        UserCodeError, match=rf"failed in {method}: .*outside JAX.*{place}"
    ) as raised:
        JaxEnv(id="mylab:Recall")
    assert "\n" not in str(raised.value)


def test_tasks_that_numpy_draws_are_found_in_games_of_users_and_libraries(game):
    source = "    def sample_task(self, key):\n        return {'cue': np.random.randint(9)}\n"
    game(f"{changed()}\n{source}")
    with pytest.raises(UserCodeError, match=r"failed in sample_task: .*outside JAX"):
        JaxEnv(id="mylab:Recall", tasks="own")
    skip_without_gymnax()
    numbers = count(2)

    def draw(key):
        return {"memory_length": next(numbers)}

    with pytest.raises(UserCodeError, match=r"failed in draw: .*outside JAX"):
        JaxEnv(id="gymnax:MemoryChain-bsuite", tasks=draw)


@pytest.mark.parametrize(
    "constructor",
    [
        "np.random.randint(2)",
        "np.random.default_rng().random(2)",
        "jax.random.key(random.random())",
    ],
)
def test_a_constructor_that_makes_another_game_each_time_is_found(game, constructor):
    used = "jax.random.uniform(self.table)" if "key" in constructor else "self.table"
    source = changed(
        (
            "    num_actions",
            f"    def __init__(self):\n        self.table = {constructor}\n    num_actions",
        ),
        ("jax.nn.one_hot(cue, 3)", f"jax.nn.one_hot(cue, 3) + jnp.sum({used})"),
    )
    game(source.replace("random.random()", "random.randint(0, 99)"))
    with pytest.raises(UserCodeError, match="it is another game each time it is made"):
        JaxEnv(id="mylab:Recall")


def test_numbers_of_a_fixed_seed_are_no_mistake(game, capsys):
    made = "self.table = np.random.default_rng(3).random(3)\n        np.random.seed(4)\n"
    made += "        self.table += np.random.rand(3)\n        print('made')\n"
    made += "        self.key = jax.random.key(5)\n        self.calls = 0\n"
    source = changed(
        ("    num_actions", f"    def __init__(self):\n        {made}\n    num_actions"),
        (RESET, f"{RESET}        self.calls += 1\n"),
        ("jax.nn.one_hot(cue, 3)", "jax.random.uniform(self.key, (3,)) + self.table"),
    )
    game(source)
    JaxEnv(id="mylab:Recall")
    assert capsys.readouterr().out == "made\n"


@pytest.mark.parametrize(
    ("keep", "use", "place"),
    [
        ("self.last = action", "won * self.last", True),
        ("self.last = action * 2", "jnp.where(won, self.last, 0)", True),
        ("self.last, kept = 1.0 * action, self.last", "kept", False),
        ("self.last = action", "jax.lax.cond(won, lambda: self.last, lambda: 0)", True),
    ],
)
def test_values_kept_on_self_between_calls_are_named(game, keep, use, place):
    kept = f"        last = self.last\n        {keep}\n"
    source = changed(
        (STEP, f"    last = 0\n{STEP}{kept}"), ("1.0 * won", use.replace("self.last", "last"))
    )
    game(source)
    where = rf"mylab.py:{line_of(source, '**state')}\)$" if place else "in the state$"
    with pytest.raises(UserCodeError, match=rf"step_env: .*on self.*{where}") as raised:
        JaxEnv(id="mylab:Recall")
    assert "\n" not in str(raised.value)


def test_a_value_that_a_reset_keeps_for_the_steps_is_named(game):
    keep = "        self.cue = cue\n        return jax.nn"
    source = changed(("        return jax.nn", keep), (CUE, "self.cue"))
    game(source)
    place = f"mylab.py:{line_of(source, '== self.cue')}"
    with pytest.raises(
        UserCodeError, match=f"failed in step_env: .*return it in the state .*{place}"
    ):
        JaxEnv(id="mylab:Recall")


def test_a_single_task_whatever_the_key_is_printed(game, capsys):
    game(CATCH)
    JaxEnv(id="mylab:Catch", tasks=lambda key: {"wind": 1.0})
    assert "draws a single task" in capsys.readouterr().err
    JaxEnv(id="mylab:Catch", tasks="own")
    assert "draws a single task" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("jax.random.randint(key, (), 3, 30)", r"tasks must draw a dictionary .*'memory_length'"),
        ('{"memory_length": jax.numpy.ones(3)}', r"tasks must draw values .*"),
        ('{"memory_length": None}', r"task must hold an array, got .*"),
    ],
)
def test_tasks_that_a_library_cannot_play_are_one_line(game, tasks, message):
    skip_without_gymnax()
    game(f"import jax\n\ndef draw(key):\n    return {tasks}\n")
    with pytest.raises((ArgumentError, OutsideError), match=message) as raised:
        JaxEnv(id="gymnax:MemoryChain-bsuite", tasks="mylab:draw")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 700


def test_a_method_without_a_key_has_the_name_of_the_user(game):
    game(f"{RECALL}\n    def sample_task(self):\n        return 1\n")
    with pytest.raises(OutsideError, match=r"sample_task must take \(key\), it is sample_task\(\)"):
        JaxEnv(id="mylab:Recall", tasks="own")


def test_an_id_with_a_typing_error_has_a_suggestion(game):
    game(RECALL)
    with pytest.raises(ArgumentError, match=r"no attribute 'Recal', did you mean Recall\?"):
        JaxEnv(id="mylab:Recal")


@pytest.mark.parametrize("id", ["CartPole-v1", "gymnx:CartPole-v1"])
def test_an_id_without_its_library_has_a_suggestion(id):
    pytest.importorskip("gymnax")
    with pytest.raises(ArgumentError, match=r"did you mean gymnax:CartPole-v1\?"):
        JaxEnv(id=id)


@pytest.mark.parametrize(("id", "meant"), [("mylab.Recall", "mylab:Recall"), ("a.b.C", "a.b:C")])
def test_an_id_with_a_point_in_place_of_a_colon_has_a_suggestion(game, id, meant):
    game(RECALL)
    with pytest.raises(ArgumentError, match=rf"did you mean {re.escape(meant)}\?"):
        JaxEnv(id=id)
    with pytest.raises(ArgumentError, match=rf"did you mean {re.escape(meant)}\?"):
        JaxEnv(id="mylab:Recall", tasks=id)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("1.0 * won, ", "np.random.rand(), ", "reward"),
        ("time == 4, ", "np.random.rand() < 0.5, ", "terminated"),
        ('"success": won', '"success": np.random.rand() < 0.5', "success"),
        ("return seen, ", "return np.random.rand(3).astype(np.float32), ", "observation"),
    ],
)
def test_a_result_that_is_drawn_outside_jax_is_named(game, old, new, name):
    game(changed((old, new)))
    with pytest.raises(UserCodeError, match=f"failed in step_env: .*outside JAX.*its {name} diff"):
        JaxEnv(id="mylab:Recall")


def test_a_game_that_calls_python_is_reported(game, capsys):
    called = "jax.pure_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), np.float32))"
    game(changed(("1.0 * won", f"won * {called}")))
    JaxEnv(id="mylab:Recall").rollout(2)
    line = line_of(changed(("1.0 * won", f"won * {called}")), "pure_callback")
    assert re.search(rf"pure_callback calls Python .*mylab.py:{line}\)", capsys.readouterr().err)


def test_the_line_of_a_helper_in_another_file_is_named(game, own_module):
    own_module(
        "myhelpers", "import numpy as np\n\ndef noise(won):\n    return won * np.random.rand()\n"
    )
    source = changed(("1.0 * won", "noise(won)"))
    game(f"from myhelpers import noise\n{source}")
    with pytest.raises(UserCodeError, match=r"failed in step_env: .*myhelpers.py:4\)"):
        JaxEnv(id="mylab:Recall")


def test_an_error_that_ends_iterations_is_described_too(game):
    game(changed(("1.0 * won", "1.0 * won * next(iter(()))")))
    with pytest.raises(UserCodeError, match=r"failed in step_env: StopIteration.*mylab.py"):
        JaxEnv(id="mylab:Recall")
