"""A new encoder, environment, optimizer, recipe or setting touches few files.

Each is added to a copy of the repository, used from the command line, and loaded from the run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("components", "envs", "conf", "recipes")
TINY = ("debug=tiny", "logger=none", "run.root=runs", "run.name=mine")

ENCODER = '''
"""Encoder without memory that scales its features."""

import torch
from tensordict import TensorDict

from yamame.checks import PositiveInt, check_bounds
from yamame.trajectory.base import TrajectoryEncoder


class ScaleEncoder(TrajectoryEncoder):
    """Linear map of the features of each timestep."""

    @check_bounds
    def __init__(self, in_features: PositiveInt, *, out_features: PositiveInt = 8) -> None:
        super().__init__(in_features, out_features)
        self.linear = torch.nn.Linear(in_features, out_features)

    def init_memory(self, num_envs, *, capacity=None, device=None):
        return TensorDict({}, [num_envs], device=self.linear.weight.device)

    def step(self, x, memory, is_init, step_index=None):
        return self.linear(x), memory

    def parallel(self, x, step_index, is_init):
        return self.linear(x)
'''

ENVIRONMENT = '''
"""Bandit with another name."""

from yamame_envs.bandits import Bandits


class OtherBandits(Bandits):
    """Bandits of another file."""
'''

OPTIMIZER = '''
"""Stochastic gradient descent of our own."""

import torch


class OurSGD(torch.optim.SGD):
    """SGD with another name."""
'''

RECIPE = '''
"""Print the number of parameters of a configuration."""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")

# isort: split
import yamame

cfg = yamame.compose(*sys.argv[1:])
print("encoder", cfg.encoder._target_)
'''


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Copy of the sources."""
    folder = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(repository: Path, *command: str) -> str:
    """Run Python in the copy and return what it prints."""
    paths = os.pathsep.join(str(repository / name) for name in ("components", "envs"))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=repository, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_an_encoder_and_an_optimizer_need_a_source_file_and_a_yaml_file(repository):
    (repository / "components/yamame/trajectory/scale.py").write_text(ENCODER)
    (repository / "conf/encoder/scale.yaml").write_text(
        "_target_: yamame.trajectory.scale.ScaleEncoder\n_partial_: true\nout_features: 8\n"
    )
    (repository / "components/yamame/training/our_sgd.py").write_text(OPTIMIZER)
    (repository / "conf/optimizer/our_sgd.yaml").write_text(
        "_target_: yamame.training.our_sgd.OurSGD\nlr: 0.001\n"
    )
    choices = ("encoder=scale", "optimizer=our_sgd")
    run(repository, "recipes/train.py", *choices, *TINY, "run.overwrite=true")
    # The run is a file: it may name the new classes without a list that knows them.
    program = "import yamame; print(type(yamame.load('runs/mine')).__name__)"
    assert run(repository, "-c", program).strip() == "DeployedAgent"
    help_text = run(repository, "recipes/train.py", *choices, "--help")
    assert "out_features" in help_text


def test_an_environment_needs_a_source_file_a_yaml_file_and_an_export(repository):
    (repository / "envs/yamame_envs/other_bandits.py").write_text(ENVIRONMENT)
    with (repository / "envs/yamame_envs/__init__.py").open("a") as file:
        file.write("from yamame_envs.other_bandits import OtherBandits as OtherBandits\n")
    text = (repository / "conf/env/bandits.yaml").read_text()
    assert text.count("yamame_envs.Bandits") == 1
    text = text.replace("yamame_envs.Bandits", "yamame_envs.OtherBandits")
    (repository / "conf/env/other_bandits.yaml").write_text(text)
    run(repository, "recipes/train.py", "env=other_bandits", *TINY, "run.overwrite=true")
    # The run is played from its file.
    run(repository, "recipes/evaluate.py", "run=runs/mine", "num_episodes=4")


def test_a_recipe_needs_one_file(repository):
    (repository / "recipes/count.py").write_text(RECIPE)
    printed = run(repository, "recipes/count.py", "encoder=gru")
    assert printed.strip() == "encoder yamame.trajectory.GRUEncoder"


def test_a_setting_touches_three_source_files(repository):
    model = repository / "components/yamame/cli/training_settings.py"
    values = repository / "conf/train.yaml"
    use = repository / "recipes/train.py"
    edits = {
        model: (
            'class TrainSchedule(ReplaySchedule):\n    """Schedule of `train`, which alternates '
            'collecting and learning."""\n',
            '\n    greeting: str\n    """Text that a run prints first."""\n',
        ),
        values: ("schedule:\n", "  greeting: hello\n"),
        use: ('without success."""\n', "    print(cfg.schedule.greeting)\n"),
    }
    for file, (anchor, added) in edits.items():
        text = file.read_text()
        assert text.count(anchor) == 1, file
        file.write_text(text.replace(anchor, anchor + added))

    setting = "schedule.greeting=welcome"
    printed = run(repository, "recipes/train.py", *TINY, "run.overwrite=true", setting)
    assert "welcome" in printed.splitlines()
    assert "Text that a run prints first." in run(repository, "recipes/train.py", "--help")
    with pytest.raises(AssertionError, match=r"schedule\.greeting: must be a string"):
        run(repository, "recipes/train.py", *TINY, "schedule.greeting=null")
