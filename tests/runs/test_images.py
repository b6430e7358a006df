"""Images of floats and stacked frames are encoded in new runs, and as before in earlier ones."""

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
import yamame
from gymnasium import spaces
from omegaconf import OmegaConf
from yamame.checks import UsageError
from yamame.files.identity import compare_config
from yamame.runs.trained import load_trained

TINY = ("debug=tiny", "encoder=memoryless", "logger=none", "env=gym", "env.id=Camera-v0")
SPACES = {
    "frames": spaces.Box(0, 255, (2, 12, 10, 3), np.uint8),
    "shares": spaces.Box(0, 1, (3, 12, 10), np.float64),
    "depth": spaces.Box(0, 65535, (12, 10), np.uint16),
}


class Camera(gymnasium.Env):
    action_space = spaces.Discrete(2)

    def __init__(self, kind="frames"):
        self.observation_space = SPACES[kind]

    def _observation(self):
        space = self.observation_space
        share = self.np_random.random(space.shape)
        return (share * space.high).astype(space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        return self._observation(), 1.0, self.steps >= 5, False, {}


@pytest.fixture(autouse=True)
def _camera(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("cameras")
    module.Camera = Camera
    monkeypatch.setitem(sys.modules, "cameras", module)
    gymnasium.register("Camera-v0", entry_point="cameras:Camera")
    yield
    del gymnasium.registry["Camera-v0"]


def weights(run):
    saved = torch.load(run.checkpoints.last, weights_only=True)
    return saved["components"]["agent"], saved


@pytest.mark.parametrize("kind", SPACES)
def test_images_of_every_dtype_pass_an_image_encoder(kind):
    run = yamame.train(*TINY, f"+env.settings.kind={kind}", "run.name=a")
    names = weights(run)[0]
    assert any("encoders.0.convolutions" in name for name in names)
    loaded = yamame.load(run.path)
    observation = {"observation": SPACES[kind].sample()}
    assert loaded.act(observation) in (0, 1)


def test_a_run_of_an_earlier_version_keeps_its_encoder(tmp_path):
    # Without an average, the loaded weights are those of the checkpoint's agent.
    settings = (*TINY, "+env.settings.kind=shares", "schedule.average_decay=null")
    run = yamame.train(*settings, "run.name=a", "timestep_encoder.images=bytes")
    names, saved = weights(run)
    assert not any("convolutions" in name for name in names)
    del saved["config"]["timestep_encoder"]["images"]  # which that version did not have
    torch.save(saved, run.checkpoints.last)
    trained = load_trained(run.path, checkpoint="last")
    with_env = trained.build_env(num_envs=1, seed=0)
    assert torch.equal(
        trained.build_agent(with_env).state_dict()["timestep_encoder.mlp.0.weight"],
        names["timestep_encoder.mlp.0.weight"],
    )
    assert yamame.load(run.path, checkpoint="last") is not None
    with pytest.raises(UsageError, match=r"timestep_encoder\.images=bytes"):
        compare_config(saved["config"], yamame.compose(*settings))
    kept = yamame.compose(*settings, "timestep_encoder.images=bytes")
    saved["config"]["run"] = kept["run"]
    compare_config(saved["config"], kept)


def test_runs_of_environments_without_such_images_resume_without_the_setting():
    config = yamame.compose("env=mazerunner")
    plain = OmegaConf.to_container(config, resolve=True)
    former = {**plain, "timestep_encoder": dict(plain["timestep_encoder"])}
    del former["timestep_encoder"]["images"]
    compare_config(former, plain)
