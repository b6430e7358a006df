import sys

import numpy as np
import pytest
import torch
from faulty_envs import (
    END,
    ENDLESS,
    FINE,
    NAN,
    RAISE,
    SHAPE,
    Echo,
    Walk,
    is_even,
    make_unimportable,
    never,
)
from gymnasium import spaces
from tensordict import TensorDict
from yamame.system.messages import OutsideError
from yamame_envs import HostedEnv, Workers
from yamame_envs.streams import fold

GO_ON = Workers(on_error="continue", max_errors=3)
FAULTS = {
    RAISE: r"ZeroDivisionError: broken on purpose",
    NAN: r"observation must be finite, got \[",
    ENDLESS: r"reward must be finite, got inf",
    SHAPE: r"observation must have shape \(4,\), got \(3,\)",
    -1: r"action -1 is out of bounds",
    10: r"action 10 is out of bounds",
}


def _with_fault(fault, steps=6, rows=3):
    """The fault happens in env 1 at its step 2."""
    actions = torch.full((steps, rows), FINE)
    actions[2, 1] = fault
    return actions


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_ends_the_episode_of_its_row_and_of_no_other(walks, steps, equal, fault):
    env, intact = walks(3, workers=GO_ON, time_limit=5), walks(3, time_limit=5)
    played, _ = steps(env, _with_fault(fault))
    whole, _ = steps(intact, _with_fault(FINE))
    equal(played[[0, 2]], whole[[0, 2]])
    row, end = played[1], played[1, 2]["next"]
    equal(row[:2], whole[1, :2])
    assert torch.equal(end["observation"], row["observation"][2])  # the last good one
    assert end["reward"] == end["prev_reward"] == 0
    flags = {name: bool(end[name]) for name in ("done", "truncated", "aborted", "terminated")}
    assert flags == {"done": True, "truncated": True, "aborted": True, "terminated": False}
    assert end["step_index"] == 3
    assert row["next", "aborted"].sum() == 1
    assert row["is_init"][:, 0].tolist() == [True, False, False, True, False, False]
    task = int(fold(fold(torch.tensor(0), 1), 1)) & (
        2**31 - 1
    )  # the next one, in a new environment
    assert row["observation"][3, 3] == np.float32(np.random.default_rng(task).random())
    assert env.num_aborted == 1
    for key in played.keys(True, True):
        assert played[key].isfinite().all(), key
    for t in range(6):
        assert env.observation_spec.is_in(played[:, t].select(*env.observation_spec.keys()))
        following = played[:, t]["next"].select(*env.observation_spec.keys())
        assert env.observation_spec.is_in(following)


@pytest.mark.parametrize("fault", [f for f in FAULTS if 0 <= f < 10])
def test_a_failure_is_an_error_that_names_its_place_and_cause(walks, steps, fault):
    env = walks(3)
    with pytest.raises(
        RuntimeError,
        match=rf"^HostedEnv: .* in env 1 at step 2 of task_seed -?\d+: {FAULTS[fault]}",
    ) as error:
        steps(env, _with_fault(fault))
    if fault == RAISE:
        assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="reset must be called"):  # rows have gone different ways
        env.step(TensorDict({"action": torch.zeros(3, dtype=torch.int64)}, [3]))
    assert env.reset()["is_init"].all()


@pytest.mark.parametrize("fault", [-1, 10])
def test_an_action_out_of_bounds_is_an_error_before_any_row_is_stepped(walks, steps, fault):
    env = walks(3)
    _, td = steps(env, torch.full((2, 3), FINE))
    message = rf"^HostedEnv: action must be in 0..9, got {fault} in env 1 at step 2$"
    with pytest.raises(ValueError, match=message):
        steps(env, _with_fault(fault)[2:], td=td)
    played, _ = steps(env, torch.full((1, 3), FINE), td=env.present())
    assert (played["next", "observation"][:, 0, 1] == 3).all()


@pytest.mark.parametrize("bad", [2.0, -2.0, torch.nan, torch.inf])
def test_a_box_action_out_of_bounds_is_never_shown(bad):
    env = HostedEnv(
        lambda: Echo(spaces.Discrete(2), spaces.Box(-1, 1, (2,))), num_envs=2, workers=GO_ON
    )
    action = torch.tensor([[0.5, -0.5], [0.5, bad]])
    end = env.step(env.reset().set("action", action))["next"]
    assert end["aborted"].flatten().tolist() == [False, True]
    assert end["prev_action"].tolist() == [[0.5, -0.5], [0.0, 0.0]]


@pytest.mark.parametrize(("nvec", "bad"), [([2, 3], [1, 3]), ([2, 3], [-1, 0])])
def test_a_multi_discrete_action_out_of_bounds_is_never_shown(nvec, bad):
    env = HostedEnv(
        lambda: Echo(spaces.Discrete(2), spaces.MultiDiscrete(nvec)), num_envs=2, workers=GO_ON
    )
    end = env.step(env.reset().set("action", torch.tensor([[1, 2], bad])))["next"]
    assert end["aborted"].flatten().tolist() == [False, True]
    assert end["prev_action"].tolist() == [[0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]
    strict = HostedEnv(lambda: Echo(spaces.Discrete(2), spaces.MultiDiscrete(nvec)), num_envs=2)
    with pytest.raises(
        ValueError, match=r"action must be in 0..\[1, 2\], got .* in env 1 at step 0"
    ):
        strict.step(strict.reset().set("action", torch.tensor([[1, 2], bad])))


def test_a_failed_environment_is_closed_and_made_anew():
    made = []

    class Counted(Walk):
        closed = False

        def __init__(self):
            super().__init__()
            made.append(self)

        def close(self):
            self.closed = True

    env = HostedEnv(Counted, num_envs=2, workers=GO_ON)
    td = env.reset()
    assert [one.closed for one in made] == [True, False, False]  # the first one told the spaces
    for action in (
        torch.tensor([FINE, END]),
        torch.tensor([NAN, FINE]),
        torch.tensor([FINE, FINE]),
    ):
        _, td = env.step_and_maybe_reset(td.set("action", action))
    assert [one.closed for one in made] == [True, True, False, False]
    env.close()
    assert all(one.closed for one in made)


def test_a_failure_at_the_time_limit_is_no_termination_and_a_row_stays_aborted(walks):
    env = walks(2, time_limit=1, workers=GO_ON)
    first = env.step(env.reset().set("action", torch.tensor([RAISE, FINE])))["next"]
    second = env.step(first.clone().set("action", torch.tensor([FINE, FINE])))["next"]
    for shown in (first, second):
        assert shown["terminated"].flatten().tolist() == [False, True]
        assert shown["truncated"].flatten().tolist() == [True, False]
        assert shown["aborted"].flatten().tolist() == [True, False]
    assert env.num_aborted == 1


def test_a_bit_that_is_none_is_never_shown():
    env = HostedEnv(
        lambda: Echo(spaces.Discrete(2), spaces.MultiBinary(2)), num_envs=2, workers=GO_ON
    )
    action = torch.tensor([[0, 1], [0, 2]], dtype=torch.int8)
    end = env.step(env.reset().set("action", action))["next"]
    assert end["aborted"].flatten().tolist() == [False, True]
    assert end["prev_action"].tolist() == [[0, 1], [0, 0]]
    strict = HostedEnv(lambda: Echo(spaces.Discrete(2), spaces.MultiBinary(2)), num_envs=2)
    with pytest.raises(
        ValueError, match=r"action must be in 0..1, got \[0, 2\] in env 1 at step 0"
    ):
        strict.step(strict.reset().set("action", action))


def test_too_many_failures_are_an_error_with_the_last_cause(walks, steps):
    env = walks(2, workers=GO_ON)
    actions = torch.full((3, 2), FINE)
    actions[1, 0] = NAN
    _, td = steps(env, actions)
    actions[1, 0] = RAISE
    _, td = steps(env, actions, td=td)
    _, td = steps(env, actions, td=td)
    assert env.num_aborted == 3
    message = (
        r"^HostedEnv: .* failed more often than max_errors=3 allows, at last in env "
        r"0 at step 2 of task_seed .*broken"
    )
    with pytest.raises(RuntimeError, match=message) as error:
        steps(env, actions, td=td)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_an_episode_that_cannot_begin_is_followed_by_the_next_one(walks):
    env = walks(4, good_resets=is_even, workers=Workers(on_error="continue", max_errors=50))
    env.reset()
    for row in range(4):
        episode = 0
        while (task := int(fold(fold(torch.tensor(0), row), episode))) % 2:
            episode += 1
        expected = np.float32(np.random.default_rng(task & (2**31 - 1)).random())
        assert env.present()["observation"][row, 3] == expected
    assert env.num_aborted == 0  # no episode had begun


def test_a_reset_that_always_fails_is_an_error(walks):
    with pytest.raises(
        RuntimeError,
        match=r"failed in env 0 at the start of task_seed -?\d+: ValueError: no reset with",
    ):
        walks(2, good_resets=never).reset()
    with pytest.raises(
        RuntimeError, match=r"max_errors=3 allows, at last in env . at the start of task"
    ):
        walks(2, good_resets=never, workers=GO_ON).reset()


def test_a_chosen_task_that_cannot_begin_is_not_replaced(walks):
    env = walks(2, good_resets=is_even, workers=GO_ON)
    assert env.reset(TensorDict({"task_seed": torch.tensor([[2], [4]])}, [2]))["is_init"].all()
    with pytest.raises(
        RuntimeError, match=r"max_errors=3 allows, at last in env 1 at the start of task_seed 3:"
    ):
        env.reset(TensorDict({"task_seed": torch.tensor([[2], [3]])}, [2]))


def test_an_interrupted_step_leaves_nothing_to_go_on_from(walks, steps, monkeypatch):
    env = walks(2)
    _, td = steps(env, torch.full((2, 2), FINE))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env._player, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps(env, torch.full((1, 2), FINE), td=td)
    with pytest.raises(RuntimeError, match="reset must be called"):
        env.step(td.set("action", torch.tensor([END, END])))


@pytest.mark.parametrize(("code", "text"), [(3, "SystemExit: 3"), (None, "SystemExit")])
def test_an_exit_of_an_environment_is_a_failure_of_its_env(code, text):
    class Leaving(Walk):
        def step(self, action):
            if action == RAISE:
                sys.exit(code)
            return super().step(action)

    actions = torch.tensor([FINE, RAISE])
    strict, patient = HostedEnv(Leaving, num_envs=2), HostedEnv(Leaving, num_envs=2, workers=GO_ON)
    with pytest.raises(
        OutsideError, match=rf"in env 1 at step 0 of task_seed -?\d+: {text} \(.*\.py:\d+\)$"
    ):
        strict.step(strict.reset().set("action", actions))
    end = patient.step(patient.reset().set("action", actions))["next"]
    assert end["aborted"].flatten().tolist() == [False, True]


def test_an_exit_that_is_a_signal_ends_the_process():
    class Asked(SystemExit):
        pass

    class Stopped(Walk):
        def step(self, action):
            raise Asked(143)

    env = HostedEnv(Stopped, num_envs=1, workers=GO_ON)
    with pytest.raises(Asked):
        env.step(env.reset().set("action", torch.tensor([FINE])))


BOUNDED = {
    "number": (
        spaces.Box(-10.0, 10.0, (2,)),
        [0, 10.00001],
        [0, 1e6],
        r"must be in -10\.\.10, the bounds .* got",
    ),
    "number of 64 bits": (
        spaces.Box(0.1, 0.3, (2,), np.float64),
        [0.1, 0.3],
        [0.1, 0.31],
        r"must be in 0\.1\.\.0\.3",
    ),
    "one side": (
        spaces.Box(np.array([0, -np.inf], np.float32), np.inf),
        [0, -1e9],
        [-1, 0],
        r"must be in \[.*inf\]\.\.inf",
    ),
    "byte": (spaces.Box(0, 9, (2,), np.uint8), [0, 9], [0, 10], r"must be in 0\.\.9, the bounds"),
    "whole number": (spaces.Box(-3, 3, (2,), np.int32), [-3, 3], [-4, 0], r"must be in -3\.\.3"),
}


@pytest.mark.parametrize(("space", "good", "bad", "text"), BOUNDED.values(), ids=BOUNDED)
def test_an_observation_out_of_the_bounds_of_its_space_is_a_failure_if_asked(
    space, good, bad, text
):
    def env_that_shows(last, workers):
        class Shown(Echo):
            def _look(self):
                return np.array(last if self.done else good, space.dtype)

        return HostedEnv(lambda: Shown(space), num_envs=1, workers=workers, bounds="raise")

    for last, fails in ((good, False), (bad, True)):
        env = env_that_shows(last, GO_ON)
        assert (
            bool(env.step(env.reset().set("action", torch.tensor([0])))["next", "aborted"]) == fails
        )
    env = env_that_shows(bad, Workers())
    with pytest.raises(
        OutsideError, match=rf"in env 0 at step 0 of task_seed -?\d+: observation {text}"
    ):
        env.step(env.reset().set("action", torch.tensor([0])))


def test_an_environment_that_cannot_be_made_is_an_error_at_once():
    class Broken(Walk):
        def __init__(self):
            raise KeyError("map")

    with pytest.raises(
        OutsideError,
        match=r"^HostedEnv: .* in env 0 while it was made: KeyError: 'map' \(.*py:\d+\)$",
    ):
        HostedEnv(Broken, num_envs=1)
    with pytest.raises(OutsideError, match=r"No module named 'nothing' \(.*faulty_envs\.py:\d+\)"):
        HostedEnv(make_unimportable, num_envs=1)


@pytest.mark.parametrize(
    ("space", "right", "wrong"),
    [
        (spaces.Discrete(3), [2, 0], [[0, 0, 1], [1, 0, 0]]),
        (spaces.Box(-1, 1, (2,)), [[0.5, 0.5]] * 2, [[0.5]] * 2),
        (spaces.MultiDiscrete([2, 3]), [[1, 2]] * 2, [[0, 1, 0, 0, 1]] * 2),
        (spaces.MultiDiscrete([4]), [[3], [1]], [[0, 0, 0, 1]] * 2),
        (spaces.MultiBinary(3), [[1, 0, 1]] * 2, [[1, 0]] * 2),
    ],
)
def test_actions_of_another_size_are_refused_and_those_of_the_size_are_not(space, right, wrong):
    env = HostedEnv(lambda: Echo(spaces.Discrete(2), space), num_envs=2)
    td = env.reset()
    dtype = env.action_spec.dtype
    with pytest.raises(ValueError, match=r"^HostedEnv: action must have shape \[2"):
        env.step(td.clone().set("action", torch.tensor(wrong, dtype=dtype)))
    env.step(td.set("action", torch.tensor(right, dtype=dtype)))
