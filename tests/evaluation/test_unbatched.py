"""An environment of TorchRL without a batch dimension and without pictures, as recipes stack it."""

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv
from yamame.evaluation import evaluate, play_episode, render_video


class Bare(EnvBase):
    def __init__(self):
        super().__init__(batch_size=[])
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec, self.reward_spec = Categorical(2), Unbounded((1,))
        self.done_spec = Composite(
            done=Binary(1, dtype=torch.bool), terminated=Binary(1, dtype=torch.bool)
        )

    def _reset(self, tensordict=None, **_):
        return TensorDict({"observation": torch.zeros(2)})

    def _step(self, tensordict):
        over = torch.ones(1, dtype=torch.bool)
        return TensorDict(
            {
                "observation": torch.zeros(2),
                "reward": torch.ones(1),
                "done": over,
                "terminated": over,
            }
        )

    def _set_seed(self, seed): ...


def test_what_has_no_pictures_is_said_to_have_none():
    for env in (Bare(), SerialEnv(2, Bare)):
        with pytest.raises(NotImplementedError, match=r"the environment has no method render\(\)"):
            render_video(lambda timestep: timestep, env)


def no_action(timestep):
    return timestep


def a_tensor(timestep):
    return timestep["observation"]


def nothing(timestep):
    timestep["action"] = torch.zeros(1)


def plays(timestep):
    return timestep.set("action", torch.zeros(timestep.shape, dtype=torch.long))


@pytest.mark.parametrize("play", [evaluate, play_episode])
def test_players_of_another_kind_are_refused(play):
    play(plays, Bare())
    for policy, found in ((no_action, "observation"), (a_tensor, "Tensor"), (nothing, "NoneType")):
        with pytest.raises(ValueError, match=f"with the action under 'action', got .*{found}"):
            play(policy, Bare())
    with pytest.raises(ValueError, match=r"policy must .*got 'str'"):
        play("best", Bare())
    for env in ("CartPole-v1", gymnasium.make("CartPole-v1")):
        message = f"env must be a TorchRL environment.*got '{type(env).__name__}'.*GymWrapper"
        with pytest.raises(ValueError, match=message):
            play(plays, env)
