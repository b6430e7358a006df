"""An environment of TorchRL without a batch dimension and without pictures, as recipes stack it."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv
from yamame.evaluation import render_video


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
