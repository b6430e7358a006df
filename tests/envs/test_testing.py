"""The checker of environments: what breaks a law is found, and named."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite
from torchrl.envs import EnvBase, TransformedEnv
from yamame.checks import ArgumentError
from yamame.transforms import ContextTransform
from yamame_envs import BatchedEnv, PassiveTMaze, RepeatedTrials
from yamame_envs.streams import fold, integers
from yamame_envs.testing import check_env


class Lamps(BatchedEnv):
    """Press the button of a hidden lamp."""

    def __init__(self, *, num_envs=1, seed=0, device="cpu"):
        spec = Bounded(0.0, 9.0, shape=(1,), dtype=torch.float32, device=device)
        super().__init__(
            num_envs=num_envs,
            time_limit=6,
            action=Categorical(3),
            observations={"observation": spec},
            seed=seed,
            device=device,
        )

    def draw_tasks(self, task_seed):
        return {"lamp": integers(fold(task_seed, 0), 3)}

    def begin(self, task):
        return {"pressed": torch.zeros_like(task["lamp"])}

    def transition(self, task, state, action):
        reward = (action == task["lamp"]).float().unsqueeze(-1)
        pressed = state["pressed"] + (reward.squeeze(-1) > 0)
        return {"pressed": pressed}, reward, (pressed >= 3).unsqueeze(-1)

    def observe(self, task, state):
        return {"observation": state["pressed"].float().unsqueeze(-1)}


def leaks_rows(env, task, state):
    """All lamps as one observation."""
    return {"observation": state["pressed"].float().mean().expand(len(task["lamp"]), 1).clone()}


class ReadsOthers(Lamps):
    def observe(self, task, state):
        return leaks_rows(self, task, state)


class CountsRows(Lamps):
    def observe(self, task, state):
        return {"observation": torch.full((len(task["lamp"]), 1), float(len(task["lamp"])))}


class OutOfBounds(Lamps):
    def observe(self, task, state):
        return {"observation": 10.0 * state["step_index"].float()}


class GlobalNoise(Lamps):
    def transition(self, task, state, action):
        state, reward, success = super().transition(task, state, action)
        return state, reward + torch.rand_like(reward), success


class IgnoresSeed(Lamps):
    def restart(self, streams):
        super().restart(torch.arange(len(streams)))


class TasksOfTheEnv(Lamps):
    def draw_tasks(self, task_seed):
        return {"lamp": torch.arange(len(task_seed)) % 3}


class ResetsAll(Lamps):
    def begin_episodes(self, begins, tensordict):
        super().begin_episodes(begins | begins.any(), tensordict)


class Forgets(Lamps):
    def state_dict(self):
        state = super().state_dict()
        state["state.pressed"].zero_()
        return state


class GivesItself(Lamps):
    def state_dict(self):
        return self.env_state.tensors()

    def advance(self, action):
        before = self.env_state.state["pressed"]
        advanced = super().advance(action)
        before.copy_(self.env_state.state["pressed"])
        return advanced


class NaNReward(Lamps):
    def transition(self, task, state, action):
        state, reward, success = super().transition(task, state, action)
        return state, reward / 0.0, success


def two_trials(*, num_envs, seed):
    return RepeatedTrials(Lamps(num_envs=num_envs, seed=seed), num_trials=2, seed=seed)


@pytest.mark.parametrize("make", [Lamps, two_trials, partial(PassiveTMaze, length=3)])
def test_good_environments_pass(make):
    check_env(make, num_steps=24)


@pytest.mark.parametrize(
    ("broken", "law", "name"),
    [
        (OutOfBounds, "specs", "observation"),
        (NaNReward, "specs", "reward"),
        (ReadsOthers, "rows", "observation"),
        (CountsRows, "rows", "observation"),
        (GlobalNoise, "rows", "reward"),
        (IgnoresSeed, "seeds", "seed"),
        (TasksOfTheEnv, "tasks", "task_seed"),
        (ResetsAll, "resets", "observation"),
        (Forgets, "state", "observation"),
        (GivesItself, "state", "copies"),
    ],
)
def test_a_broken_law_is_named(broken, law, name):
    laws = ["specs", "rows", "seeds", "tasks", "resets", "state"]
    before = laws[: laws.index(law)]
    with pytest.raises(AssertionError, match=f"^{law}: .*{name}"):
        check_env(broken, num_steps=24, skip=before)
    if law == "specs":
        return
    check_env(broken, num_steps=24, skip=laws)


class Bare(EnvBase):
    """TorchRL environment without context or state."""

    def __init__(self, *, num_envs, seed):
        super().__init__(batch_size=[num_envs])
        lamps = Lamps(num_envs=num_envs, seed=seed)
        self.inner = lamps
        self.observation_spec = Composite(
            observation=lamps.observation_spec["observation"].clone(), shape=[num_envs]
        )
        self.action_spec = lamps.action_spec.clone()
        self.reward_spec = lamps.reward_spec.clone()
        self.full_done_spec = lamps.full_done_spec.clone()
        self.state_dict = dict

    def _set_seed(self, seed):
        self.inner.set_seed(seed)

    def _reset(self, tensordict=None, **_):
        return self.inner.reset(tensordict).select("observation", *self.full_done_spec.keys())

    def _step(self, tensordict):
        step = self.inner.step(TensorDict({"action": tensordict["action"]}, self.batch_size))
        return step["next"].select("observation", "reward", *self.full_done_spec.keys())


def test_a_bare_environment_needs_its_context_and_a_state():
    with pytest.raises(AssertionError, match=r"^specs: .*'prev_action'.*ContextTransform"):
        check_env(Bare)
    with pytest.raises(AssertionError, match=r"^state: .*empty"):
        check_env(lambda **given: TransformedEnv(Bare(**given), ContextTransform()))


def test_laws_that_do_not_exist_cannot_be_skipped():
    with pytest.raises(ArgumentError, match="skip"):
        check_env(Lamps, skip=["everything"])


def test_names_of_entries_that_the_base_class_uses_are_refused():
    class Numbered(Lamps):
        def draw_tasks(self, task_seed):
            return {**super().draw_tasks(task_seed), "number": task_seed}

    with pytest.raises(ArgumentError, match="draw_tasks must return no entry number"):
        Numbered().reset()
