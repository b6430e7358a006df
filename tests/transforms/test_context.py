"""The context transform: one law, checked row by row against a naive account, however one steps."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    Unbounded,
)
from torchrl.envs import (
    Compose,
    EnvBase,
    ExcludeTransform,
    GymEnv,
    InitTracker,
    Transform,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs
from yamame.actions import action_space_from_spec
from yamame.keys import CONTEXT, DONE, ENTRIES
from yamame.transforms import ContextTransform
from yamame_envs import MazeRunner, PassiveTMaze

SPECS = {
    "categorical": lambda n: Categorical(4, shape=(n,)),
    "one_hot": lambda n: OneHot(4, shape=(n, 4)),
    "multi": lambda n: MultiCategorical([3, 4], shape=(n, 2)),
    "binary": lambda n: Binary(3, shape=(n, 3)),
    "box": lambda n: Bounded(-1.0, 3.0, (n, 2)),
}


class RandomLengthEnv(EnvBase):
    """Rows whose episodes end, or are truncated, at random; rewards and observations name row and
    step.
    """

    def __init__(self, n=6, *, kind="categorical", nested=False, emits=None):
        super().__init__(batch_size=torch.Size([n]))
        self.pays = ("agent", "reward") if nested else "reward"
        self.emits = emits
        entries = {"observation": Unbounded((n, 2))}
        if emits is not None:
            entries[emits] = Categorical(2, shape=(n, 1), dtype=torch.bool)
        self.observation_spec = Composite(entries, shape=(n,))
        action, reward = SPECS[kind](n), Unbounded((n, 1))
        if nested:
            action = Composite(agent=Composite(action=action, shape=(n,)), shape=(n,))
            reward = Composite(agent=Composite(reward=reward, shape=(n,)), shape=(n,))
        self.action_spec, self.reward_spec = action, reward
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool)
        self.full_done_spec = Composite({name: flag.clone() for name in DONE}, shape=(n,))
        self.rng = torch.Generator()
        self.t = torch.zeros(n, 1)
        self.set_seed(0)

    def _set_seed(self, seed):
        self.rng.manual_seed(seed)

    def _entries(self, **more):
        row = torch.arange(self.batch_size[0]).unsqueeze(-1)
        entries = {"observation": torch.cat([row, self.t], -1), **more}
        if self.emits is not None:
            entries[self.emits] = self.t % 3 == 0
        return entries

    def _reset(self, td=None, **_):
        mask = None if td is None else td.get("_reset", None)
        self.t = torch.zeros_like(self.t) if mask is None else torch.where(mask, 0.0, self.t)
        flags = {name: torch.zeros_like(self.t, dtype=torch.bool) for name in DONE}
        return TensorDict(self._entries(**flags), self.batch_size)

    def _step(self, td):
        self.t = self.t + 1
        draw = torch.rand(self.t.shape, generator=self.rng)
        terminated, truncated = draw < 0.15, (draw >= 0.15) & (draw < 0.3)
        reward = torch.arange(self.batch_size[0]).unsqueeze(-1) * 100.0 + self.t
        out = TensorDict(
            self._entries(done=terminated | truncated, terminated=terminated, truncated=truncated),
            self.batch_size,
        )
        return out.set(self.pays, reward)


def with_context(env: EnvBase, **arguments) -> TransformedEnv:
    return TransformedEnv(env, ContextTransform(**arguments))


def naive_context(data: TensorDict, space, horizon, action_key="action", reward_key="reward"):
    """What must be shown at the root and under next of [N, T] data, one step of one row at a
    time.
    """
    rows, steps = data.shape
    done, reward, action = data["next", "done"], data["next"].get(reward_key), data.get(action_key)
    blank = torch.zeros(space.encoded_size)
    root, following = [], []
    for row in range(rows):
        t, shown = 0, (blank, 0.0, True)
        for step in range(steps):
            root.append((*shown, t))
            t += 1
            shown = (space.encode(action[row, step]), float(reward[row, step]), False)
            following.append((*shown, t))
            if done[row, step]:
                t, shown = 0, (blank, 0.0, True)

    def pack(entries):
        column = (rows, steps, 1)
        start = torch.tensor([e[2] for e in entries]).reshape(column)
        index = torch.tensor([e[3] for e in entries]).reshape(column)
        return {
            "prev_action": torch.stack([e[0] for e in entries]).reshape(rows, steps, -1),
            "prev_reward": torch.tensor([e[1] for e in entries]).reshape(column),
            "time": (index / horizon).clamp(max=1.0),
            "trial_start": start,
            "step_index": index,
            "is_init": start,
        }

    return pack(root), pack(following)


def assert_law(data: TensorDict, space, horizon, **keys) -> None:
    root, following = naive_context(data, space, horizon, **keys)
    for key in CONTEXT:
        torch.testing.assert_close(data[key], root[key], rtol=0, atol=0)
        torch.testing.assert_close(data["next", key], following[key], rtol=0, atol=0)


def loop(env: EnvBase, steps: int) -> TensorDict:
    current, data = env.reset(), []
    for _ in range(steps):
        stepped, current = env.step_and_maybe_reset(env.rand_action(current))
        data.append(stepped)
    return torch.stack(data, 1)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    "collect", [loop, lambda env, steps: env.rollout(steps, break_when_any_done=False)]
)
def test_context_equals_the_naive_account_over_desynchronised_resets(kind, collect):
    torch.manual_seed(0)
    env = with_context(RandomLengthEnv(kind=kind), horizon=10, terminate_at_horizon=False)
    data = collect(env, 60)
    starts = data["is_init"].squeeze(-1)
    assert int(starts.sum()) > 30
    assert bool((starts.any(0) & ~starts.all(0)).any())
    assert_law(data, action_space_from_spec(SPECS[kind](6), batch_dims=1), 10)


def test_the_law_notices_a_reward_that_is_one_step_late():
    """Negative control."""
    torch.manual_seed(0)
    env = with_context(RandomLengthEnv(), horizon=10, terminate_at_horizon=False)
    data = env.rollout(60, break_when_any_done=False)
    space = action_space_from_spec(SPECS["categorical"](6), batch_dims=1)
    assert_law(data, space, 10)
    for key in CONTEXT:
        late = data.clone()
        late[key] = late[key].roll(1, dims=1)
        with pytest.raises(AssertionError):
            assert_law(late, space, 10)


def test_nested_reward_and_action_keys():
    keys = {"action_key": ("agent", "action"), "reward_key": ("agent", "reward")}
    env = with_context(RandomLengthEnv(nested=True), horizon=10, terminate_at_horizon=False, **keys)
    check_env_specs(env)
    torch.manual_seed(0)
    data = env.rollout(40, break_when_any_done=False)
    assert_law(data, action_space_from_spec(SPECS["categorical"](6), batch_dims=1), 10, **keys)


def test_a_rollout_that_stops_at_the_first_end_has_the_same_context():
    torch.manual_seed(0)
    env = with_context(RandomLengthEnv(n=2), horizon=10, terminate_at_horizon=False)
    env.set_seed(18)
    data = env.rollout(60)
    assert 1 < data.shape[1] < 60
    assert_law(data, action_space_from_spec(SPECS["categorical"](2), batch_dims=1), 10)


def test_a_partial_reset_by_hand_touches_only_its_rows():
    env = with_context(RandomLengthEnv(), horizon=10, terminate_at_horizon=False)
    td = env.reset()
    for _ in range(3):
        td = env.step_mdp(env.step(env.rand_action(td)))
    before = td.clone()
    chosen = torch.tensor([True, False, False, True, False, False])
    after = env.reset(td.set("_reset", chosen.unsqueeze(-1)))
    for key in CONTEXT:
        assert torch.equal(after[key][~chosen], before[key][~chosen])
        assert not torch.equal(after[key][chosen], before[key][chosen])
    assert after["step_index"].flatten().tolist() == [0, 3, 3, 0, 3, 3]
    assert after["is_init"].squeeze(-1).equal(chosen)


def test_rows_that_are_not_stepped_keep_their_context():
    env = with_context(RandomLengthEnv(), horizon=10, terminate_at_horizon=False)
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, True, True, False, False, False])
    following = env.step(td)["next"]
    assert following["step_index"].flatten().tolist() == [1, 1, 1, 0, 0, 0]
    assert following["is_init"].flatten().tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("horizon", [None, 4])
def test_specs_hold(kind, horizon):
    env = with_context(RandomLengthEnv(kind=kind), horizon=horizon)
    check_env_specs(env, break_when_any_done="both")
    assert ("time" in set(env.observation_spec.keys())) == (horizon is not None)


def test_a_gymnasium_environment_gets_the_same_format():
    env = with_context(GymEnv("CartPole-v1", categorical_action_encoding=True), horizon=500)
    check_env_specs(env)
    env.set_seed(0)
    torch.manual_seed(0)
    data = env.rollout(100, break_when_any_done=False).unsqueeze(0)
    assert int(data["is_init"].sum()) > 2
    assert_law(data, action_space_from_spec(Categorical(2)), 500)


@pytest.mark.parametrize("horizon", [None, 1000])
def test_nothing_else_is_changed(horizon):
    plain, context = RandomLengthEnv(), with_context(RandomLengthEnv(), horizon=horizon)
    torch.manual_seed(0)
    expected = plain.rollout(30, break_when_any_done=False)
    torch.manual_seed(0)
    data = context.rollout(30, break_when_any_done=False)
    added = set(CONTEXT) - (set() if horizon else {"time"})
    more = set(data.keys(True, True)) - set(expected.keys(True, True))
    assert more == added | {("next", key) for key in added}
    for key in expected.keys(True, True):
        assert torch.equal(data[key], expected[key])


def test_reaching_the_horizon_terminates_and_earlier_truncation_stays():
    torch.manual_seed(0)
    data = with_context(RandomLengthEnv(n=50), horizon=4).rollout(40, break_when_any_done=False)
    following = data["next"]
    ended = following["step_index"] == 4
    assert int(ended.sum()) > 10
    assert bool(following["done"][ended].all())
    assert bool(following["terminated"][ended].all())
    assert not bool(following["truncated"][ended].any())
    assert int(following["step_index"].max()) == 4
    assert int(following["truncated"][~ended].sum()) > 10

    free = with_context(RandomLengthEnv(n=50), horizon=4, terminate_at_horizon=False)
    following = free.rollout(40, break_when_any_done=False)["next"]
    assert int(following["step_index"].max()) > 4
    assert float(following["time"].max()) == 1.0


def test_a_time_limit_of_the_environment_becomes_a_termination():
    torch.manual_seed(0)
    # it truncates at 200 steps, and random actions never win
    last = with_context(GymEnv("MountainCar-v0"), horizon=200).rollout(300)[-1]["next"]
    assert (bool(last["terminated"]), bool(last["truncated"]), bool(last["done"])) == (
        True,
        False,
        True,
    )
    assert int(last["step_index"]) == 200
    free = with_context(GymEnv("MountainCar-v0"), horizon=200, terminate_at_horizon=False)
    last = free.rollout(300)[-1]["next"]
    assert (bool(last["terminated"]), bool(last["truncated"])) == (False, True)


@pytest.mark.parametrize("key", ["trial_start", "is_init"])
def test_a_key_of_the_environment_itself_is_left_alone(key):
    torch.manual_seed(0)
    data = with_context(RandomLengthEnv(emits=key)).rollout(40, break_when_any_done=False)
    assert torch.equal(data[key], data["step_index"] % 3 == 0)
    assert torch.equal(data["next", key], data["next", "step_index"] % 3 == 0)
    other = {"trial_start": "is_init", "is_init": "trial_start"}[key]
    assert torch.equal(data[other], data["step_index"] == 0)


def test_an_init_tracker_below_is_respected():
    env = TransformedEnv(RandomLengthEnv(), Compose(InitTracker(), ContextTransform()))
    check_env_specs(env)
    data = env.rollout(40, break_when_any_done=False)
    assert torch.equal(data["is_init"], data["step_index"] == 0)


class Mirrored(Transform):
    """Executes the mirror image of the action it is given."""

    def _inv_call(self, tensordict):
        return tensordict.set("action", 3 - tensordict["action"])


@pytest.mark.parametrize("context_last", [True, False])
def test_the_previous_action_is_the_one_at_the_place_of_the_transform(context_last):
    parts = [Mirrored(), ContextTransform()] if context_last else [ContextTransform(), Mirrored()]
    env = TransformedEnv(RandomLengthEnv(), Compose(*parts))
    td = env.rand_action(env.reset())
    expected = td["action"] if context_last else 3 - td["action"]
    assert torch.equal(env.step(td)["next", "prev_action"].argmax(-1), expected)


@pytest.mark.parametrize(
    ("build", "limit"),
    [
        (lambda: MazeRunner(num_envs=8, size=7, num_goals=2, time_limit=20, seed=3), 20),
        (lambda: PassiveTMaze(num_envs=8, length=6, seed=3), None),
    ],
)
def test_native_environments_show_the_same_context(build, limit):
    native = build()
    if limit is None:
        limit = native.time_limit
    torch.manual_seed(0)
    # a random walk that prefers one direction, so that episodes end at different times
    actions = torch.where(torch.rand(8, 80) < 0.5, 2, torch.randint(0, 4, (8, 80)))

    def play(env):
        current, data = env.reset(), []
        for step in range(80):
            stepped, current = env.step_and_maybe_reset(
                current.set("action", actions[:, step].clone())
            )
            data.append(stepped)
        return torch.stack(data, 1)

    def wrapped(horizon):
        parts = Compose(ExcludeTransform(*CONTEXT), ContextTransform(horizon=horizon))
        return play(TransformedEnv(build(), parts))

    expected, data = play(native), wrapped(limit)
    assert set(data.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        torch.testing.assert_close(data[key], expected[key], rtol=0, atol=0)
    assert int(expected["is_init"].sum()) > 8
    assert not torch.equal(wrapped(limit + 1)["time"], expected["time"])


def test_context_is_declared_alike_by_transform_environments_and_format():
    native = MazeRunner(num_envs=8, size=7, num_goals=2, time_limit=20)
    wrapped = TransformedEnv(
        MazeRunner(num_envs=8, size=7, num_goals=2, time_limit=30),
        Compose(ExcludeTransform(*CONTEXT), ContextTransform(horizon=20)),
    )
    declared = {entry.name: entry for entry in ENTRIES}
    for key in CONTEXT:
        spec = native.observation_spec[key]
        assert wrapped.observation_spec[key] == spec
        assert spec.dtype == getattr(torch, declared[key].dtype)
        assert spec.shape == (8, 5 if key == "prev_action" else 1)
    free = with_context(RandomLengthEnv(n=8), horizon=20, terminate_at_horizon=False)
    assert free.observation_spec["step_index"] != native.observation_spec["step_index"]


def test_on_a_native_environment_the_transform_adds_nothing():
    native = MazeRunner(num_envs=2, size=7, num_goals=1, time_limit=20)
    assert set(with_context(native).observation_spec.keys()) == set(native.observation_spec.keys())


def test_impossible_uses_are_refused():
    with pytest.raises(ValueError, match=r"ContextTransform: horizon must .*, got 0"):
        ContextTransform(0)
    env = RandomLengthEnv()
    env.reward_spec = Unbounded((6, 2))
    with pytest.raises(ValueError, match=r"shape of reward must be of one number, got \(2,\)"):
        _ = with_context(env).observation_spec
    with pytest.raises(NotImplementedError, match="append it to an environment"):
        ContextTransform()(TensorDict())
