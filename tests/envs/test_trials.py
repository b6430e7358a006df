import copy
import pickle
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv, TransformedEnv
from torchrl.envs.transforms import RewardSum
from torchrl.envs.utils import check_env_specs
from yamame.checks import ArgumentError
from yamame.evaluation import evaluate
from yamame_envs import Gym, HostedEnv, MetaFrozenLake, PassiveTMaze, Workers, XLand
from yamame_envs.streams import fold
from yamame_envs.trials import RepeatedTrials

SETTINGS = [
    {"num_trials": 3},
    {"num_trials": None, "horizon": 17},
    {"num_trials": 3, "horizon": 16},
    {"num_trials": 4, "num_warmup": 2},
    {"num_trials": None, "horizon": 23, "num_warmup": 1},
]


class Guess(EnvBase):
    """A foreign environment: the last action of a trial pays 1 if it is the hidden side of the task
    seed.

    Whatever is returned of rows that are not reset is rubbish, and where a trial begins is noise of
    its own.
    """

    def __init__(self, num_envs, *, length=3, ragged=False, continuous=False, hears=True):
        super().__init__(batch_size=torch.Size([num_envs]))
        batch, column = self.batch_size, (num_envs, 1)
        sight = Composite(
            steps=Unbounded((*column,)), picture=Unbounded((num_envs, 2, 2)), shape=batch
        )
        self.observation_spec = Composite(sight=sight, noise=Unbounded(column), shape=batch)
        low = torch.tensor([-1.0, -3.0]).expand(num_envs, 2)
        box = Bounded(low, -low, shape=(num_envs, 2), dtype=torch.float32)
        self.action_spec = box if continuous else Categorical(2, shape=batch, dtype=torch.int64)
        self.reward_spec = Unbounded(column)
        flag = Categorical(2, shape=column, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), shape=batch)
        self.ragged, self.continuous, self.hears = ragged, continuous, hears
        self.least = length
        self.length = torch.full(batch, length)
        self.side = torch.zeros(num_envs, dtype=torch.int64)
        self.steps = torch.zeros(num_envs, dtype=torch.int64)
        self.noise = torch.zeros(column)
        self.generator = torch.Generator()

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)

    def _seen(self):
        steps = self.steps.unsqueeze(-1).float()
        sight = TensorDict(
            {"steps": steps, "picture": steps.unsqueeze(-1).expand(-1, 2, 2).clone()},
            self.batch_size,
        )
        return TensorDict({"sight": sight, "noise": self.noise.clone()}, self.batch_size)

    def _reset(self, tensordict=None, **_):
        rows = torch.ones(self.batch_size, dtype=torch.bool)
        seed = torch.randint(99, self.batch_size, generator=self.generator)
        if tensordict is not None and "_reset" in tensordict.keys():
            rows = tensordict["_reset"].squeeze(-1)
        if self.hears and tensordict is not None and "task_seed" in tensordict.keys():
            seed = tensordict["task_seed"].squeeze(-1)
        self.side = torch.where(rows, seed % 2, self.side)
        self.steps = torch.where(rows, 0, self.steps)
        self.length = torch.where(rows, self.least + self.ragged * (seed % 3), self.length)
        drawn = torch.rand(self.noise.shape, generator=self.generator)
        self.noise = torch.where(rows.unsqueeze(-1), drawn, self.noise)
        seen = self._seen()
        return seen.where(rows, torch.full_like(seen, -77.0))

    def _step(self, tensordict):
        action = tensordict["action"]
        chosen = (action[:, 1] > 0).long() if self.continuous else action
        self.steps = self.steps + 1
        last = self.steps >= self.length
        reward = (last & (chosen == self.side)).float().unsqueeze(-1)
        return self._seen().update({"reward": reward, "terminated": last.unsqueeze(-1)})


class Chooser:
    """Acts on the side it believes in; changes its belief when a trial paid nothing."""

    def __init__(self, num_envs, *, forgets):
        self.side = torch.zeros(num_envs, dtype=torch.int64)
        self.forgets = forgets

    def __call__(self, td):
        judged = td["trial_start"] & ~td["is_init"]
        wrong = (judged & (td["prev_reward"] <= 0)).squeeze(-1)
        self.side = torch.where(wrong, 1 - self.side, self.side)
        forget = td["trial_start"] if self.forgets else td["is_init"]
        self.side = self.side.masked_fill(forget.squeeze(-1), 0)
        return td.set("action", self.side.clone())


def naive(make, row, actions, *, num_trials, horizon=None, num_warmup=0, seed=0):
    """One row played by a plain loop over trials: the timestep left and the one reached, for every
    step.
    """
    inner = make(num_envs=1)
    horizon = num_trials * inner.time_limit if horizon is None else horizon
    size = inner.observation_spec["prev_action"].shape[-1]
    passed = [
        key
        for key in ("observation", "direction", "hidden", "goal", "aborted")
        if key in inner.observation_spec.keys()
    ]
    tells_success = "success" in inner.observation_spec.keys()
    actions, episode, steps = iter(actions), 0, []

    def begin(task_seed):
        return inner.reset(TensorDict({"task_seed": task_seed.view(1, 1)}, [1]))

    def timestep(inner_td, t, prev_action, prev_reward, **flags):
        own = {
            "prev_action": prev_action,
            "prev_reward": prev_reward,
            "time": t / horizon,
            "step_index": t,
        }
        own |= {
            "is_init": False,
            "done": False,
            **({"success": False} if tells_success else {}),
            **flags,
        }
        own |= {
            "terminated": own["done"],
            "truncated": False,
            "trial_start": bool(inner_td["trial_start"]),
        }
        return own | {key: inner_td[key][0].clone() for key in passed}

    while True:
        key = fold(torch.tensor(seed), row, episode)
        now = begin(key)
        shown = timestep(now, 0, [0.0] * size, 0.0, is_init=True)
        trial, success = 0, False
        for t in range(1, horizon + 1):
            action = next(actions, None)
            if action is None:
                return steps
            after = inner.step(now.set("action", action.unsqueeze(0)))["next"]
            paid = 0.0 if trial < num_warmup else float(after["reward"])
            trial_over = bool(after["done"])
            if trial_over:
                trial, success = trial + 1, tells_success and bool(after["success"])
            done = t == horizon or trial == num_trials
            now = begin(key) if trial_over and not done else after
            end = {"success": done and success} if tells_success else {}
            following = timestep(
                now, t, after["prev_action"][0].tolist(), float(after["reward"]), done=done, **end
            )
            steps.append((shown, {**following, "reward": paid}))
            shown = following
            if done:
                break
        episode += 1


def agree(expected, played, row):
    """The naive timesteps of an env equal those of a batch, and no entry is missing or in
    excess.
    """
    for name in played.keys():
        values = torch.stack([torch.as_tensor(timestep.pop(name)) for timestep in expected])
        assert torch.equal(
            played[name][:, row].view(values.shape), values.to(played[name].dtype)
        ), name
    assert not any(expected)


def _compare_with_the_plain_loop(make, settings, play, actions_of):
    env = RepeatedTrials(make(num_envs=3, seed=8), **settings, seed=5)
    steps = env.time_limit + 15  # to the end of the longest episode, and into the next
    played = torch.stack(play(env, steps)[0])
    actions = actions_of(env, steps)
    begun = ended = 0
    for row in range(3):
        expected = naive(make, row, [action[row] for action in actions], **settings, seed=5)
        assert len(expected) == steps
        begun += sum(now["trial_start"] and not now["is_init"] for now, _ in expected)
        ended += sum(after["done"] for _, after in expected)
        # `now` and the timestep before it may be one dictionary.
        agree([dict(now) for now, _ in expected], played.exclude("next", "action"), row)
        agree([dict(after) for _, after in expected], played["next"], row)
    assert begun >= 1, "new trials within episodes must be seen"
    assert ended >= 1


def test_all_rows_play_as_a_plain_loop_over_trials_plays_them(number, make, play, actions_of):
    """Every kind with one of the settings, every setting with several kinds."""
    _compare_with_the_plain_loop(make, SETTINGS[number % len(SETTINGS)], play, actions_of)


def test_specs_describe_what_is_returned(number, make):
    env = RepeatedTrials(make(num_envs=3), **SETTINGS[(number + 2) % len(SETTINGS)])
    check_env_specs(env, break_when_any_done="both")


def test_the_fused_step_equals_step_and_reset(inner, play, same):
    def build():
        return RepeatedTrials(inner(num_envs=5), num_trials=3, horizon=19, num_warmup=1)

    fused, td = play(build(), 40)
    plain, td_plain = play(build(), 40, fused=False)
    for a, b in zip(fused, plain, strict=True):
        same(a, b)
    same(td, td_plain.exclude("action"))
    assert torch.stack([s["next", "done"] for s in fused]).sum() >= 10


def test_the_task_is_one_within_an_episode_and_another_in_the_next(maze):
    """Control: without the wrapper, every trial would be another task."""

    def tasks(env, memory, boundary):
        td, seen = env.reset(), []
        for _ in range(120):
            td["action"] = torch.full((6,), 4)
            if bool(td[boundary].any()):
                assert bool(td[boundary].all())
                seen.append(
                    (
                        bool(td["is_init"].all()),
                        memory.task["walls"].clone(),
                        memory.task["task_seed"].clone(),
                    )
                )
            _, td = env.step_and_maybe_reset(td)
        return seen

    inner = maze(num_envs=6, time_limit=10, size=9)
    seen = tasks(RepeatedTrials(inner, num_trials=3), inner.env_state, "trial_start")
    assert [first for first, *_ in seen] == [True, False, False] * 4
    for index, (_, walls, seeds) in enumerate(seen):
        assert torch.equal(walls, seen[index // 3 * 3][1])
        assert torch.equal(
            seeds, fold(fold(torch.zeros(6, dtype=torch.int64), torch.arange(6)), index // 3)
        )
    assert all(bool((seen[0][1] != seen[index][1]).any(1).all()) for index in (3, 6, 9))
    bare = maze(num_envs=6, time_limit=10, size=9)
    alone = tasks(bare, bare.env_state, "trial_start")
    assert all(bool((a[2] != b[2]).all() and (a[1] != b[1]).any()) for a, b in pairwise(alone))


def test_a_step_that_ends_a_trial_shows_the_next_trial_and_what_the_step_brought(corridor):
    env = RepeatedTrials(corridor(num_envs=1, length=1), num_trials=2)
    td = env.reset()
    side = td["observation"][0, 1].clone()
    up = 1 if side > 0 else 3
    rewards, starts, observations = [], [], []
    for action in (0, up, 0, 0):
        td, _ = env.step_and_maybe_reset(td.set("action", torch.tensor([action])))
        after = td["next"]
        rewards.append((after["reward"].item(), after["prev_reward"].item()))
        starts.append(after["trial_start"].item())
        observations.append(after["observation"][0].tolist())
        assert after["prev_action"][0].argmax() == action
        last, td = after, after.clone().exclude("reward")
    assert rewards == [(0.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    assert starts == [False, True, False, False]
    assert observations == [[1.0, 0.0], [0.0, side.item()], [1.0, 0.0], [1.0, 0.0]]
    assert last["terminated"].item()
    assert not last["truncated"].item()
    assert not last["success"].item(), "only the last completed trial decides"


def test_success_is_that_of_the_last_completed_trial(corridor):
    """The second of two trials is solved; a third is cut by the horizon and does not count."""
    for horizon, expected in ((3, False), (4, True), (5, True), (6, False)):
        env = RepeatedTrials(corridor(num_envs=1, length=1), num_trials=None, horizon=horizon)
        td = env.reset()
        up = 1 if td["observation"][0, 1] > 0 else 3
        seen = []
        for action in (0, 0, 0, up, 0, 0)[:horizon]:
            td, following = env.step_and_maybe_reset(td.set("action", torch.tensor([action])))
            seen.append((td["next", "success"].item(), td["next", "done"].item()))
            td = following
        assert seen == [(False, False)] * (horizon - 1) + [(expected, True)]


def test_a_warm_up_trial_shows_its_reward_but_does_not_pay_it(drift, play):
    settings = {"num_trials": 3, "horizon": 30}
    paid, _ = play(RepeatedTrials(drift(num_envs=4), **settings), 60)
    warmed, _ = play(RepeatedTrials(drift(num_envs=4), **settings, num_warmup=2), 60)
    trial = torch.zeros(4, 1, dtype=torch.int64)
    free = 0
    for a, b in zip(paid, warmed, strict=True):
        trial = torch.where(a["is_init"], 0, trial + a["trial_start"].long())
        assert torch.equal(a["next", "prev_reward"], b["next", "prev_reward"])
        assert torch.equal(b["next", "reward"], a["next", "reward"] * (trial >= 2))
        assert (a["next", "reward"] != 0).any()
        free += int((trial < 2).sum())
    assert 0 < free < 240


def test_a_chosen_task_is_played_in_every_trial_and_the_numbered_episodes_wait(maze, same):
    inner = maze(num_envs=3)
    env = RepeatedTrials(inner, num_trials=4)
    chosen = torch.tensor([[5], [6], [7]])
    td = env.reset(TensorDict({"task_seed": chosen.clone()}, [3])).exclude("task_seed")
    for _ in range(13 * 3 + 1):
        assert torch.equal(inner.env_state.task["task_seed"], chosen.squeeze(-1))
        _, td = env.step_and_maybe_reset(td.set("action", torch.full((3,), 4)))
    same(env.reset(), RepeatedTrials(maze(num_envs=3), num_trials=4).reset())


def test_a_partial_reset_touches_only_its_rows(inner, play, same):
    def build():
        return RepeatedTrials(inner(num_envs=6), num_trials=3)

    env = build()
    _, td = play(env, 8)
    before = td.clone()
    mask = torch.tensor([0, 1, 0, 0, 1, 0]).bool().unsqueeze(-1)
    after = env.reset(td.set("_reset", mask))
    kept = (~mask).squeeze(-1)
    same(before.exclude("_reset")[kept], after[kept])
    assert after["is_init"][mask].all()
    assert (after["step_index"][mask] == 0).all()
    assert (after["prev_action"][~kept] == 0).all()
    undisturbed, _ = play(build(), 20)
    continued, _ = play(env, 12, td=after, start=8)
    for a, b in zip(continued, undisturbed[8:], strict=True):
        same(a[kept], b[kept])


def test_the_same_seed_replays_and_another_does_not(inner, play, same, different):
    def run(seed, inner_seed=0, again=None):
        env = RepeatedTrials(inner(num_envs=3, seed=inner_seed), num_trials=2, seed=seed)
        if again is not None:
            play(env, 17)
            env.set_seed(again)
        return torch.stack(play(env, 50)[0])

    first = run(4)
    same(first, run(4))
    same(first, run(4, inner_seed=9))
    same(first, run(5, again=4))
    assert different(first, run(5))


def test_a_row_does_not_depend_on_the_number_of_rows(inner, play, same):
    few, many = (
        torch.stack(play(RepeatedTrials(inner(num_envs=n), num_trials=3), 50)[0], 1) for n in (2, 9)
    )
    same(few, many[:2])


def test_a_saved_state_goes_on_exactly_in_the_middle_of_trials(inner, play, same):
    def build(seed=0):
        return RepeatedTrials(inner(num_envs=4), num_trials=3, num_warmup=1, seed=seed)

    for cut in (0, 21):
        env = build()
        _, td = play(env, cut)
        saved = copy.deepcopy(env.state_dict())
        expected, _ = play(env, 25, td=td.clone(), start=cut)
        restored = build(seed=3)
        play(restored, 5)
        restored.load_state_dict(pickle.loads(pickle.dumps(saved)))
        same(restored.present(), td.select(*restored.present().keys()))
        continued, _ = play(restored, 25, td=restored.present(), start=cut)
        for a, b in zip(continued, expected, strict=True):
            same(a, b)


def test_a_copied_environment_goes_on_alike_and_alone(drift, play, same):
    env = RepeatedTrials(drift(num_envs=3), num_trials=3)
    _, td = play(env, 7)
    twin = copy.deepcopy(env)
    expected, _ = play(env, 30, td=td.clone(), start=7)
    for a, b in zip(play(twin, 30, td=td.clone(), start=7)[0], expected, strict=True):
        same(a, b)


def test_whoever_changes_a_timestep_changes_nothing_in_the_environment(
    inner, play, same, actions_of
):
    def build():
        return RepeatedTrials(inner(num_envs=3), num_trials=2, num_warmup=1)

    env = build()
    td = env.reset()
    expected, _ = play(build(), 40)
    for action, other in zip(actions_of(env, 40), expected, strict=True):
        step, td = env.step_and_maybe_reset(td.set("action", action))
        same(step["next"], other["next"])
        for value in step["next"].values():
            value.zero_()


def test_relabelling_is_not_offered_but_the_instruction_is(maze):
    env = RepeatedTrials(maze(num_envs=2), num_trials=2)
    keys = set(env.rollout(3)["next"].keys())
    assert {"goal", "observation"} <= keys
    assert not keys & {"achieved", "achieved_mask"}
    assert {"achieved", "achieved_mask"} <= set(maze(num_envs=2).reset().keys())


def test_the_instruction_starts_afresh_with_every_trial(maze, play):
    played, _ = play(RepeatedTrials(maze(num_envs=8, time_limit=40), num_trials=3), 200)
    first, progress = None, 0
    for td in played:
        first = (
            td["goal"].clone()
            if first is None
            else torch.where(td["is_init"].unsqueeze(-1), td["goal"], first)
        )
        begun = td["trial_start"].squeeze(-1)
        assert torch.equal(td["goal"][begun], first[begun])
        progress += int((td["goal"] != first).any())
    assert progress > 10


def test_evaluation_finds_the_return_of_every_trial(drift):
    def build():
        return RepeatedTrials(drift(num_envs=5), num_trials=3, seed=2)

    zeros = torch.zeros(5, 2)
    result = evaluate(lambda td: td.set("action", zeros.clone()), build(), seed=2)
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for row in range(5):
        env = build()
        td, trial = env.reset(), 0
        while not td["done"][row].item():
            trial += bool(td["trial_start"][row]) and not bool(td["is_init"][row])
            td = env.step(td.set("action", zeros.clone()))["next"]
            expected[row, trial] += td.pop("reward")[row].double().item()
    torch.testing.assert_close(result.trial_returns, expected, rtol=0, atol=0)
    assert bool(result.finished.all())
    same_actions_at_the_same_task = result.trial_returns.diff(dim=1)
    assert (same_actions_at_the_same_task == 0).all()
    assert result.trial_returns[:, 0].unique().numel() == 5


@pytest.mark.parametrize("continuous", [False, True])
def test_a_foreign_environment_is_played(continuous, same, play):
    def build(seed=0):
        env = Guess(4, continuous=continuous, length=2, ragged=True)
        return RepeatedTrials(env, num_trials=3, horizon=8, seed=seed)

    check_env_specs(build())
    fused, _ = play(build(), 40)
    plain, _ = play(build(), 40, fused=False)
    for a, b in zip(fused, plain, strict=True):
        same(a, b)
        assert (a["sight", "steps"] >= 0).all(), (
            "what a reset returns of other rows must not be shown"
        )
        assert torch.equal(a["sight", "steps"], a["sight", "picture"][:, :1, 0])
    noises = torch.stack([td["noise"] for td in fused])
    assert noises.unique().numel() > 20, "the noise of trials is their own"
    starts = torch.stack([td["trial_start"] for td in fused]).squeeze(-1)
    assert (starts.any(1) & ~starts.all(1)).sum() > 10, "rows must begin trials at different times"
    sides = torch.stack([td["next", "prev_reward"] for td in fused])
    assert 0 < sides.mean() < 1


def test_a_seed_is_that_of_a_foreign_environments_own_randomness_too(same, play):
    def run(seed):
        env = RepeatedTrials(Guess(4), num_trials=3, horizon=8)
        play(env, 5)
        env.set_seed(seed)
        return torch.stack(play(env, 30)[0])

    same(run(2), run(2))
    assert not torch.equal(run(2)["noise"], run(3)["noise"])


def test_the_reward_is_a_tensor_of_its_own(drift):
    for inner in (drift(num_envs=2), Guess(2, length=1)):
        env = RepeatedTrials(inner, num_trials=None, horizon=9)
        after = env.step(env.reset().set("action", env.action_spec.zero()))["next"]
        shown = after["prev_reward"].clone()
        after["reward"] -= 5
        assert torch.equal(after["prev_reward"], shown)


def test_rows_of_a_foreign_environment_reset_alone(actions_of):
    env = RepeatedTrials(Guess(3, length=2), num_trials=None, horizon=50)
    td = env.reset()
    mask = torch.tensor([[False], [True], [False]])
    for action in actions_of(env, 3):
        _, td = env.step_and_maybe_reset(td.set("action", action))
    noise = td["noise"].clone()
    after = env.reset(td.set("_reset", mask))
    assert (after["noise"] != noise).squeeze(-1).tolist() == [False, True, False]
    assert after["sight", "steps"].flatten().tolist() == [1.0, 0.0, 1.0]
    assert after["step_index"].flatten().tolist() == [3, 0, 3]


def test_a_policy_that_remembers_earlier_trials_does_better():
    """Half of the tasks need the other side than the first guess; only memory across trials finds
    it.
    """
    env = RepeatedTrials(Guess(64, length=3), num_trials=6, horizon=18)
    keeps = evaluate(Chooser(64, forgets=False), env, seed=3)
    forgets = evaluate(Chooser(64, forgets=True), env, seed=3)
    share = forgets.trial_returns[:, 0].mean()
    assert 0.3 < share < 0.7
    assert torch.equal(keeps.trial_returns[:, 0], forgets.trial_returns[:, 0])
    assert (keeps.trial_returns[:, 1:] == 1).all()
    assert torch.allclose(forgets.trial_returns.mean(0), share)


def test_remembering_helps_only_if_the_task_is_kept():
    """Control: an environment that does not listen to the task seed plays another task in every
    trial.
    """
    env = RepeatedTrials(Guess(64, length=3, hears=False), num_trials=6, horizon=18)
    keeps = evaluate(Chooser(64, forgets=False), env, seed=3)
    assert keeps.trial_returns[:, 1:].mean() < 0.65


def _flaky(drift):
    class Flaky(drift):
        """Fails at its fourth step where the task says so."""

        def _set_specs(self, observations, action, tells_success):
            flag = Binary(n=1, dtype=torch.bool)
            super()._set_specs({**observations, "aborted": flag}, action, tells_success)

        def begin(self, task):
            no = torch.zeros(len(task["hidden"]), 1, dtype=torch.bool)
            return {**super().begin(task), "aborted": no, "ended": no}

        def transition(self, task, state, action):
            after, reward, success = super().transition(task, state, action)
            failed = (task["task_seed"].unsqueeze(-1) % 2 == 0) & (state["step_index"] == 3)
            return {**after, "aborted": failed, "ended": failed}, reward, success & ~failed

        def observe(self, task, state):
            return {**super().observe(task, state), "aborted": state["aborted"].clone()}

    return Flaky


def test_a_failure_of_the_inner_environment_truncates_the_episode(drift, play):
    env = RepeatedTrials(_flaky(drift)(num_envs=16), num_trials=3)
    check_env_specs(env)
    env.set_seed(0)
    played, _ = play(env, 60)
    failures = ends = 0
    for td, following in pairwise(played):
        after = td["next"]
        failed = after["aborted"]
        assert torch.equal(after["truncated"], failed)
        assert torch.equal(after["done"], after["terminated"] | failed)
        assert not (after["terminated"] & failed).any()
        assert not (after["success"] & failed).any()
        assert torch.equal(following["is_init"], after["done"])
        assert not following["aborted"].any()
        failures, ends = failures + int(failed.sum()), ends + int(after["terminated"].sum())
    assert failures > 10
    assert ends > 10


def test_a_failure_at_the_horizon_is_a_failure(drift, play):
    played, _ = play(RepeatedTrials(_flaky(drift)(num_envs=16), num_trials=None, horizon=4), 4)
    after = played[-1]["next"]
    assert after["done"].all()
    assert 0 < after["aborted"].sum() < 16
    assert torch.equal(after["terminated"], ~after["aborted"])


def test_attempts_of_the_inner_environment_start_trials_too(drift, play):
    class Attempts(drift):
        def begin(self, task):
            return {
                **super().begin(task),
                "trial_start": torch.ones(len(task["hidden"]), 1).bool(),
            }

        def transition(self, task, state, action):
            after, reward, success = super().transition(task, state, action)
            return {**after, "trial_start": state["step_index"] % 2 == 1}, reward, success

    inner, bare = Attempts(num_envs=4), drift(num_envs=4)
    counts = []
    for env in (inner, bare):
        played, _ = play(RepeatedTrials(env, num_trials=3), 60)
        counts.append(torch.stack([td["trial_start"] for td in played]))
    assert (counts[0] | ~counts[1]).all()
    assert counts[0].sum() > counts[1].sum() + 20


def test_trials_of_trials_can_be_played(corridor, play, same):
    nested = RepeatedTrials(RepeatedTrials(corridor(num_envs=2), num_trials=2), num_trials=3)
    flat = RepeatedTrials(corridor(num_envs=2), num_trials=6)
    for a, b in zip(play(nested, 80)[0], play(flat, 80)[0], strict=True):
        same(a, b)


def test_nested_observations_survive_a_checkpoint(play, same):
    def build():
        return RepeatedTrials(Gym(id="Blackjack-v1", num_envs=3), num_trials=4, horizon=12)

    env = build()
    assert isinstance(play(env, 9)[0][0]["observation"], TensorDict)
    saved = pickle.loads(pickle.dumps(env.state_dict()))
    restored = build()
    restored.load_state_dict(saved)
    same(restored.present(), env.present())
    for _ in range(20):
        action = torch.randint(0, 2, (3,))
        steps = [
            e.step_and_maybe_reset(e.present().set("action", action))[0] for e in (env, restored)
        ]
        same(*steps)


def test_transforms_go_around_it(maze, play, actions_of):
    plain, _ = play(RepeatedTrials(maze(num_envs=4), num_trials=2), 40)
    env = TransformedEnv(RepeatedTrials(maze(num_envs=4), num_trials=2), RewardSum())
    td = env.reset()
    for action, other in zip(actions_of(env, 40), plain, strict=True):
        step, td = env.step_and_maybe_reset(td.set("action", action))
        for name in other["next"].keys():
            assert torch.equal(step["next", name], other["next", name])


def test_a_rollout_can_wait_for_all_rows(drift):
    env = RepeatedTrials(drift(num_envs=5), num_trials=2)
    data = env.rollout(60, break_when_any_done=False, break_when_all_done=True)
    assert data["next", "done"][:, -1].all()


def _cart(num_envs, seed=0):
    return Gym(id="CartPole-v1", time_limit=14, num_envs=num_envs, seed=seed)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gymnasium_environments_play_as_a_plain_loop_over_trials_plays_them(
    settings, play, actions_of
):
    _compare_with_the_plain_loop(_cart, settings, play, actions_of)


def test_gymnasium_environments_are_saved_in_the_middle_of_trials(play, same):
    env = RepeatedTrials(_cart(3), num_trials=3)
    check_env_specs(env)
    _, td = play(env, 20)
    restored = RepeatedTrials(_cart(3), num_trials=3, seed=1)
    restored.load_state_dict(pickle.loads(pickle.dumps(env.state_dict())))
    expected, _ = play(env, 40, td=td.clone(), start=20)
    continued, _ = play(restored, 40, td=restored.present(), start=20)
    for a, b in zip(continued, expected, strict=True):
        same(a, b)


class _Brittle(gymnasium.Env):
    """Ends after three steps, and breaks at the seventh of its life in tasks with an even seed."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.life = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.life, self.steps = self.life + 1, self.steps + 1
        if self.life >= 7 and self.seed % 2 == 0:
            raise ArithmeticError("broken")
        return np.ones(1, np.float32), 1.0, self.steps == 3, False, {}


@pytest.mark.filterwarnings("ignore")
def test_a_gymnasium_environment_that_breaks_ends_the_episode_and_the_next_one_is_played(play):
    hosted = HostedEnv(_Brittle, num_envs=8, workers=Workers(on_error="continue", max_errors=99))
    played, _ = play(RepeatedTrials(hosted, num_trials=4, horizon=12), 60)
    after = torch.stack([td["next"] for td in played], 1)
    aborted = after["aborted"]
    assert aborted.sum() > 5
    assert torch.equal(after["truncated"], aborted)
    assert torch.equal(after["done"], aborted | after["terminated"])
    assert (after["terminated"] & ~aborted).sum() > 5
    following = torch.stack([td["is_init"] for td in played], 1)[:, 1:]
    assert torch.equal(following, after["done"][:, :-1])
    assert (after["step_index"][after["terminated"]] == 12).all()


def test_its_picture_is_that_of_the_running_trial(maze):
    inner = maze(num_envs=3)
    env = RepeatedTrials(inner, num_trials=2)
    env.reset()
    assert (env.render(2) == inner.render(2)).all()
    assert not (env.render(2) == env.render(0)).all()


def test_it_is_open_as_long_as_the_inner_environment_and_closes_it():
    class Open(Guess):
        def __init__(self):
            super().__init__(2)
            self.is_closed, self.closings = False, 0

        def close(self, *, raise_if_closed=True):
            super().close(raise_if_closed=raise_if_closed)
            self.closings += 1

    inner = Open()
    env = RepeatedTrials(inner, num_trials=2, horizon=9)
    assert not env.is_closed
    env.close()
    assert env.is_closed
    assert inner.is_closed
    assert inner.closings == 1


def test_every_tensor_follows_a_move(inner, play, same):
    """A move is seen by every tensor: after one, none is the same object, and the episode goes
    on.
    """
    env = RepeatedTrials(inner(num_envs=3), num_trials=2)
    _, td = play(env, 7)
    expected, _ = play(copy.deepcopy(env), 30, td=td.clone(), start=7)
    before = [env._streams, env._episodes, *env._state.values(), *env._timestep.values()]
    env._apply(lambda tensor: tensor.clone())
    after = [env._streams, env._episodes, *env._state.values(), *env._timestep.values()]
    assert not {id(tensor) for tensor in before} & {id(tensor) for tensor in after}
    for a, b in zip(play(env, 30, td=td.clone(), start=7)[0], expected, strict=True):
        same(a, b)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_play_the_same_episodes(make, play, actions_of):
    expected, _ = play(RepeatedTrials(make(num_envs=8), num_trials=3), 60)
    moved = RepeatedTrials(make(num_envs=8), num_trials=3).to("cuda")
    for other in (moved, RepeatedTrials(make(num_envs=8, device="cuda"), num_trials=3)):
        td = other.reset()
        for action, step in zip(actions_of(make(num_envs=8), 60), expected, strict=True):
            seen, td = other.step_and_maybe_reset(td.set("action", action.cuda()))
            torch.testing.assert_close(seen["next"].cpu().to_dict(), step["next"].to_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_trials": 0}, "num_trials must be at least 1, got 0"),
        ({"num_trials": None}, "num_trials must be given where horizon is not, got None"),
        ({"num_trials": 2, "horizon": 0}, "horizon must be at least 1, got 0"),
        (
            {"num_trials": 2, "num_warmup": 2},
            "num_warmup must be less than num_trials, 2, got 2",
        ),
        (
            {"num_trials": 2, "num_warmup": -1},
            "num_warmup must be at least 0, got -1",
        ),
        (
            {"num_trials": None, "horizon": 9, "num_warmup": -1},
            "num_warmup must be at least 0, got -1",
        ),
    ],
)
def test_settings_out_of_range_are_refused(settings, message, corridor):
    with pytest.raises(ValueError, match=f"RepeatedTrials: {message}$"):
        RepeatedTrials(corridor(num_envs=2), **settings)


def test_a_horizon_is_needed_where_the_inner_environment_tells_no_time_limit():
    with pytest.raises(
        ValueError,
        match=r"RepeatedTrials: horizon must be given where env has no time limit, got None",
    ):
        RepeatedTrials(Guess(2), num_trials=3)


def test_a_transformed_environment_is_refused_for_it_would_not_hear_the_task_seed(corridor):
    inner = TransformedEnv(corridor(num_envs=64), RewardSum())
    request = TensorDict({"task_seed": torch.full((64, 1), 3)}, [64])
    assert len(inner.reset(request)["observation"].unique(dim=0)) == 2, "the task seed is not heard"
    with pytest.raises(
        ValueError,
        match="RepeatedTrials: env must not be transformed, got 'TransformedEnv'",
    ):
        RepeatedTrials(inner, num_trials=2)


def test_an_unsuitable_environment_is_refused():
    class Wide(Guess):
        def __init__(self, *, action=None, reward=None, batch=None):
            super().__init__(2)
            if action is not None:
                self.action_spec = action
            if reward is not None:
                self.reward_spec = reward
            if batch is not None:
                self.__dict__["_batch_size"] = torch.Size(batch)

    with pytest.raises(
        ValueError, match=r"spec must be a leaf of kind .* got 'UnboundedContinuous'"
    ):
        RepeatedTrials(Wide(action=Unbounded((2, 3))), num_trials=2, horizon=9)
    RepeatedTrials(Wide(action=Binary(n=3, shape=(2, 3))), num_trials=2, horizon=9)
    with pytest.raises(ValueError, match=r"env must have a reward of shape \(2, 1\), got \(2, 3\)"):
        RepeatedTrials(Wide(reward=Unbounded((2, 3))), num_trials=2, horizon=9)


def test_an_environment_without_one_batch_dimension_is_refused():
    class Single(Guess):
        def __init__(self):
            EnvBase.__init__(self, batch_size=torch.Size([]))

    with pytest.raises(ValueError, match=r"env must have one batch dimension, got \(\)"):
        RepeatedTrials(Single(), num_trials=2, horizon=9)


@pytest.mark.parametrize("part", ["env", "counters", "timestep"])
def test_a_snapshot_that_lacks_something_is_refused(part, corridor):
    env = RepeatedTrials(corridor(num_envs=2), num_trials=2)
    saved = env.state_dict()
    del saved[part]
    with pytest.raises(ValueError, match=f"RepeatedTrials: state_dict must hold {part}, got "):
        env.load_state_dict(saved)


def test_a_snapshot_of_another_number_of_rows_is_refused(corridor):
    env = RepeatedTrials(corridor(num_envs=2), num_trials=2)
    other = RepeatedTrials(PassiveTMaze(num_envs=3, length=5), num_trials=2)
    with pytest.raises(
        ValueError, match=r"RepeatedTrials: state_dict\.counters\.streams must be torch.int64 \[2\]"
    ):
        env.load_state_dict(other.state_dict())
    lacking = env.state_dict()
    del lacking["counters"]["trial"]
    with pytest.raises(ValueError, match=r"state_dict\.counters must hold .*, trial, "):
        env.load_state_dict(lacking)


def test_a_chosen_instruction_is_that_of_every_trial_and_not_of_the_next_episode(maze):
    env = RepeatedTrials(maze(num_envs=2), num_trials=3)
    chosen = torch.tensor([[[1.0, 1.0], [3.0, 1.0]]]).repeat(2, 1, 1)
    td = env.reset(TensorDict({"instruction": chosen.clone()}, [2])).exclude("instruction")
    begun = 0
    for _ in range(13 * 3):
        assert torch.equal(td["goal"], chosen)
        begun += int(td["trial_start"].sum())
        _, td = env.step_and_maybe_reset(td.set("action", torch.full((2,), 4)))
    assert begun == 6
    assert not torch.equal(td["goal"], chosen)


def test_a_task_is_drawn_once_for_all_its_trials(maze):
    inner, drawn = maze(num_envs=3), []
    draw = inner.draw_tasks
    inner.draw_tasks = lambda seeds: drawn.extend(seeds.tolist()) or draw(seeds)
    env = RepeatedTrials(inner, num_trials=4)
    td, played = env.reset(), []
    for _ in range(13 * 4 * 20):
        if td["is_init"].all():
            played += env.state_dict()["counters"]["task_seed"].flatten().tolist()
        _, td = env.step_and_maybe_reset(td.set("action", torch.full((3,), 4)))
    assert len(played) == 3 * 20
    assert set(played) <= set(drawn)
    assert len(set(drawn)) == len(
        drawn
    )  # every one of 20 x 4 trials would have drawn its task again


def test_a_step_before_the_first_reset_is_refused(corridor):
    env = RepeatedTrials(corridor(num_envs=2), num_trials=2)
    with pytest.raises(RuntimeError, match="RepeatedTrials: reset must be called before step"):
        env.step(TensorDict({"action": torch.zeros(2, dtype=torch.int64)}, [2]))


class OneGuess(EnvBase):
    """`Guess` of one env without a batch dimension."""

    def __init__(self):
        super().__init__(batch_size=torch.Size([]))
        self.observation_spec = Composite(side=Unbounded((1,)))
        self.action_spec, self.reward_spec = Categorical(2), Unbounded((1,))
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    def _reset(self, tensordict=None, **_):
        return TensorDict({"side": torch.zeros(1)})

    def _step(self, tensordict):
        over = torch.ones(1, dtype=torch.bool)
        outcome = {"side": torch.zeros(1), "reward": torch.ones(1), "done": over}
        return TensorDict({**outcome, "terminated": over.clone()})

    def _set_seed(self, seed): ...


def test_trials_of_a_batch_of_torchrl_that_has_not_started():
    env = RepeatedTrials(SerialEnv(2, OneGuess), num_trials=2, horizon=4)
    played = env.rollout(2)
    assert played["next", "reward"].sum(1).flatten().tolist() == [2.0, 2.0]
    assert env.novelty is None
    assert env.task_hashes() is None
    assert not env.plays_all_tasks


def test_trials_within_trials_are_reported(capsys):
    def lines(env, **settings):
        RepeatedTrials(env, **settings)
        return capsys.readouterr().err

    for env, own in (
        (XLand(num_trials=4, size=5), "XLand has 4 trials"),
        (MetaFrozenLake(num_trials=3, size=3), "MetaFrozenLake has 3 trials"),
        (RepeatedTrials(PassiveTMaze(length=3), num_trials=2), "RepeatedTrials has 2 trials"),
    ):
        assert own in lines(env, num_trials=3)
        assert lines(env, num_trials=1) == ""
    for env in (XLand(num_trials=1, size=5), MetaFrozenLake(num_trials=1), PassiveTMaze(length=3)):
        assert lines(env, num_trials=3) == ""


@pytest.mark.parametrize(
    "settings", [{"num_trials": 3}, {"num_warmup": 1}, {"horizon": 6}], ids=lambda value: str(value)
)
def test_a_state_of_other_settings_of_trials_is_refused(settings):
    def repeated(**settings):
        env = PassiveTMaze(num_envs=2, length=3)
        return RepeatedTrials(env, **{"num_trials": 2, **settings})

    saved = repeated()
    saved.reset()
    other = repeated(**settings)
    other.reset()
    with pytest.raises(ArgumentError, match=r"RepeatedTrials: state_dict.settings must be"):
        other.load_state_dict(saved.state_dict())
