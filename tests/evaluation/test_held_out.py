"""Evaluation: one whole episode per env, reproducible, and nothing left behind."""

import gc
import math
from typing import ClassVar

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv, TensorDictPrimer, TransformedEnv
from torchrl.envs.utils import ExplorationType, exploration_type
from yamame.evaluation import EvaluationResult, evaluate, mean_interval, wilson_interval
from yamame.evaluation.held_out import act
from yamame.evaluation.result import concatenate
from yamame.exploration import EpsilonGreedy
from yamame.goals import GOAL_PAD
from yamame.timestep import RunningNormalizer
from yamame.transforms import ContextTransform
from yamame_envs import MazeRunner

LENGTHS = (1, 2, 3, 5, 8, 9)


class CueEnv(EnvBase):
    """A bit is observed at the first step only; every later step pays 1 for answering it.

    A trial is three steps. Env i's first episode has LENGTHS[i] steps; every later one has one step
    and pays
    1000. Env i succeeds on the step in the middle of its first episode if i is even, and always
      later.
    """

    def __init__(self, lengths=LENGTHS, *, trials: bool = True, goals: bool = True):
        n = len(lengths)
        super().__init__(batch_size=torch.Size([n]))
        self.lengths = torch.tensor(lengths).unsqueeze(-1)
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool)
        entries = {
            "observation": Unbounded((n, 1)),
            "is_init": flag.clone(),
            "success": flag.clone(),
        }
        if trials:
            entries["trial_start"] = flag.clone()
        if goals:
            entries["goal"] = Unbounded((n, 3, 1))
        self.observation_spec = Composite(entries, shape=(n,))
        self.action_spec = Categorical(2, shape=(n,))
        self.reward_spec = Unbounded((n, 1))
        names = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: flag.clone() for name in names}, shape=(n,))
        self.rng = torch.Generator()
        self.set_seed(0)

    def _set_seed(self, seed):
        self.rng.manual_seed(seed)

    def _entries(self, first, **more):
        n, slot = self.batch_size[0], torch.arange(3)
        entries = {
            "observation": torch.where(self.t == 0, self.cue * 2.0 - 1.0, 0.0),
            "is_init": first,
            "trial_start": self.t % 3 == 0,
            "success": torch.zeros_like(first),
            "goal": torch.where(slot <= torch.arange(n).unsqueeze(-1) % 3, 1.0, GOAL_PAD).unsqueeze(
                -1
            ),
        }
        declared = set(self.observation_spec.keys())
        return {key: value for key, value in entries.items() if key in declared} | more

    def _reset(self, td=None, **_):
        mask = None if td is None else td.get("_reset", None)
        drawn = torch.randint(0, 2, (self.batch_size[0], 1), generator=self.rng)
        if mask is None:
            self.t, self.cue = torch.zeros_like(drawn), drawn
            self.later = torch.zeros_like(drawn, dtype=torch.bool)
            mask = torch.ones_like(self.later)
        else:
            self.t, self.cue = torch.where(mask, 0, self.t), torch.where(mask, drawn, self.cue)
            self.later = self.later | mask
        flags = {name: torch.zeros_like(mask) for name in ("done", "terminated", "truncated")}
        return TensorDict(self._entries(mask, **flags), self.batch_size)

    def _step(self, td):
        paid = (td["action"].unsqueeze(-1) == self.cue).float() * (self.t > 0)
        reward = torch.where(self.later, 1000.0, paid)
        self.t = self.t + 1
        done = (self.t >= self.lengths) | self.later
        even = torch.arange(self.batch_size[0]).unsqueeze(-1) % 2 == 0
        success = even & (self.t == self.lengths // 2 + 1) | self.later
        no = torch.zeros_like(done)
        more = {
            "success": success,
            "reward": reward,
            "terminated": done,
            "done": done.clone(),
            "truncated": no,
        }
        return TensorDict(self._entries(no.clone(), **more), self.batch_size)


class Remember(TensorDictModuleBase):
    """Answers with the last cue it saw since its memory was cleared, 0 without one; also keeps
    statistics.
    """

    def __init__(self):
        super().__init__()
        self.in_keys, self.out_keys = ["observation", "is_init"], ["action"]
        self.normalizer = RunningNormalizer(1)
        self.memory = None

    def reset_memory(self):
        self.memory = None

    def forward(self, td):
        x = td["observation"]
        self.normalizer(x)
        memory = torch.zeros_like(x) if self.memory is None else self.memory
        memory = torch.where(td["is_init"], 0.0, memory)
        self.memory = torch.where(x != 0, x, memory)
        return td.set("action", (self.memory.squeeze(-1) > 0).long())


class Coin(TensorDictModuleBase):
    """Tosses a coin when sampling, always answers 1 when greedy."""

    in_keys: ClassVar = ["observation"]
    out_keys: ClassVar = ["action"]

    def forward(self, td):
        action = torch.randint(0, 2, td.batch_size)
        if exploration_type() is ExplorationType.DETERMINISTIC:
            action = torch.ones_like(action)
        return td.set("action", action)


def test_every_env_plays_exactly_its_first_episode():
    result = evaluate(Remember(), CueEnv())
    assert result.lengths.tolist() == list(LENGTHS)
    assert result.returns.tolist() == [
        float(length - 1) for length in LENGTHS
    ]  # a later episode pays 1000
    assert result.finished.all()
    assert result.success.tolist() == [True, False] * 3
    assert result.num_goals.tolist() == [1, 2, 3, 1, 2, 3]


def test_counting_whatever_finishes_first_would_be_biased():
    """Negative control: the first six episodes to finish, envs resetting freely, are much
    shorter.
    """
    env, policy = CueEnv(), Remember()
    current, finished, age = env.reset(), [], torch.zeros(6)
    while len(finished) < 6:
        stepped, current = env.step_and_maybe_reset(policy(current))
        age += 1
        done = stepped["next", "done"].squeeze(-1)
        finished += age[done].tolist()
        age[done] = 0
    assert sum(finished[:6]) / 6 < 2
    assert float(evaluate(Remember(), CueEnv()).lengths.double().mean()) == pytest.approx(
        sum(LENGTHS) / 6
    )


def test_trial_returns_equal_a_naive_account():
    env = CueEnv()
    torch.manual_seed(0)
    result = evaluate(Remember(), env)
    expected = torch.full((6, 3), torch.nan, dtype=torch.float64)
    for env_index, length in enumerate(LENGTHS):
        for t in range(length):
            before = 0.0 if t % 3 == 0 else float(expected[env_index, t // 3])
            expected[env_index, t // 3] = before + (1.0 if t > 0 else 0.0)
    torch.testing.assert_close(result.trial_returns, expected, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(result.trial_returns.nansum(-1), result.returns, rtol=0, atol=0)


@pytest.mark.parametrize("keeps", [False, True])
def test_what_an_evaluation_holds_does_not_grow_with_its_steps(keeps):
    class Counting(Remember):
        def forward(self, td):
            self.calls, self.kept = self.calls + 1, [*self.kept, td.clone()] if keeps else []
            if self.calls in (20, 220):
                gc.collect()
                self.counts[self.calls] = sum(
                    issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()
                )
            return super().forward(td)

    policy = Counting()
    policy.calls, policy.kept = 0, []
    policy.counts = counts = {}
    Counting.__deepcopy__ = lambda self, memo: self
    gc.freeze()  # what was there before is not looked at
    try:
        evaluate(policy, CueEnv((230,) * 3, trials=False))
    finally:
        gc.unfreeze()
    grown = counts[220] - counts[20]
    assert grown >= 200 if keeps else grown <= 10  # a step that is kept has several tensors


def test_without_trials_goals_or_success_these_stay_empty():
    result = evaluate(Remember(), CueEnv(trials=False, goals=False))
    assert result.trial_returns.shape == (6, 1)
    assert result.num_goals is None
    assert not any(key.endswith("goals") or "trial" in key for key in result.summary())


def test_wiping_the_memory_shows_what_memory_is_worth():
    with_memory = evaluate(Remember(), CueEnv(), num_episodes=60)
    wiped = evaluate(Remember(), CueEnv(), num_episodes=60, memory_reset="every_step")
    assert with_memory.returns[:6].tolist() == [float(length - 1) for length in LENGTHS]
    assert wiped.lengths.equal(with_memory.lengths)
    assert float(wiped.returns.sum()) < 0.75 * float(with_memory.returns.sum())
    # without its memory it always answers 0: all right or all wrong
    assert set((wiped.returns / with_memory.returns).nan_to_num(0).tolist()) == {0.0, 1.0}


def test_memory_wiped_once_per_trial_lasts_until_the_next_one_begins():
    options = {"num_episodes": 60}
    kept = evaluate(Remember(), CueEnv(), **options)
    per_trial = evaluate(Remember(), CueEnv(), memory_reset="every_trial", **options)
    every_step = evaluate(Remember(), CueEnv(), memory_reset="every_step", **options)
    assert per_trial.trial_returns[:, 0].equal(kept.trial_returns[:, 0])
    assert (
        per_trial.trial_returns[:, 1:]
        .nan_to_num()
        .equal(every_step.trial_returns[:, 1:].nan_to_num())
    )
    assert (
        float(every_step.returns.sum()) < float(per_trial.returns.sum()) < float(kept.returns.sum())
    )
    with pytest.raises(ValueError, match="emit trial_start for memory_reset=every_trial"):
        evaluate(Remember(), CueEnv(trials=False), memory_reset="every_trial")


def test_wiping_needs_to_know_where_memory_begins():
    env = GymEnv("CartPole-v1")
    with pytest.raises(ValueError, match="env must emit is_init for memory_reset=every_step, got"):
        evaluate(Coin(), env, memory_reset="every_step")


@pytest.mark.parametrize(
    ("former", "present"), [(False, "never"), (True, "every_step"), ("trials", "every_trial")]
)
def test_the_former_argument_for_resets_of_memory_warns_and_does_the_same(former, present):
    with pytest.warns(DeprecationWarning, match=f"memory_reset='{present}'"):
        found = evaluate(Remember(), CueEnv(), memory_wiped=former)
    assert found.returns.equal(evaluate(Remember(), CueEnv(), memory_reset=present).returns)
    with pytest.raises(ValueError, match=r"memory_reset .*'sometimes'"):
        evaluate(Remember(), CueEnv(), memory_reset="sometimes")


@pytest.mark.parametrize("reset", ["never", "every_step", "every_trial"])
def test_the_environment_keeps_its_own_starts_whatever_the_policy_sees(reset):
    acted = act(
        Remember(), CueEnv().reset().set("is_init", torch.zeros(6, 1).bool()), "action", reset
    )
    assert not acted["is_init"].any()


def test_an_evaluation_is_reproducible_and_leaves_the_global_generator_alone():
    env = CueEnv()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = evaluate(Coin(), env, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(10)
    again = evaluate(Coin(), env, seed=5)
    other = evaluate(Coin(), env, seed=6)
    assert torch.equal(first.returns, again.returns)
    assert not torch.equal(first.returns, other.returns)


def test_the_policy_is_left_as_it_was():
    policy = Remember()
    policy(CueEnv().reset())
    memory = policy.memory.clone()
    weights = {key: value.clone() for key, value in policy.state_dict().items()}
    evaluate(policy, CueEnv(), seed=3)
    assert torch.equal(policy.memory, memory)
    assert policy.training
    assert all(torch.equal(value, weights[key]) for key, value in policy.state_dict().items())
    assert int(policy.normalizer.num_updates) == 1


def test_the_policy_is_in_evaluation_mode():
    class Strict(Coin):
        def forward(self, td):
            assert not self.training
            return super().forward(td)

    evaluate(Strict(), CueEnv())


def test_a_memory_from_before_does_not_reach_the_evaluation():
    policy = Remember()
    policy.memory = torch.ones(99, 1)  # of another number of envs: would not even fit
    assert torch.equal(evaluate(policy, CueEnv()).returns, evaluate(Remember(), CueEnv()).returns)


def test_exploration_is_off_and_sampling_is_on():
    noise = EpsilonGreedy(Categorical(2), anneal_steps=1, start=1.0, end=1.0)
    policy = TensorDictSequential(Remember(), noise)
    assert torch.equal(evaluate(policy, CueEnv()).returns, evaluate(Remember(), CueEnv()).returns)
    assert noise.enabled
    torch.manual_seed(0)
    td = CueEnv((3,) * 50).reset()
    assert not torch.equal(policy(td.clone())["action"], Remember()(td.clone())["action"])

    sampled = evaluate(Coin(), CueEnv((9,) * 50))
    greedy = evaluate(Coin(), CueEnv((9,) * 50), greedy=True)
    assert set(greedy.returns.tolist()) == {0.0, 8.0}
    assert int(((sampled.returns > 0) & (sampled.returns < 8)).sum()) > 0


def test_more_episodes_are_played_in_rounds_and_the_last_is_cut():
    result = evaluate(Remember(), CueEnv(), num_episodes=15)
    assert result.lengths.tolist() == [*LENGTHS, *LENGTHS, *LENGTHS[:3]]
    assert result.trial_returns.shape == (15, 3)
    assert evaluate(Remember(), CueEnv(), num_episodes=2).lengths.tolist() == [1, 2]
    assert evaluate(Remember(), CueEnv(), num_episodes=2).trial_returns.shape == (2, 1)


class Noted(MazeRunner):
    """Notes the tasks that every round begins with."""

    def _reset(self, tensordict=None, **options):
        out = super()._reset(tensordict, **options)
        if tensordict is None:
            self.begun.append(self.env_state.task["task_seed"].tolist())
        return out


def test_the_tasks_of_later_rounds_do_not_depend_on_the_policy():
    begun = []
    for policy in (lambda: torch.full((2,), 4), lambda: torch.randint(0, 5, (2,))):
        env = Noted(num_envs=2, size=5, num_goals=1, time_limit=40)
        env.begun = []
        result = evaluate(
            lambda td, act=policy: td.set("action", act()), env, num_episodes=8, seed=5
        )
        begun.append(env.begun)
    assert result.lengths.unique().numel() > 1, "envs must wait for each other to show anything"
    assert begun[0] == begun[1]
    assert len({task for tasks in begun[0] for task in tasks}) == 8


def test_a_step_limit_cuts_and_says_so():
    result = evaluate(Remember(), CueEnv(), max_steps=4)
    assert result.lengths.tolist() == [1, 2, 3, 4, 4, 4]
    assert result.finished.tolist() == [True] * 3 + [False] * 3
    assert result.summary()["finished"] == 0.5


class FailingCueEnv(CueEnv):
    """Its env 2 fails with the last step of its first episode."""

    def _step(self, tensordict):
        stepped = super()._step(tensordict)
        failed = stepped["done"] & (torch.arange(len(LENGTHS)) == 2).unsqueeze(-1)
        return stepped.set("aborted", failed)


def test_an_episode_in_which_the_environment_failed_is_not_finished():
    sound, failing = evaluate(Coin(), CueEnv()), evaluate(Coin(), FailingCueEnv())
    assert sound.finished.all()
    assert failing.finished.tolist() == [True, True, False, True, True, True]
    assert torch.equal(sound.lengths, failing.lengths)


def test_an_environment_without_batch_dimension_is_evaluated_as_one():
    class CountRows(Coin):
        shapes: ClassVar = []

        def forward(self, td):
            self.shapes.append(tuple(td.batch_size))
            return super().forward(td)

    env = TransformedEnv(
        GymEnv("CartPole-v1", categorical_action_encoding=True), ContextTransform(horizon=500)
    )
    result = evaluate(CountRows(), env, num_episodes=3)
    assert result.lengths.shape == (3,)
    assert torch.equal(result.returns, result.lengths.double())
    assert set(CountRows.shapes) == {(1,)}
    wiped = evaluate(CountRows(), env, num_episodes=3, memory_reset="every_step")
    assert torch.equal(result.lengths, wiped.lengths)


def test_a_state_that_a_policy_keeps_in_the_tensordict_travels_on():
    class Counting(Coin):
        out_keys: ClassVar = ["action", ("next", "count")]
        seen: ClassVar = []

        def forward(self, td):
            self.seen.append(int(td["count"].max()))
            return super().forward(td.set(("next", "count"), td["count"] + 1))

    single = GymEnv("CartPole-v1", categorical_action_encoding=True)
    for env, shape in ((single, (1,)), (CueEnv((9,)), (1, 1))):
        state = Composite(count=Unbounded(shape, dtype=torch.int64), shape=shape[:-1])
        with_state = TransformedEnv(env, TensorDictPrimer(state))
        Counting.seen.clear()
        length = int(evaluate(Counting(), with_state).lengths)
        assert length > 3
        assert Counting.seen == list(range(length))


def test_the_summary_reports_means_and_intervals():
    result = EvaluationResult(
        returns=torch.tensor([0.0, 1.0, 2.0, 5.0]).double(),
        lengths=torch.tensor([1, 2, 3, 4]),
        finished=torch.tensor([True, True, True, False]),
        trial_returns=torch.tensor([[0.0, 2.0], [1.0, 0.0], [1.0, 1.0], [2.0, 3.0]]).double(),
        success=torch.tensor([False, True, True, True]),
        num_goals=torch.tensor([1, 1, 3, 3]),
    )
    low, high = wilson_interval(3, 4)
    return_low, return_high = mean_interval(result.returns)
    assert result.summary() == {
        "num_episodes": 4.0,
        "finished": 0.75,
        "length_mean": 2.5,
        "return_mean": 2.0,
        "return_low": return_low,
        "return_high": return_high,
        "return_mean_trial_0": 1.0,
        "return_mean_trial_1": 1.5,
        "success_mean": 0.75,
        "success_low": low,
        "success_high": high,
        "success_mean_1_goals": 0.5,
        "success_mean_3_goals": 1.0,
    }
    assert result.summary(confidence=0.5)["success_low"] > low
    assert all(
        isinstance(value, float) and math.isfinite(value) for value in result.summary().values()
    )


@pytest.mark.parametrize(
    ("counts", "common"),
    [([3, 3, 3], 3), ([3, 4, 3], 2), ([2, 5, 9], 1), ([1, 2, 2], 1), ([1, 1, 1], 1)],
)
def test_trials_that_only_quick_episodes_had_are_in_no_curve(counts, common):
    returns = torch.arange(3.0 * max(counts)).view(3, -1).double()
    returns[torch.arange(max(counts)) >= torch.tensor(counts).unsqueeze(1)] = torch.nan
    result = EvaluationResult(
        torch.ones(3).double(), torch.ones(3).long(), torch.ones(3).bool(), returns
    )
    assert torch.equal(result.common_trials(), returns[:, :common])
    assert result.trial_curve()["mean"] == returns[:, :common].mean(0).tolist()
    named = [key for key in result.summary() if "trial" in key]
    assert len(named) == (common if common > 1 else 0)


def test_results_of_rounds_with_different_numbers_of_trials_join():
    def part(trials):
        one = torch.ones(1).double()
        return EvaluationResult(one, one.long(), one.bool(), torch.ones(1, trials).double())

    joined = concatenate([part(1), part(3)])
    assert joined.trial_returns.isnan().tolist() == [[False, True, True], [False, False, False]]
    assert joined.success is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_episodes": 0}, "evaluate: num_episodes must be at least 1, got 0"),
        ({"max_steps": -1}, "evaluate: max_steps must be at least 1, got -1"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(Coin(), CueEnv(), **arguments)


def test_an_environment_with_several_batch_dimensions_is_refused():
    class Grid(CueEnv):
        batch_dims = 2

    with pytest.raises(ValueError, match="env must have at most one batch dimension, got"):
        evaluate(Coin(), Grid())


class FewTasks(MazeRunner):
    """A split of any number of tasks, of which each side has as many as given."""

    num_tasks = 2

    def task_hashes(self):
        return torch.arange(self.batch_size.numel()) % self.num_tasks


@pytest.mark.parametrize(
    ("split", "num_tasks", "num_episodes", "is_reported"),
    [
        ("test", 2, 32, True),
        ("train", 7, 40, True),
        ("test", 8, 32, False),
        ("test", 2, 31, False),
        ("all", 2, 32, False),
    ],
)
def test_few_tasks_of_a_side_of_the_split_are_reported(
    capsys, split, num_tasks, num_episodes, is_reported
):
    env = FewTasks(num_envs=num_episodes, size=9, time_limit=3, num_goals=1, split=split)
    env.num_tasks = num_tasks
    evaluate(env.rand_action, env)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == is_reported
    for line in lines:
        assert f"{num_episodes} episodes have met only {num_tasks} different tasks" in line
    evaluate(env.rand_action, env, task_seeds=list(range(num_episodes)))
    assert capsys.readouterr().err == ""
