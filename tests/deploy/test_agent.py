"""A deployed agent decides as in an evaluation, for one stream and for changing sessions."""

import numpy as np
import pytest
import torch
import yamame
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame.deploy import DeployedAgent
from yamame.evaluation import evaluate
from yamame.evaluation.held_out import evaluation_mode, fresh_copy

ENCODERS = (
    *("transformer", "gru", "window", "memoryless", "linear_recurrent", "lru", "deltanet"),
    *("rsm", "memo"),
)


def play_beside(
    subject, deployed, num_steps: int, *, trials: bool = False, wrong: bool = False
) -> tuple[int, int]:
    """Play a policy, and pass the same timesteps to a deployed agent.

    Returns:
        Number of steps with different actions, and number of episodes that ended.
    """
    env = subject.env
    policy = fresh_copy(subject.agent.policy())
    names = list(range(env.batch_size[0]))
    given = {}
    differing = 0
    ended = 0
    deployed.reset(sessions=names)
    with evaluation_mode(0, greedy=True):
        env.set_seed(1)
        timestep = env.reset()
        for _ in range(num_steps):
            shown = {key: timestep[key].numpy() for key in deployed.observation_spec.keys()}
            action = deployed.act(shown, sessions=names, **given)
            timestep = policy(timestep)
            differing += int(not np.array_equal(action, timestep["action"].numpy()))
            step, timestep = env.step_and_maybe_reset(timestep)
            done = step["next", "done"].squeeze(-1).numpy()
            given = {
                "reward": step["next", "reward"].squeeze(-1).numpy(),
                "done": done & (not wrong),
            }
            if trials:
                given["trial_start"] = timestep["trial_start"].squeeze(-1).numpy()
            ended += int(done.sum())
    return differing, ended


def played_steps(subject, num_steps: int) -> list[tuple]:
    """Return observation, action, reward and done of every step of an evaluation."""
    env = subject.env
    policy = fresh_copy(subject.agent.policy())
    steps = []
    keys = DeployedAgent(subject.saved).observation_spec.keys()
    with evaluation_mode(0, greedy=True):
        env.set_seed(1)
        timestep = env.reset()
        for _ in range(num_steps):
            shown = {key: timestep[key].numpy().copy() for key in keys}
            action = policy(timestep)["action"].numpy().copy()
            step, timestep = env.step_and_maybe_reset(timestep)
            reward = step["next", "reward"].squeeze(-1).numpy().copy()
            done = step["next", "done"].squeeze(-1).numpy().copy()
            steps.append((shown, action, reward, done))
    return steps


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_action_is_that_of_an_evaluation(subject, encoder):
    made = subject(encoder)
    differing, ended = play_beside(made, DeployedAgent(made.saved, greedy=True), 32)
    assert differing == 0
    assert ended >= 4


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["transformer", "gru"])
def test_a_thousand_actions_are_those_of_an_evaluation(subject, encoder):
    made = subject(encoder, "env.time_limit=400", "env.size=11", "context_length=300")
    differing, ended = play_beside(made, DeployedAgent(made.saved, greedy=True), 1000)
    assert differing == 0
    assert ended >= 8


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["transformer", "gru"])
def test_sessions_that_join_ask_and_leave_at_any_time_act_as_in_one_evaluation(subject, encoder):
    num, length = 8, 1000
    made = subject(encoder, "env.time_limit=60", "env.size=9", "context_length=300", num_envs=num)
    deployed, played = DeployedAgent(made.saved, greedy=True), played_steps(made, length)
    random = np.random.default_rng(0)
    at, begins = np.zeros(num, int), random.integers(0, 400, num)
    differing, sizes, actions = 0, set(), set()
    for tick in range(100 * length):
        ready = [i for i in range(num) if begins[i] < tick and at[i] < length]
        if not ready:
            if (at == length).all():
                break
            continue
        asking = random.permutation(ready)[: random.integers(1, len(ready) + 1)].tolist()
        if new := [i for i in asking if at[i] == 0]:
            deployed.reset(sessions=new)
        shown = {key: np.stack([played[at[i]][0][key][i] for i in asking]) for key in played[0][0]}
        reward = [played[at[i] - 1][2][i] if at[i] else 0.0 for i in asking]
        done = [bool(at[i] and played[at[i] - 1][3][i]) for i in asking]
        acted = deployed.act(shown, reward=reward, done=done, sessions=asking)
        for i, action in zip(asking, acted, strict=True):
            differing += int(action != played[at[i]][1][i])
            actions.add(int(action))
            at[i] += 1
        if left := [i for i in asking if at[i] == length]:
            deployed.forget(left)
        sizes.add(len(asking))
    assert (at == length).all()
    assert differing == 0
    assert deployed.sessions == []
    assert sizes == set(range(1, num + 1))
    assert len(actions) > 1
    assert sum(int(step[3].sum()) for step in played) >= num * (
        length // 61
    )  # episodes ended on the way


def test_an_unreported_end_of_an_episode_changes_actions(subject):
    made = subject("gru")
    assert play_beside(made, DeployedAgent(made.saved, greedy=True), 60, wrong=True)[0] > 0


TRIALS = {
    "gym": [
        "env=gym",
        "env.id=CartPole-v1",
        "env.time_limit=9",
        "trials=repeated",
        "trials.num_trials=3",
    ],
    "frozenlake": ["env=frozenlake", "env.size=3", "env.num_trials=2"],
}


@pytest.mark.parametrize("env", TRIALS)
def test_trials_of_one_task_differ_from_episodes(subject, env):
    made = subject("gru", *TRIALS[env])
    differing, ended = play_beside(made, DeployedAgent(made.saved, greedy=True), 60, trials=True)
    assert differing == 0
    assert ended >= 1


def test_the_start_of_a_trial_changes_what_is_decided(subject, observations):
    agent, decided = DeployedAgent(subject("gru", *TRIALS["frozenlake"]).saved, greedy=True), []
    agent.step.register_forward_hook(lambda module, given, answer: decided.append(answer[0]))
    for starts in (False, True):
        agent.reset()
        action = agent.act(observations(agent))
        agent.act(observations(agent), reward=0.0, trial_start=starts)
    before, plain, again, started = decided
    assert action in range(5)
    assert torch.equal(before, again)
    assert not torch.allclose(plain, started)


def test_continuous_actions_are_those_of_an_evaluation(subject):
    made = subject("transformer", "env=wind")
    assert play_beside(made, DeployedAgent(made.saved, greedy=True), 40) == (0, 0)


def alone(agent, seen, rewards) -> list:
    """Return the actions of one stream."""
    agent.reset()
    actions = [agent.act(seen[0])]
    return actions + [agent.act(o, reward=r) for o, r in zip(seen[1:], rewards[1:], strict=False)]


def test_a_session_may_end_before_any_session_has_acted(agent, observations):
    seen = [observations(agent, seed=t) for t in range(4)]
    expected = alone(agent, seen, np.ones(4))
    agent.forget([None])
    agent.reset(sessions=["a", "b"])
    agent.forget(["a"])
    single = [{key: value[None] for key, value in entries.items()} for entries in seen]
    actions = [agent.act(single[0], sessions=["b"])]
    for entries in single[1:]:
        actions.append(agent.act(entries, reward=[1.0], sessions=["b"]))
    assert np.concatenate(actions).tolist() == np.array(expected).tolist()


def test_actions_depend_on_memory(agent, observations):
    seen = [observations(agent, seed=t) for t in range(30)]
    remembered = alone(agent, seen, np.ones(30))
    wiped = []
    for entries in seen:
        agent.reset()
        wiped.append(agent.act(entries))
    assert np.array(wiped).tolist() != np.array(remembered).tolist()


def test_samples_follow_from_the_seed_and_leave_the_global_generator_alone(maze, observations):
    def sampled(seed):
        agent = DeployedAgent(maze.saved, greedy=False, seed=seed)
        seen, before = observations(agent), torch.get_rng_state()
        actions = [agent.act(seen), *(agent.act(seen, reward=0.0) for _ in range(40))]
        assert torch.equal(torch.get_rng_state(), before)
        return np.array(actions).tolist()

    assert sampled(0) == sampled(0)
    assert sampled(0) != sampled(1)
    assert DeployedAgent(maze.saved).greedy == maze.cfg.evaluation.greedy


def test_every_discount_factor_can_act_and_others_are_refused(maze, observations):
    agents = [DeployedAgent(maze.saved, greedy=True, gamma=gamma) for gamma in maze.agent.gammas]
    seen = [observations(agents[0], seed=t) for t in range(30)]
    actions = {tuple(np.array(alone(agent, seen, np.ones(30))).tolist()) for agent in agents}
    assert len(actions) > 3
    assert agents[-1].gamma == DeployedAgent(maze.saved).gamma
    with pytest.raises(ValueError, match=r"gamma must be one of 0.1, .* got 0.5"):
        DeployedAgent(maze.saved, gamma=0.5)


def test_the_length_of_memory_can_be_chosen(maze, observations):
    long, short = (
        DeployedAgent(maze.saved, greedy=True),
        DeployedAgent(maze.saved, greedy=True, context_length=4),
    )
    assert (long.context_length, short.context_length) == (1024, 4)
    seen = [observations(long, seed=t) for t in range(40)]
    actions = [np.array(alone(agent, seen, np.ones(40))).tolist() for agent in (long, short)]
    assert actions[0][:4] == actions[1][:4]
    assert actions[0] != actions[1]


def test_a_single_entry_needs_no_name_and_tensors_are_answered_with_tensors(subject):
    made = subject("gru", "env=tmaze", "env.length=5")
    agent = DeployedAgent(made.saved, greedy=True)
    (key,) = agent.observation_spec.keys()
    value = agent.observation_spec[key].rand()
    given = [
        agent.act(form) for form in ({key: value.numpy()}, value.numpy()) if agent.reset() is None
    ]
    agent.reset()
    answered = agent.act(value)
    assert isinstance(answered, torch.Tensor)
    assert answered.shape == agent.action_spec.shape
    assert [int(action) for action in given] == [int(answered)] * 2
    assert isinstance(given[0], np.int64)


def test_the_mean_return_of_a_loop_is_that_of_the_evaluation(subject):
    """Compare the returns of whole episodes, without comparing single actions."""
    made = subject("gru", "env=wind", num_envs=3)
    result = evaluate(made.agent.policy(), made.env, greedy=True, seed=3)
    agent, env = DeployedAgent(made.saved, greedy=True), made.env
    agent.reset(sessions=[0, 1, 2])
    env.set_seed(3)
    timestep, returns, given = env.reset(), torch.zeros(3).double(), {}
    while True:
        action = agent.act(
            timestep.select(*agent.observation_spec.keys()), sessions=[0, 1, 2], **given
        )
        step = env.step(timestep.set("action", action))
        timestep = step["next"]
        returns += timestep["reward"].squeeze(-1).double()
        if timestep["done"].all():
            break
        given = {"reward": timestep["reward"].squeeze(-1)}
    torch.testing.assert_close(returns, result.returns)


def test_an_unknown_name_in_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        yamame.lode  # noqa: B018


def test_exploration_settings_of_torchrl_change_nothing(agent, observations):
    seen = observations(agent)
    action = agent.act(seen)
    agent.reset()
    with set_exploration_type(ExplorationType.RANDOM):
        assert agent.act(seen) == action
