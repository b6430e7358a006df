"""A folder outside of the repository with an environment, an encoder, a loss and an optimizer of
its own.
"""

import json
import shutil
import sys
from pathlib import Path

import gymnasium
import pytest
import torch
from yamame.checks import UsageError
from yamame.runs.trained import load_trained
from yamame.testing import check_relabeller, check_trajectory_encoder, random_goal_trajectories

EXAMPLE = Path(__file__).parents[2] / "examples" / "mylab"
TINY = ["debug=tiny", "logger=none", "budget.updates=3", "evaluation.num_episodes=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the example, whose module and place are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("mylab", None)  # of a page that has one, too
    yield shutil.copytree(EXAMPLE, tmp_path / "lab")
    sys.modules.pop("mylab", None)
    gymnasium.registry.pop("Levers-v0", None)


def test_a_sweep_over_own_and_other_encoders_trains_with_own_parts(play, folder):
    sweep = ["experiment=doors", "--config-dir", "conf", "-m", "encoder=fading_sum,gru"]
    status, out, err = play("train", folder, *sweep, *TINY)
    assert status == 0, err
    assert [line.split()[1:2] for line in out.splitlines()].count(["ran"]) == 2, out
    runs = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 2
    for run in runs:
        assert json.loads((run / "summary.json").read_text())["updates"] == 3
    (told,) = [line for line in out.splitlines() if line.startswith("hardly learned: job 0")]
    status, out, err = play("train", folder, *sweep, *TINY)
    assert (status, out.splitlines().count(told)) == (0, 1), out  # of jobs that are done, too
    own = next(run for run in runs if "fading_sum" in run.name)
    with pytest.raises(UsageError, match=r"got 'mylab\.FadingSum'; .*must be in trust"):
        load_trained(own)
    trained = load_trained(own, trust=["mylab."])
    assert (
        type(trained.build_agent(trained.build_env(num_envs=2, seed=0)).trajectory_encoder).__name__
        == "FadingSum"
    )


def test_own_choices_are_listed_and_own_directories_must_be_there(play, folder):
    status, _, err = play("train", folder, "--config-dir=conf", "encoder=fading")
    assert (status, err.count("\n")) == (2, 1)
    assert "did you mean fading_sum" in err
    status, _, err = play("train", folder, "hydra.searchpath=[file://conf]", "env=door")
    assert (status, "did you mean doors" in err) == (2, True)
    status, _, err = play("train", folder, "hydra.searchpath=[file://conf]", "env=null")
    assert (status, "crafter, dark_key_to_door, doors, frozenlake" in err) == (2, True)
    status, _, err = play("train", folder, "hydra.searchpath=5", "env=null")
    assert (status, err.count("\n"), "env=null: no such choice" in err) == (2, 1, True)
    status, _, err = play("train", folder, "-cd", "nowhere")
    assert (status, err) == (2, "train: --config-dir: must be a directory, got nowhere\n")
    status, _, err = play("train", folder, "--encoder=gru")
    assert (status, err.count("\n"), "no dashes" in err) == (2, 1, True)


def test_nothing_of_ones_own_is_named_without_trust(play, folder):
    status, _, err = play(
        "train", folder, "--config-dir", "conf", "experiment=doors", "trust=[]", *TINY
    )
    assert status == 2
    # Every class of the folder is reported, a line each.
    assert all("a package of trust" in line for line in err.splitlines())
    assert not (folder / "runs").exists()


def test_the_encoder_keeps_the_laws_and_the_environment_its_specs(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    import mylab
    from torchrl.envs.utils import check_env_specs

    check_trajectory_encoder(mylab.FadingSum(5))
    check_env_specs(mylab.Doors(num_envs=3), seed=0)


@pytest.mark.filterwarnings("ignore:.*You are calling render")
def test_an_environment_that_is_no_batch_is_built_several_times(play, folder):
    source = "from torchrl.envs import GymEnv\n\ndef make():\n    return GymEnv('CartPole-v1')\n"
    (folder / "alone.py").write_text(source)
    own = [
        "env._target_=alone.make",
        "~env.num_doors",
        "trust=[mylab.,alone.]",
        "schedule.num_envs=2",
    ]
    status, _, err = play("train", folder, "--config-dir", "conf", "experiment=doors", *own, *TINY)
    sys.modules.pop("alone", None)
    assert status == 0, err
    (run,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    assert json.loads((run / "summary.json").read_text())["return_mean"] > 5


def test_a_sweep_over_own_and_other_relabellers_relabels(play, folder):
    maze = [
        "env=mazerunner",
        "env.num_goals=1",
        "env.time_limit=20",
        "encoder=fading_sum",
    ]
    sweep = [*maze, "--config-dir", "conf", "-m", "relabel=final,none", "trust=[mylab.]"]
    status, out, err = play("train", folder, *sweep, *TINY)
    assert status == 0, err
    assert [line.split()[1:2] for line in out.splitlines()].count(["ran"]) == 2, out
    runs = {path.name: path for path in (folder / "runs").iterdir() if path.is_dir()}
    assert [json.loads((run / "summary.json").read_text())["updates"] for run in runs.values()] == [
        3,
        3,
    ]
    agents = [load_trained(run, trust=["mylab."]).weights for run in runs.values()]
    first, other = (
        torch.cat([value.flatten().double() for value in agent.values()]) for agent in agents
    )
    assert not torch.equal(first, other)  # they learned from other goals
    import mylab

    check_relabeller(mylab.FinalGoal(), random_goal_trajectories(16, seed=3))


def test_the_whole_way_goes_in_python(play, folder, monkeypatch, empty_store):
    shutil.copy(empty_store, folder)
    monkeypatch.chdir(folder)
    script = (folder / "workflow.py").read_text()
    assert len([line for line in script.splitlines() if line]) <= 17
    tiny = "'debug=tiny', 'evaluation.num_episodes=2', 'logger.models=false', 'resume=auto'"
    for long, short in (('"resume=auto"', tiny), ("for seed in (0, 1)", "for seed in (0,)")):
        assert long in script
        script = script.replace(long, short)
    names: dict = {}
    exec(compile(script, "workflow.py", "exec"), names)
    assert len({run.name for run in names["runs"]}) == 2
    assert names["shots"].summary["success"] is not None
    assert len(names["report"]["run"][0]["gammas"][-1]["trials"]["mean"]) == 6
    page = (folder / "report" / "index.html").read_text()
    assert all(run.name in page for run in [*names["runs"], names["shots"]])


@pytest.mark.filterwarnings("ignore:.*You are calling render")
def test_an_environment_that_tells_only_that_episodes_are_done(play, folder):
    source = (
        "import torch\n"
        "from tensordict import TensorDict\n"
        "from torchrl.data import Binary, Categorical, Composite, Unbounded\n"
        "from torchrl.envs import EnvBase\n\n\n"
        "class Seven(EnvBase):\n"
        "    def __init__(self):\n"
        "        super().__init__(batch_size=[])\n"
        "        self.observation_spec = Composite(observation=Unbounded((1,)))\n"
        "        self.action_spec, self.reward_spec = Categorical(2), Unbounded((1,))\n"
        "        self.done_spec = Binary(1, (1,), dtype=torch.bool)\n\n"
        "    def _set_seed(self, seed):\n"
        "        pass\n\n"
        "    def _look(self):\n"
        "        return {'observation': torch.ones(1), 'done': torch.tensor([self.t >= 7])}\n\n"
        "    def _reset(self, tensordict=None, **_):\n"
        "        self.t = 0\n"
        "        return TensorDict(self._look(), [])\n\n"
        "    def _step(self, tensordict):\n"
        "        self.t += 1\n"
        "        return TensorDict({**self._look(), 'reward': "
        "tensordict['action'].float().view(1)}, [])\n"
    )
    (folder / "seven.py").write_text(source)
    own = [
        "env._target_=seven.Seven",
        "~env.num_doors",
        "trust=[mylab.,seven.]",
        "schedule.num_envs=2",
    ]
    status, _, err = play("train", folder, "--config-dir", "conf", "experiment=doors", *own, *TINY)
    sys.modules.pop("seven", None)
    assert status == 0, err
    (run,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    assert 0 <= json.loads((run / "summary.json").read_text())["return_mean"] <= 7
