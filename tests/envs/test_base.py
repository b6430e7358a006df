import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.transforms import RewardSum
from torchrl.envs.utils import check_env_specs
from yamame_envs import DarkKeyDoor, MazeRunner, MetaFrozenLake, XLand
from yamame_envs.streams import fold


def test_specs_describe_what_is_returned(make):
    check_env_specs(make(num_envs=3), break_when_any_done="both")


def test_the_fused_step_equals_step_and_reset(make, play, same, desynchronised):
    fused, td = play(make(num_envs=5), 40)
    plain, td_plain = play(make(num_envs=5), 40, fused=False)
    for a, b in zip(fused, plain, strict=True):
        same(a, b)
    same(td, td_plain.exclude("action"))
    ends = torch.stack([s["next", "done"] for s in fused]).squeeze(-1)
    assert ends.sum() >= 10
    if desynchronised:
        assert (ends.any(1) & ~ends.all(1)).sum() >= 5, "resets must be desynchronised"


def test_desynchronised_resets_are_those_of_step_and_reset(make, same, actions_of):
    def run(fused):
        env = make(num_envs=5)
        td, seen = env.reset(), []
        for t, action in enumerate(actions_of(env, 30)):
            td.set("_reset", fold(torch.arange(5), t).remainder(9).eq(0).unsqueeze(-1))
            td = env.reset(td)
            step = (
                env._step_and_maybe_reset
                if fused
                else lambda td: EnvBase._step_and_maybe_reset(env, td)
            )
            step_td, td = step(td.set("action", action))
            seen.append(step_td.clone())
        return seen

    for a, b in zip(run(True), run(False), strict=True):
        same(a, b)


def test_the_policys_own_entries_pass_the_fused_step_as_they_pass_the_plain_one(
    make, same, actions_of, desynchronised
):
    def run(fused):
        env = make(num_envs=4)
        td, seen = env.reset(), []
        step = (
            env._step_and_maybe_reset
            if fused
            else lambda td: EnvBase._step_and_maybe_reset(env, td)
        )
        for t, action in enumerate(actions_of(env, 30)):
            if t % 7 == 0:
                td.set("memory", torch.full((4, 3), t + 1.0))
                td.set("nested", TensorDict({"x": torch.full((4, 1), t + 1)}, [4]))
            _, td = step(td.set("action", action))
            seen.append(td.exclude("action"))
        return seen

    fused, plain = run(True), run(False)
    for a, b in zip(fused, plain, strict=True):
        same(a, b)
    cleared = any((td["memory"] == 0).any() for td in fused)
    assert cleared == desynchronised  # where all rows begin at once, nothing is cleared


def test_the_same_seed_replays_and_another_does_not(make, play, same, different):
    env = make(num_envs=3, seed=5)
    other, first = (torch.stack(play(each, 30)[0]) for each in (env, make(num_envs=3, seed=4)))
    env.set_seed(4)
    again = torch.stack(play(env, 30)[0])
    same(first, again)
    assert different(first, other)


def test_a_row_does_not_depend_on_the_number_of_rows(make, play, same, different):
    few, many = (torch.stack(play(make(num_envs=n), 30)[0], 1) for n in (4, 64))
    same(few, many[:4])
    assert different(many[:4], many[4:8])


def test_rows_and_episodes_have_tasks_of_their_own(make):
    env = make(num_envs=16)
    td = env.reset()
    seeds = []
    for _ in range(6):
        seeds.append(env.env_state.task["task_seed"].clone())
        td = env.reset(td)
    seeds = torch.stack(seeds)
    rows = fold(torch.full((16,), 0), torch.arange(16))
    assert torch.equal(seeds, torch.stack([fold(rows, e) for e in range(6)]))
    assert seeds.unique().numel() == 16 * 6


def test_a_partial_reset_touches_only_its_rows(make, play, same):
    env = make(num_envs=6)
    _, td = play(env, 3)
    before = td.clone()
    mask = torch.tensor([0, 1, 0, 0, 1, 0]).bool().unsqueeze(-1)
    after = env.reset(td.set("_reset", mask))
    kept = (~mask).squeeze(-1)
    same(before.exclude("_reset")[kept], after[kept])
    assert (
        after["is_init"].squeeze(-1).tolist() == mask.squeeze(-1).tolist()
        or before["is_init"].any()
    )
    assert (after["step_index"][mask] == 0).all()
    # The rows that were left alone go on as if nothing had happened.
    undisturbed, _ = play(make(num_envs=6), 9)
    continued, _ = play(env, 6, td=after, start=3)
    still = kept.clone()
    for a, b in zip(continued, undisturbed[3:], strict=True):
        same(a[still], b[still])


def test_timesteps_carry_the_context_of_the_step_before(make, play, actions_of):
    env = make(num_envs=4)
    several_trials = isinstance(env, DarkKeyDoor | MetaFrozenLake | XLand)
    steps, _ = play(env, 40)
    starts = torch.ones(4, 1, dtype=torch.bool)
    t = torch.zeros(4, 1, dtype=torch.int64)
    for step, action in zip(steps, actions_of(env, 40), strict=True):
        assert torch.equal(step["is_init"], starts)
        assert (step["trial_start"] >= starts).all()
        if not several_trials:
            assert torch.equal(step["trial_start"], starts)
        assert torch.equal(step["step_index"], t)
        for name in ("prev_action", "prev_reward", "time", "success", "done"):
            assert (step[name][starts.squeeze(-1)] == 0).all()
        after = step["next"]
        t = t + 1
        assert torch.equal(after["step_index"], t)
        assert torch.equal(after["prev_reward"], after["reward"])
        assert torch.equal(after["time"], t / env.time_limit)
        assert not after["is_init"].any()
        if hasattr(env.action_spec, "n"):
            assert torch.equal(after["prev_action"], torch.eye(int(env.action_spec.n))[action])
        else:
            low, high = env.action_spec.space.low, env.action_spec.space.high
            torch.testing.assert_close(low + (after["prev_action"] + 1) / 2 * (high - low), action)
        if not isinstance(env, MetaFrozenLake | XLand):  # which also ends after its last attempt
            assert torch.equal(after["terminated"], after["success"] | (t >= env.time_limit))
        assert torch.equal(after["done"], after["terminated"])
        assert not after["truncated"].any()
        starts = after["done"]
        t = t.masked_fill(starts, 0)


def test_the_last_timestep_of_an_episode_is_the_true_one(make, same, actions_of):
    """Rows that end are compared with a step without any reset after it."""
    env, twin = make(num_envs=4), make(num_envs=4)
    td = env.reset()
    ends = 0
    for action in actions_of(env, 40):
        twin.load_state_dict(env.state_dict())
        step, td = env.step_and_maybe_reset(td.set("action", action))
        lone = twin._step(TensorDict({"action": action}, [4]))
        same(step["next"], lone)
        ended = lone["done"].squeeze(-1)
        ends += int(ended.sum())
        assert (step["next", "step_index"][ended] > 0).all()
        assert (td["step_index"][ended] == 0).all()
    assert ends > 3


def test_earlier_timesteps_never_change(make, same, actions_of):
    env = make(num_envs=4)
    td = env.reset()
    kept, copies = [td], [td.clone()]
    for action in actions_of(env, 40):
        step, td = env.step_and_maybe_reset(td.set("action", action))
        copies[-1].set("action", action).set("next", step["next"].clone())
        kept += [td]
        copies += [td.clone()]
    for a, b in zip(kept, copies, strict=True):
        same(a, b)


def test_whoever_changes_a_timestep_changes_nothing_in_the_environment(
    make, play, same, actions_of
):
    env = make(num_envs=3)
    td = env.reset()
    expected, _ = play(make(num_envs=3), 30)
    for action, other in zip(actions_of(env, 30), expected, strict=True):
        step, td = env.step_and_maybe_reset(td.set("action", action))
        same(step["next"], other["next"])
        for value in step["next"].values():
            value.zero_()


def test_a_task_seed_plays_that_task_and_leaves_the_numbered_episodes_waiting(make, same):
    env, source = make(num_envs=3, seed=1), make(num_envs=1, seed=7)
    source.reset()
    seed = source.env_state.task["task_seed"]
    request = TensorDict({"task_seed": seed.view(1, 1).expand(3, 1).clone()}, [3])
    env.reset(request)
    for name, value in source.env_state.task.items():
        assert torch.equal(env.env_state.task[name], value.expand_as(env.env_state.task[name]))
    same(env.reset(), make(num_envs=3, seed=1).reset())


def test_a_task_seed_with_a_mask_changes_only_the_masked_rows(maze):
    env = maze(num_envs=3)
    td = env.reset()
    before = env.env_state.task["task_seed"].clone()
    mask = torch.tensor([[False], [True], [False]])
    env.reset(td.set("_reset", mask).set("task_seed", torch.full((3, 1), 99)))
    assert env.env_state.task["task_seed"].tolist() == [before[0], 99, before[2]]


def test_a_rollout_can_wait_for_all_rows(drift):
    env = drift(num_envs=5, time_limit=40)
    data = env.rollout(60, break_when_any_done=False, break_when_all_done=True)
    assert data["next", "done"][:, -1].all()


def test_a_transformed_environment_plays_the_same_steps(play, same, actions_of, maze):
    wrapped = TransformedEnv(maze(num_envs=4), RewardSum())
    td, ours = wrapped.reset(), maze(num_envs=4)
    expected, _ = play(ours, 40)
    for action, other in zip(actions_of(ours, 40), expected, strict=True):
        step, td = wrapped.step_and_maybe_reset(td.set("action", action))
        same(step["next"].select(*other["next"].keys()), other["next"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_play_the_same_episodes(make, play, actions_of):
    env = make(num_envs=8)
    expected, _ = play(make(num_envs=8), 60)
    for other in (make(num_envs=8, device="cuda"), env.to("cuda")):
        td = other.reset()
        for action, step in zip(actions_of(make(num_envs=8), 60), expected, strict=True):
            seen, td = other.step_and_maybe_reset(td.set("action", action.cuda()))
            torch.testing.assert_close(seen["next"].cpu().to_dict(), step["next"].to_dict())


def test_an_action_out_of_bounds_is_refused_with_its_row(maze):
    env = maze(num_envs=4)
    td = env.reset()
    td["action"] = torch.tensor([0, 4, 5, 9])
    with pytest.raises(
        ValueError, match=r"MazeRunner: action must be in 0..4, got 5 in env 2 at step 0"
    ):
        env.step(td)
    td["action"] = torch.tensor([0, -1, 4, 4])
    with pytest.raises(ValueError, match=r"got -1 in env 1 at step 0"):
        env.step_and_maybe_reset(td)
    td["action"] = torch.tensor([0, 1, 4, 4])
    env.step(td)


@pytest.mark.parametrize("bad", [5.0, float("nan")])
def test_a_continuous_action_out_of_bounds_is_refused_with_its_row(bad, drift):
    env = drift(num_envs=2)
    td = env.reset()
    td["action"] = torch.tensor([[0.0, 4.0], [0.0, bad]])
    with pytest.raises(ValueError, match=r"Drift: action must be in .* in env 1"):
        env.step(td)


def test_a_step_before_the_first_reset_is_refused(corridor):
    env = corridor(num_envs=2)
    with pytest.raises(RuntimeError, match="PassiveTMaze: reset must be called before step"):
        env.step(TensorDict({"action": torch.zeros(2, dtype=torch.int64)}, [2]))


def test_a_first_reset_of_some_rows_is_refused(corridor):
    env = corridor(num_envs=2)
    with pytest.raises(
        ValueError,
        match="PassiveTMaze: _reset must cover all envs at the first reset, got '1 envs'",
    ):
        env.reset(TensorDict({"_reset": torch.tensor([[True], [False]])}, [2]))


def test_a_task_seed_of_another_form_is_refused(corridor):
    with pytest.raises(
        ValueError,
        match=r"PassiveTMaze: task_seed must be int64 \(2, 1\), got 'torch.float32 \(2, 1\)",
    ):
        corridor(num_envs=2).reset(TensorDict({"task_seed": torch.zeros(2, 1)}, [2]))


@pytest.mark.parametrize(("name", "value"), [("num_envs", 0), ("time_limit", 0)])
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"MazeRunner: {name} must be at least 1, got {value}"):
        MazeRunner(**{name: value})
