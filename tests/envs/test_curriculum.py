"""Environment whose tasks a curriculum chooses: it plays these tasks, and changes nothing else."""

import copy
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import EnvBase
from yamame.checks import ArgumentError
from yamame.curriculum import PlayedEpisodes, PrioritizedReplay, TDErrors
from yamame.execution.capturing import recording
from yamame.system.messages import OutsideError
from yamame_envs import CurriculumEnv, Gym, MazeRunner, PackageDelivery, RepeatedTrials
from yamame_envs.split import is_held_out
from yamame_envs.streams import fold
from yamame_envs.testing import check_env

STEPS = 45


def pole(**settings):
    return Gym(id="CartPole-v1", time_limit=9, **settings)


def delivery(**settings):
    sizes = {"length": 2, "min_packages": 1, "max_packages": 1, "time_limit": 6}
    return PackageDelivery(**sizes, **settings)


def twice(make, *, seed=0, **settings):
    return RepeatedTrials(make(seed=seed, **settings), num_trials=2, seed=seed)


MAKES = {
    "batched": delivery,
    "trials": partial(twice, delivery),
    "trials of trials": partial(twice, partial(twice, delivery)),
    "hosted": pole,
    "trials, hosted": partial(twice, pole),
}


def filled(*, kept=8, **options):
    """A curriculum that replays often, and has seen some seeds."""
    curriculum = PrioritizedReplay(
        **{"min_seeds": 1, "replay_probability": 0.7, "score": "value_loss", **options}
    )
    if kept:
        curriculum.observe(episodes_of(torch.arange(kept)))
    return curriculum


def episodes_of(seeds):
    """Finished episodes of some seeds, each with an error that depends on its seed."""
    trajectories = TensorDict({"next": {"reward": torch.zeros(len(seeds), 2, 1)}}, [len(seeds), 2])
    error = (seeds % 7).float().unsqueeze(-1)
    td = TDErrors(error, torch.ones_like(error, dtype=torch.bool), 0.9)
    return PlayedEpisodes(seeds, trajectories, lambda _: td)


@pytest.fixture(params=MAKES)
def make(request):
    """Builds environments that number their episodes in every way that there is."""
    return MAKES[request.param]


def chosen(make, *, num_envs, seed=0, **options):
    return CurriculumEnv(make(num_envs=num_envs, seed=seed), filled(**options), seed=seed)


def test_it_keeps_the_laws_of_environments(make):
    check_env(partial(chosen, make), num_steps=24)


def test_without_a_replay_it_plays_what_the_environment_plays(make, play, same, different):
    bare, _ = play(make(num_envs=3), STEPS)
    plain, _ = play(chosen(make, num_envs=3, replay_probability=0.0), STEPS)
    replayed, _ = play(chosen(make, num_envs=3), STEPS)
    for one, other in zip(bare, plain, strict=True):
        same(other.exclude("played_seed", ("next", "played_seed")), one)
    changed = [
        different(other.select(*one.keys(True, True)), one)
        for one, other in zip(bare, replayed, strict=True)
    ]
    assert any(changed)


def test_every_episode_is_that_of_its_seed(make, play, actions_of):
    """Each env is followed by one that is asked for the seeds that it shows."""
    env = chosen(make, num_envs=3, replay_probability=0.5)
    seen, _ = play(env, STEPS)
    replays = fresh = 0
    for row in range(3):
        single = make(num_envs=1)
        for t, action in enumerate(actions_of(env, STEPS)):
            step = seen[t][row : row + 1]
            if bool(step["is_init"]):
                task_seed = step["played_seed"]
                is_replay = 0 <= int(task_seed) < 8
                replays += is_replay
                fresh += not is_replay
                td = single.reset(TensorDict({"task_seed": task_seed}, [1])).exclude("task_seed")
            after = single.step(td.set("action", action[row : row + 1])).get("next")
            td = after.exclude("reward")
            for key in after.keys(True, True):
                assert torch.equal(after[key], step["next"].get(key)), (key, t)
    assert min(replays, fresh) >= 2


@pytest.mark.parametrize("change", [False, True])
def test_it_goes_on_from_a_checkpoint_bit_for_bit(make, play, same, change):
    """Also where tasks were drawn ahead by choices that later episodes have changed."""

    def start(seed):
        return CurriculumEnv(make(num_envs=2, seed=seed), filled(kept=0), seed=seed)

    env, other = start(0), start(1)
    _, td = play(env, 10)
    for seeds in ([40, 41, 42], [43, 44]):
        env.observe(episodes_of(torch.tensor(seeds)))
        _, td = play(env, 10, td=td, start=10)
    other.load_state_dict(env.state_dict())
    if change:
        other.observe(episodes_of(torch.arange(50, 60)))
    expected, _ = play(env, 30, td=td.copy(), start=20)
    found, _ = play(other, 30, td=other.present(), start=20)
    played = [torch.cat([step["played_seed"] for step in steps]) for steps in (expected, found)]
    assert torch.equal(*played) != change
    assert bool(((played[0] >= 40) & (played[0] < 45)).any())
    if not change:
        for one, another in zip(expected, found, strict=True):
            same(one, another)


def test_what_was_observed_counts_from_the_next_episode_on(make, play):
    env = CurriculumEnv(
        make(num_envs=2), filled(kept=0, replay_probability=1.0, staleness=0.0), seed=0
    )
    _, td = play(env, 10)
    before = td["played_seed"].clone()
    env.observe(episodes_of(torch.tensor([77])))
    assert torch.equal(env.present()["played_seed"], before)
    seen, td = play(env, 40, td=td, start=10)
    begun = torch.cat([step["played_seed"][step["is_init"]] for step in seen[1:]])
    assert len(begun) > 2
    assert set(begun.tolist()) == {77}


@pytest.mark.parametrize("name", ["batched", "trials", "trials of trials"])
def test_captured_steps_are_ordinary_ones(name, actions_of, same):
    env, other = (chosen(MAKES[name], num_envs=3) for _ in range(2))
    assert env.capture_obstacle is None
    td, again = env.reset(), other.reset()
    env.observe(episodes_of(torch.arange(20, 23)))
    other.observe(episodes_of(torch.arange(20, 23)))
    assert other.reserve(STEPS)
    for action in actions_of(env, STEPS):
        taken, td = env.step_and_maybe_reset(td.set("action", action))
        with recording():
            captured, again = other.step_and_maybe_reset(again.set("action", action))
        same(captured, taken)
        same(again, td)
    assert other.reserve(1)


@pytest.mark.parametrize("name", ["hosted", "trials, hosted"])
def test_steps_that_choose_on_the_host_are_not_captured(name):
    env = chosen(MAKES[name], num_envs=2)
    env.reset()
    assert env.capture_obstacle is not None
    assert not env.reserve(1)


def test_replayed_tasks_stay_on_their_side_of_the_split(play):
    def hashes(split):
        settings = {"size": 9, "num_goals": 1, "time_limit": 3, "split_by": "walls"}
        inner = MazeRunner(num_envs=8, split=split, **settings)
        env, found, td = CurriculumEnv(inner, filled(kept=64)), [], None
        for number in range(12):
            _, td = play(env, 3, td=td, start=3 * number)
            found.append(env.task_hashes())
        return torch.cat(found)

    assert not is_held_out(hashes("train")).any()
    assert is_held_out(hashes("test")).all()
    assert is_held_out(hashes("all")).any()


class Newest:
    """A stranger's curriculum: plays the newest seed again, with or without its random numbers."""

    def __init__(self, result=None):
        self.seeds, self.result = [], result

    def choose(self, seeds, uniform):
        assert uniform.shape == (len(seeds), 2)
        assert bool((uniform >= 0).all() & (uniform < 1).all())
        if self.result is not None:
            return self.result
        return torch.full_like(seeds, self.seeds[-1]) if self.seeds else seeds

    def observe(self, episodes):
        self.seeds += episodes.task_seed.tolist()

    def state_dict(self):
        return {"seeds": list(self.seeds)}

    def load_state_dict(self, state):
        self.seeds = list(state["seeds"])


class Module(Newest, torch.nn.Module):
    """A curriculum with parameters, which are no part of the environment."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        Newest.__init__(self)


@pytest.mark.parametrize("kind", [Newest, Module])
def test_a_curriculum_of_another_package_chooses_tasks(make, play, kind):
    env = CurriculumEnv(make(num_envs=2, seed=3), kind(), seed=3)
    expected = fold(fold(torch.tensor(3), torch.arange(2)), 0)
    assert torch.equal(env.reset()["played_seed"].flatten(), expected)
    assert list(env.parameters()) == []
    env.observe(episodes_of(torch.tensor([5])))
    td = env.reset()
    assert td["played_seed"].flatten().tolist() == [5, 5]
    asked = env.reset(td.empty().set("task_seed", torch.tensor([[8], [9]])))
    assert asked["played_seed"].flatten().tolist() == [8, 9]


def test_what_is_no_choice_or_no_curriculum_is_one_line():
    for wrong in (torch.zeros(2), torch.zeros(1, dtype=torch.int64), [1, 2], None):
        curriculum = Newest(result=wrong)
        curriculum.seeds = [1]
        if wrong is None:
            curriculum.choose = lambda seeds, uniform: None
        env = CurriculumEnv(delivery(num_envs=2), curriculum)
        with pytest.raises(OutsideError, match=r"Newest: the result of choose\(\).*got"):
            env.reset()
    for wrong in (torch.ones(3, dtype=torch.bool), torch.ones(2), [True, False]):
        curriculum = Newest()
        curriculum.observe = lambda episodes, wrong=wrong: wrong
        env = CurriculumEnv(delivery(num_envs=2), curriculum)
        with pytest.raises(OutsideError, match=r"Newest: the result of observe\(\).*\[2\], got"):
            env.observe(episodes_of(torch.tensor([5, 6])))
    with pytest.raises(ArgumentError, match=r"curriculum.*choose, observe.*object"):
        CurriculumEnv(delivery(num_envs=2), object())

    class Plain(EnvBase):
        def __init__(self):
            super().__init__(batch_size=[2])

        _reset = _step = _set_seed = None

    with pytest.raises(ArgumentError, match=r"ContextEnv.*Plain.*trials=repeated"):
        CurriculumEnv(Plain(), filled())


def test_attributes_of_the_environment_are_found():
    inner = MazeRunner(num_envs=2, size=9, split="train", split_by="walls_and_goals")
    env = CurriculumEnv(inner, filled())
    assert env.novelty == inner.novelty
    assert env.held_out_instructions is inner.held_out_instructions or (
        env.held_out_instructions == inner.held_out_instructions
    )
    with pytest.raises(AttributeError):
        env.no_such_thing  # noqa: B018
    env.reset()
    assert env.render(1).ndim == 3
    assert env.task_hashes().shape == (2,)


def changed_entries(before, after):
    return [
        name for name, value in before["env"].items() if not torch.equal(value, after["env"][name])
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: {**state, "curriculum": {}},
            "PrioritizedReplay: state_dict must hold table",
        ),
        (lambda state: {**state, "counters": {}}, "state_dict.counters must hold"),
        (lambda state: {**state, "env": {}}, "PackageDelivery: state_dict must hold"),
        (lambda state: state, "capacity must be at least 8"),
    ],
)
def test_a_refused_state_changes_nothing(change, message):
    saved = chosen(delivery, num_envs=2)
    saved.reset()
    capacity = 4 if message.startswith("capacity") else 10
    other = chosen(delivery, num_envs=2, seed=3, kept=2, capacity=capacity)
    other.reset()
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ArgumentError, match=message):
        other.load_state_dict(change(saved.state_dict()))
    after = other.state_dict()
    assert changed_entries(before, after) == []
    assert before["curriculum"]["num_observed"] == after["curriculum"]["num_observed"]
    assert torch.equal(before["curriculum"]["table"]["seed"], after["curriculum"]["table"]["seed"])
