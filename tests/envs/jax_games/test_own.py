"""Games of a user: laws, tasks, trials, ends, and errors of one line."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest
import torch
from gymnasium.spaces import Discrete
from jax_sources import CATCH, RECALL
from yamame.checks import ArgumentError, UsageError
from yamame.curriculum import PlayedEpisodes
from yamame.evaluation import evaluate
from yamame.files.building import build_node
from yamame.spaces.from_specs import recorded_spaces
from yamame.system.messages import OutsideError
from yamame.system.user_code import UserCodeError
from yamame_envs import CurriculumEnv, JaxEnv, RepeatedTrials
from yamame_envs.jax_games import Game
from yamame_envs.testing import check_env

Recall = partial(JaxEnv, id="mylab:Recall")
Catch = partial(JaxEnv, id="mylab:Catch")


class Forgets(JaxEnv):
    """Leaves the step of one world out of its state."""

    def state_dict(self):
        state = super().state_dict()
        names = sorted(state["world"])
        state["world"][names[-1]].zero_()
        return state


class Mixes(JaxEnv):
    """Begins with seeds that depend on the number of envs."""

    def restart(self, streams):
        super().restart(streams + len(streams))


def test_laws_of_a_game_of_ten_lines_with_a_key_in_its_state(game):
    game(RECALL)
    check_env(Recall, num_steps=16)


@pytest.mark.parametrize(("broken", "law"), [(Forgets, "state"), (Mixes, "rows")])
def test_a_broken_law_is_found(game, broken, law):
    game(RECALL)
    with pytest.raises(AssertionError, match=f"^{law}: "):
        check_env(partial(broken, id="mylab:Recall"), num_steps=8)


def test_laws_of_continuous_actions_nested_observations_and_a_split(game):
    game(CATCH)
    check_env(partial(Catch, tasks="own", split="train"), num_steps=16)


def test_rows_do_not_depend_on_their_number_where_worlds_are_made_in_chunks(game):
    game(RECALL)
    actions = torch.arange(12 * 150).reshape(12, 150) % 3
    played = []
    for num_envs in (150, 3):  # chunks of 18 and of 3 worlds
        env = Recall(num_envs=num_envs, seed=4)
        current = env.reset()
        steps = []
        for action in actions:
            step, current = env.step_and_maybe_reset(current.set("action", action[:num_envs]))
            steps.append(step.select("observation", ("next", "reward")).clone())
        played.append(torch.stack([step[:3] for step in steps]))
    assert (played[0] == played[1]).all()
    assert len(played[0]["observation"][:, 0].unique(dim=0)) > 6


def test_entries_are_those_of_a_gymnasium_environment_with_such_spaces(game):
    game(CATCH)
    env = Catch(num_envs=2, settings={"width": 8, "max_steps_in_episode": 3})
    seen = env.reset()["observation"]
    assert seen["picture"].dtype == torch.uint8
    assert seen["picture"].shape == (2, 8, 8, 3)
    assert seen["late"].dtype == torch.bool
    assert seen["numbers", "place"].shape == (2, 2)
    assert seen["numbers", "time"].dtype == torch.float32
    assert env.action_spec.shape == (2, 2)
    assert env.time_limit == 3
    assert (env.render(1) == seen["picture"][1].numpy()).all()
    assert recorded_spaces(env) is env.spaces


def test_an_end_of_time_is_terminal_where_it_is_seen_and_truncates_where_it_is_not(game):
    game(CATCH)
    seen = Catch(num_envs=2).rollout(6)["next"][:, -1]
    unseen = Catch(num_envs=2, time_limit=None).rollout(6)["next"][:, -1]
    earlier = Catch(num_envs=2, time_limit=4).rollout(6)["next"]
    assert seen["terminated"].all()
    assert not seen["truncated"].any()
    assert unseen["truncated"].all()
    assert not unseen["terminated"].any()
    assert "time" not in unseen.keys()
    assert earlier.shape == (2, 4)
    assert earlier["terminated"][:, -1].all()


def test_sides_of_a_split_share_no_task_and_too_few_tasks_are_refused(game):
    game(CATCH)
    hashes = {}
    for split in ("train", "test", "all"):
        env = Catch(num_envs=200, tasks="own", split=split)
        env.reset()
        hashes[split] = set(env.task_hashes().tolist())
    assert not hashes["train"] & hashes["test"]
    assert hashes["train"] | hashes["test"] == hashes["all"]
    assert Catch(tasks="own", split="test").novelty == "new tasks"
    with pytest.raises(ArgumentError, match="split"):
        Catch(split="train")
    with pytest.raises(ArgumentError, match=r"split.*too few different tasks \(1\)"):
        Catch(tasks=lambda key: {"wind": 1.0}, split="train")


def test_trials_of_a_task_begin_differently_where_it_is_apart_from_the_key(game):
    game(CATCH)
    actions = torch.zeros(18, 3, 2)
    starts = {}
    for tasks in (None, "own"):
        env = RepeatedTrials(Catch(num_envs=3, tasks=tasks), num_trials=3)
        current = env.reset()
        hashes = env.task_hashes()
        places = []
        for action in actions:
            if current["trial_start"].all():
                places.append(current["observation", "numbers", "place"])
            step, current = env.step_and_maybe_reset(current.set("action", action))
            same = None if hashes is None else (env.task_hashes() == hashes).all()
            assert same is None or same or step["next", "done"].all()
        starts[tasks] = torch.stack(places)
    assert (starts[None] == starts[None][0]).all()
    assert (starts["own"][0] != starts["own"][1]).any()
    check_env(
        lambda num_envs, seed: RepeatedTrials(
            Catch(num_envs=num_envs, seed=seed, tasks="own"), num_trials=2, seed=seed
        ),
        num_steps=16,
    )


class Again:
    """Curriculum that plays the first seed it has observed."""

    def __init__(self):
        self.seed = None

    def choose(self, seeds, uniform):
        return seeds if self.seed is None else torch.full_like(seeds, self.seed)

    def observe(self, episodes):
        self.seed = int(episodes.task_seed[0])

    def state_dict(self):
        return {"seed": self.seed}

    def load_state_dict(self, state):
        self.seed = state["seed"]


def test_a_seed_that_a_curriculum_replays_has_the_task_that_was_drawn(game):
    game(CATCH)
    for tasks in ("own", None):
        env = CurriculumEnv(Catch(num_envs=6, tasks=tasks), Again())
        first = env.reset()
        seeds, hashes = first["played_seed"].flatten(), env.task_hashes()
        env.observe(PlayedEpisodes(seeds, None, None))
        again = env.reset()
        assert (again["played_seed"] == seeds[0]).all()
        if tasks is None:
            seen = first["observation", "numbers", "place"]
            assert (again["observation", "numbers", "place"] == seen[0]).all()
        else:
            assert len(hashes.unique()) > 1
            assert (env.task_hashes() == hashes[0]).all()


def test_held_out_tasks_are_the_same_with_any_number_of_envs(game):
    game(CATCH)

    def policy(tensordict):
        return tensordict.set("action", torch.zeros(*tensordict.batch_size, 2))

    results = []
    for count in (6, 4):
        env = Catch(num_envs=count, tasks="own", split="test")
        results.append(evaluate(policy, env, task_seeds=range(6)))
    assert (results[0].returns == results[1].returns).all()
    assert results[0].returns.std() > 0


@dataclass
class Unhashable:
    steps: int = 3

    def __call__(self):
        return import_module("mylab").Recall()


def test_a_function_without_a_hash_makes_a_game(game):
    game(RECALL)
    made = Unhashable()
    with pytest.raises(TypeError):
        hash(made)
    expected = JaxEnv(id="mylab:Recall").reset()
    assert JaxEnv(id=made).reset()["observation"].equal(expected["observation"])


def test_a_state_of_other_tasks_is_refused(game):
    game(CATCH)
    train, test = (Catch(tasks="own", split=split) for split in ("train", "test"))
    train.reset()
    with pytest.raises(ArgumentError, match="split must be of the tasks 'test', got 'train'"):
        test.load_state_dict(train.state_dict())
    earlier = train.state_dict()
    del earlier["split"]
    train.load_state_dict(earlier)


def test_a_state_of_another_game_or_number_of_envs_is_refused(game):
    game(RECALL + CATCH)
    env = Recall(num_envs=2)
    env.reset()
    with pytest.raises(ArgumentError, match="3 envs"):
        Recall(num_envs=3).load_state_dict(env.state_dict())
    with pytest.raises(ArgumentError, match="state_dict"):
        Catch(num_envs=2).load_state_dict(env.state_dict())


def two_armed_bandit() -> Game:
    """Game of functions, whose task is the better arm."""
    import jax

    def step(key, state, action, task):
        won = (action == task).astype(float)
        return state, state, won, False, False, {}

    return Game(
        reset=lambda key, task: (0.0, 0.0),
        step=step,
        action_space=Discrete(2, start=1),
        time_limit=3,
        draw_task=lambda key: jax.random.randint(key, (), 1, 3),
    )


def test_a_game_may_be_functions_or_an_object_or_what_makes_one(game):
    game("")
    made = two_armed_bandit()
    for id in (made, two_armed_bandit):
        env = JaxEnv(id=id, num_envs=8)
        arms = env.rollout(3, auto_reset=True)
        won = arms["next", "reward"].squeeze(-1)
        better = arms["action"] == 0
        # One arm pays in all steps of an episode, the other in none.
        assert ((won == better).all(1) | (won != better).all(1)).all()
        assert len(env.task_hashes().unique()) == 2
        assert env.plays_all_tasks
    with pytest.raises(ArgumentError, match="settings"):
        JaxEnv(id=made, settings={"arms": 3})


def changed(old: str, new: str) -> str:
    assert old in RECALL
    return RECALL.replace(old, new)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (changed("jax.nn.one_hot(cue, 3)", "1 / 0"), r"ZeroDivisionError.*mylab.py:11"),
        (changed("1.0 * won", "1.0 if won else 0.0"), r"have no values .*jnp.where.*mylab.py:16"),
        (changed("1.0 * won", "float(won)"), r"Error: arrays have no values .*mylab.py:16"),
        (changed("{**state, \"time\"", "{\"time\""), r"lacks \[\"state\['cue'\]\", .*key"),
        (changed(", {\"success\": won}", ""), r"step_env must be .*got tuple of 4"),
        (changed('"time": time}', '"time": time * 1.0}'), r"time.*int32.*got float32"),
        (changed("time == 4,", "jnp.zeros(2),"), r"terminated must be one number.*\[2\]"),
    ],
)  # fmt: skip
def test_errors_of_a_game_are_one_line(game, source, message):
    game(source)
    with pytest.raises(OutsideError, match=message) as raised:
        Recall(num_envs=2).rollout(3)
    assert "\n" not in str(raised.value)


def test_numbers_that_are_not_finite_are_named_with_env_and_step(game):
    game(changed("1.0 * won", "jnp.where(time == 3, jnp.nan, 0.0)"))
    with pytest.raises(
        OutsideError, match=r"reward must be finite, in env 0 at step 2 of task_seed"
    ):
        Recall(num_envs=2).rollout(5)


def test_numbers_after_the_end_of_an_episode_are_of_no_account(game):
    game(changed("1.0 * won", "jnp.where(time == 5, jnp.nan, 0.0)"))
    env = Recall(num_envs=2)
    current = env.reset()
    for _ in range(5):
        current = env.step(current.set("action", torch.zeros(2, dtype=torch.int64)))["next"]
    assert current["step_index"].eq(5).all()


def test_a_task_that_is_not_drawn_is_named_before_the_error(game, capsys):
    source = changed('state["cue"])', 'params["cue"])')
    game(f"{source}\n    def sample_task(self, key):\n        return {{'cue': 1}}\n")
    Recall(tasks="own")
    assert "tasks=own" not in capsys.readouterr().err
    with pytest.raises(UserCodeError, match=r"NoneType.*set env.tasks=own \(.*mylab.py:14\)"):
        Recall()
    assert "params are None" in capsys.readouterr().err


def test_a_space_without_parts_of_an_observation_is_named(game, capsys):
    game(f"{CATCH}\n    observation_space = Box(0.0, 1.0, (2,))\n")
    Catch()
    assert "not in its space: ['late', 'numbers', 'picture']" in capsys.readouterr().err


def test_an_error_of_the_constructor_has_its_line(game):
    game("class Recall:\n    def __init__(self):\n        raise KeyError('width')\n")
    with pytest.raises(UserCodeError, match=r"KeyError: 'width' .*mylab.py:3"):
        Recall()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "mylab"}, "id"),
        ({"id": "mylab:Missing"}, "Missing"),
        ({"id": "no_such_module:Game"}, "no_such_module"),
        ({"id": "mylab:Recall", "settings": {"speed": 3}}, r"settings\.speed must be left out"),
        ({"id": "mylab:Recall", "success": "won"}, "success"),
        ({"id": "mylab:Recall", "tasks": "gymnax:make"}, "tasks"),
        ({"id": "mylab:Recall", "tasks": "mylab:draw"}, "tasks must be null, own, or .*draw"),
        ({"id": "mylab:Endless"}, "action_space must have finite bounds.*within step"),
        ({"id": "mylab:jnp.zeros"}, "id|shape"),
    ],
)
def test_wrong_settings_are_named(game, settings, message):
    endless = "action_space = types.SimpleNamespace(low=-jnp.inf, high=jnp.inf, shape=(2,))"
    game(f"{RECALL}\nimport types\n\nclass Endless(Recall):\n    {endless}\n")
    with pytest.raises((UsageError, OutsideError), match=message):
        JaxEnv(**settings)


def test_flags_that_no_name_makes_success_are_told(game, capsys):
    game(RECALL.replace('"success"', '"sucess"'))
    Recall()
    assert "info has ['sucess'], and no 'success'" in capsys.readouterr().err
    Recall(success="sucess")
    assert "sucess" not in capsys.readouterr().err


def test_one_hot_actions_are_refused_by_their_shape(game):
    game(RECALL)
    env = Recall(num_envs=4)
    assert repr(env) == f"JaxEnv('mylab:Recall', num_envs=4, time_limit={env.time_limit})"
    actions = torch.nn.functional.one_hot(torch.tensor([1, 0, 1, 0]), 2)
    with pytest.raises(ValueError, match=r"shape \[4\], got \[4, 2\]; an index is the argmax"):
        env.step(env.reset().set("action", actions))


TRUNCATED = """
import jax.numpy as jnp

class Base:
    num_actions, max_steps = 2, 10
    info = {"truncated": False}

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), state + 1, 1.0, False, self.info

class Nothing(Base):
    info = {"truncated": None}

class Text(Base):
    info = {"truncated": "yes"}

class Short(Base):
    def is_truncated(self, state):
        return False

class Flag(Base):
    is_truncated = True

class Typing(Base):
    default_params = {"speed": 1.0}

    def sample_task(self, key):
        return {"sped": jnp.float32(2)}
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", "info\\['truncated'\\] must be one number, got NoneType"),
        ("Text", "info\\['truncated'\\] must be an array, .*got str"),
        ("Short", r"is_truncated must take \(state, params\), it is is_truncated\(state\)"),
        ("Flag", r"is_truncated must be a method is_truncated\(state, params\), got True"),
        ("Typing", r"tasks must draw fields of \['speed'\], got \['sped'\]"),
    ],
)
def test_wrong_truncation_and_wrong_fields_of_tasks_are_named(game, name, message):
    game(TRUNCATED)
    assert JaxEnv(id="mylab:Base", time_limit=3).time_limit == 3
    with pytest.raises((UsageError, OutsideError), match=message):
        JaxEnv(id=f"mylab:{name}", tasks="own" if name == "Typing" else None)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"id": ["mylab:Recall"]}, "env.id"),
        ({"id": 5}, "env.id"),
        ({"id": "mylab:NUMBER"}, "env.id"),
        ({"settings": [1]}, "env.settings"),
        ({"settings": {"speed": 3}}, "env.settings.speed"),
        ({"settings": {"max_steps": 0}}, "env.time_limit"),
        ({"time_limit": 0}, "env.time_limit"),
        ({"time_limit": 10}, "env.time_limit"),
        ({"time_limit": True}, "env.time_limit"),
        ({"time_limit": "x"}, "env.time_limit"),
        ({"success": "won"}, "env.success"),
        ({"tasks": "mylab:NUMBER"}, "env.tasks"),
        ({"split": "train"}, "env.split"),
    ],
)
def test_an_error_in_a_configuration_begins_with_its_key(game, settings, key):
    made = "    def __init__(self, max_steps=9):\n        self.max_steps = max_steps\n"
    game(f"{RECALL}\nNUMBER = 3\n\nclass Timed(Recall):\n{made}")
    node = {"_target_": "yamame_envs.JaxEnv", "id": "mylab:Timed", "time_limit": "registered"}
    build_node(node, "env")
    with pytest.raises(UsageError) as raised:
        build_node({**node, **settings}, "env")
    assert str(raised.value).startswith(f"{key}: must ")
    assert "\n" not in str(raised.value)
