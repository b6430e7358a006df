"""Steps that are captured: those of a plain loop over envs, without a look at what is in them."""

import pytest
import torch
from tensordict import TensorDict
from yamame.execution.capturing import recording
from yamame_envs import MazeRunner, RepeatedTrials
from yamame_envs.streams import fold

NUM_ENVS, STEPS = 3, 45


class Alone:
    """One env, of which the host looks at every step whether its episode has ended."""

    def __init__(self, make, env_id):
        self.env, self.stream, self.episodes = make(num_envs=1), fold(torch.tensor(0), env_id), 0
        self.begin()

    def begin(self):
        seed = fold(self.stream, self.episodes).view(1, 1)
        self.present = self.env.reset(TensorDict({"task_seed": seed}, [1])).exclude("task_seed")
        self.episodes += 1

    def step(self, action):
        following = self.env.step(self.present.copy().set("action", action)).get("next")
        self.present = following.exclude("reward")
        if bool(following["done"]):
            self.begin()
        return following, self.present


def differing(env, make, actions, step):
    """In how many steps anything differs from a loop over envs, and how many episodes ended."""
    alone, td = [Alone(make, env_id) for env_id in range(NUM_ENVS)], env.reset()
    env.reserve(len(actions))
    number = ends = 0
    for action in actions:
        taken, td = step(td.set("action", action))
        plain = [one.step(action[i : i + 1]) for i, one in enumerate(alone)]
        following, present = (torch.cat(parts) for parts in zip(*plain, strict=True))
        assert (
            set(td.keys(True, True))
            == set(present.keys(True, True))
            == set(following.keys(True, True)) - {"reward"}
        )
        same = (taken["next"] == following).all() and (td == present).all()
        number, ends = number + (not same), ends + int(following["done"].sum())
    return number, ends


def test_captured_steps_are_those_of_a_plain_loop_over_envs(native, actions_of, nothing_read_back):
    env = native(num_envs=NUM_ENVS)

    def step(td):
        with recording(), nothing_read_back():
            return env.step_and_maybe_reset(td)

    number, ends = differing(env, native, actions_of(env, STEPS), step)
    assert number == 0
    assert ends >= 2
    assert env.reserve(1)


def test_a_step_that_begins_episodes_in_the_wrong_envs_is_no_step_of_the_loop(maze, actions_of):
    env = maze(num_envs=NUM_ENVS)
    begin = env._begin_tasks
    env._begin_tasks = lambda begins, task: begin(begins.roll(1), task)
    assert differing(env, maze, actions_of(env, STEPS), env.step_and_maybe_reset)[0] > 10


def test_compiled_as_one_graph_a_step_is_what_it_is(kind_of_each_class, actions_of, same):
    native = kind_of_each_class
    env, other = native(num_envs=NUM_ENVS), native(num_envs=NUM_ENVS)
    step = torch.compile(other.step_and_maybe_reset, fullgraph=True, backend="eager")
    td, again, ends = env.reset(), other.reset(), 0
    other.reserve(STEPS)
    for action in actions_of(env, STEPS):
        taken, td = env.step_and_maybe_reset(td.set("action", action))
        compiled, again = step(again.set("action", action))
        same(compiled, taken)
        same(again, td)
        ends += int(taken["next", "done"].sum())
    assert ends >= 2
    assert other.reserve(1)
    torch.compiler.reset()


def captured(env, td, actions):
    for action in actions:
        with recording():
            _, td = env.step_and_maybe_reset(td.set("action", action))
    return td


def test_an_action_out_of_bounds_in_a_captured_step_is_refused_at_the_next_look(maze):
    env = maze(num_envs=2)
    td = captured(env, env.reset(), [torch.tensor([0, 4]), torch.tensor([0, 4])])
    env.reserve(1)
    captured(env, td, [torch.tensor([1, -1]), torch.tensor([0, 0])])
    with pytest.raises(
        ValueError,
        match=r"MazeRunner: action must be in 0\.\.4, got 'an action of an earlier step that was",
    ):
        env.reserve(1)
    assert env.reserve(1)  # said once


def test_captured_steps_that_were_not_reserved_are_refused_once_an_episode_has_no_task(corridor):
    env, still = corridor(num_envs=16), torch.zeros(16, dtype=torch.int64)
    td = captured(
        env, env.reset(), [still] * 6 * 3
    )  # of four tasks that are drawn at once, one is played
    assert env.reserve(1)
    captured(env, td, [still] * 6 * 5)
    with pytest.raises(
        RuntimeError, match="PassiveTMaze: reserve must be called before steps that are captured"
    ):
        env.reserve(1)
    env.reset()
    assert env.reserve(6 * 20)
    captured(env, env.reset(), [still] * 6 * 20)
    assert env.reserve(1)


def test_an_environment_goes_on_with_the_tensors_it_is_given(native, actions_of, same):
    env, other = native(num_envs=NUM_ENVS), native(num_envs=NUM_ENVS, seed=5)
    td, _ = env.reset(), other.reset()
    env.reserve(STEPS)
    other.reserve(STEPS)
    actions = actions_of(env, STEPS)
    td = captured(env, td, actions[:20])
    other.set_static_buffers({name: value.clone() for name, value in env.static_buffers().items()})
    assert {*env.static_buffers()} == {*other.static_buffers()}
    same(captured(other, td.copy(), actions[20:]), captured(env, td, actions[20:]))


def test_what_needs_a_look_at_every_episode_is_not_captured(maze):
    env, played = maze(num_envs=2), RepeatedTrials(maze(num_envs=2), num_trials=2)
    assert env.capture_obstacle is None
    assert env.reserve(1)
    assert played.reserve(1)
    for inner, outer in ((env, env), (played.env, played)):
        inner.set_instruction("3,1")
        assert outer.capture_obstacle == "set_instruction"
        assert not outer.reserve(1)
        inner.set_instruction(None)
        assert outer.reserve(1)


def test_a_checkpoint_from_when_the_inner_environment_did_not_count_goes_on(maze, play, same):
    env, other = (RepeatedTrials(maze(num_envs=2, seed=3), num_trials=2, seed=3) for _ in range(2))
    _, td = play(env, 60)
    state = env.state_dict()
    state["env"]["episodes"].zero_()
    other.load_state_dict(state)
    assert int(state["counters"]["episodes"].min()) > 1
    expected, _ = play(env, 60, td=td.copy(), start=60)
    found, _ = play(other, 60, td=other.present(), start=60)
    for one, another in zip(expected, found, strict=True):
        same(one, another)
    assert isinstance(other.env, MazeRunner)
