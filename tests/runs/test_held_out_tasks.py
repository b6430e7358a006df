"""Held-out tasks stay held out on every path from environments and data to the learner, and results
name what is new.

Tasks are told by what an environment shows of itself: ``observable`` adds its layout to every
timestep, and the first timestep holds the whole instruction. So nothing here depends on how tasks
are hashed.
"""

import numpy as np
import pytest
import torch
import yamame
from tensordict.nn import TensorDictModule
from yamame.collectors import SyncCollector
from yamame.replay import Relabel, TrajectoryReplayBuffer
from yamame.runs.build import build_data, build_env, build_source, build_transform
from yamame.training.progress import Progress

QUIET = ["logger=none", "window=null", "packing=null", "env.observable=true"]
MAZE = ["env=mazerunner", "env.num_goals=1", "env.time_limit=40"]
ROAD = [
    "env=package_delivery",
    "env.length=6",
    "env.min_packages=1",
    "env.max_packages=1",
    "env.time_limit=20",
]
LAYOUTS = {
    "mazes": (["experiment=cpu_mazerunner"], 81),
    "shuffled mazes": (["experiment=cpu_mazerunner", "env.randomize_actions=true"], 81),
    "roads": (["experiment=cpu_package_delivery"], 10),
    "rooms": (["experiment=cpu_dark_key_to_door"], 4),
    "shuffled rooms": (["experiment=cpu_dark_key_to_door", "env.randomize_actions=true"], 4),
    "lakes": (["experiment=cpu_frozenlake"], 16),
    "hard lakes": (["env=frozenlake", "env.size=4", "env.hard=true"], 16),
}
"""Overrides, and how many numbers of ``hidden`` show walls, road and button, door and key, or
holes.
"""


def rows(*parts):
    """Rows of several tensors ``[B, ...]`` side by side, as a set of tuples."""
    return set(map(tuple, torch.cat([part.flatten(1).double() for part in parts], 1).tolist()))


def layouts_played(cfg, num_envs, width, *, held_out):
    """The layouts of the first episodes of so many envs."""
    seed = cfg.evaluation.seed if held_out else cfg.seed
    env = build_env(cfg, num_envs=num_envs, seed=seed, held_out=held_out)
    return rows(env.reset()["hidden"][:, :width])


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_of_an_evaluation_is_met_in_training(name):
    overrides, width = LAYOUTS[name]
    cfg = yamame.compose(*overrides, *QUIET)
    held_out = layouts_played(cfg, 256, width, held_out=True)
    trained = layouts_played(cfg, 1000, width, held_out=False)
    assert len(held_out) > 8
    assert len(trained) > 8
    assert held_out & trained == set()
    # The negative control: without a split training meets them.
    cfg = yamame.compose(*overrides, *QUIET, "env.split=all", "evaluation.env.split=all")
    held_out = layouts_played(cfg, 256, width, held_out=True)
    assert held_out & layouts_played(cfg, 1000, width, held_out=False)


class Played:
    """Random episodes of a configuration in a replay buffer on disk, and their layouts, paired with
    instructions.
    """

    def __init__(self, cfg, folder, width):
        self.cfg, self.folder, self.width = cfg, folder, width
        self.env = build_env(cfg, num_envs=64, seed=cfg.seed)
        self.transform = build_transform(cfg, self.env)
        self.replay = TrajectoryReplayBuffer(folder, capacity=100_000, transform=self.transform)
        random = TensorDictModule(
            lambda flag: torch.randint(self.num_actions, flag.shape[:1]), ["is_init"], ["action"]
        )
        SyncCollector(self.env, random, self.replay).collect(6000)

    @property
    def num_actions(self):
        return int(self.env.action_spec.space.n)

    def layouts(self, batch):
        return rows(batch["hidden"][:, 0, : self.width])

    def pairs(self, batch):
        return rows(
            batch["hidden"][:, 0, : self.width],
            *([batch["goal"][:, 0]] if "goal" in batch.keys() else []),
        )

    def roster(self):
        """The first timesteps of an evaluation."""
        env = build_env(self.cfg, num_envs=256, seed=self.cfg.evaluation.seed, held_out=True)
        return env.reset().unsqueeze(1)

    def drawn(self, source):
        """What a learner draws; the first timestep of each trajectory."""
        return torch.cat(
            [source.sample(256).select("hidden", "goal", strict=False)[:, :1] for _ in range(10)]
        )


def by_runs(played, tmp_path):
    played.cfg.data.source = {"_target_": "yamame.data.runs", "path": str(played.folder)}
    return build_data(played.cfg, played.env, transform=played.transform)


def by_files(played, tmp_path):
    """As a person writes them: one episode after the other, everything that is observed under its
    name.
    """
    batch = played.replay.storage.get(slice(0, 400))
    acts = batch["mask"][:, :-1, 0] & batch["mask"][:, 1:, 0]
    shown = {"observation", "hidden", "goal", "achieved", "achieved_mask", "world_hash"}
    arrays = {}
    for key in shown & set(batch.keys()):
        place = "observations/" if key in ("observation", "hidden") else ""
        arrays[f"{place}{key}"] = batch[key][:, :-1][acts].numpy()
        arrays[f"next_{place}{key}"] = batch[key][:, 1:][acts].numpy()
    arrays["actions"] = batch["action"][:, :-1][acts].numpy()
    arrays["rewards"] = batch["next", "reward"][:, :-1][acts].numpy().squeeze(-1)
    arrays["terminals"] = batch["next", "terminated"][:, :-1][acts].numpy().squeeze(-1)
    np.savez(tmp_path / "demos.npz", **arrays)
    played.cfg.data.source = {"_target_": "yamame.data.npz", "path": str(tmp_path / "demos.npz")}
    return build_data(played.cfg, played.env, transform=played.transform)


def by_mixture(played, tmp_path):
    played.cfg.data.source = {"_target_": "yamame.data.runs", "path": str(played.folder)}
    given = {"replay": played.replay, "transform": played.transform, "progress": Progress()}
    return build_source(played.cfg, played.env, **given)


PATHS = {
    "replay": lambda played, tmp_path: played.replay,
    "runs": by_runs,
    "npz": by_files,
    "mixture": by_mixture,
}
SPLITS = {
    "mazes": (MAZE, 81),
    "roads": (ROAD, 10),
    "rooms": (
        ["env=dark_key_to_door", "env.size=4", "env.time_limit=20", "env.randomize_actions=true"],
        4,
    ),
    "lakes": (["env=frozenlake", "env.size=4", "env.num_trials=1", "env.hard=true"], 16),
    "pairs of a maze and goals": ([*MAZE, "env.split_by=walls_and_goals"], 81),
    "pairs of a small maze and goals": ([*MAZE, "env.size=7", "env.split_by=walls_and_goals"], 49),
    "pairs of a road and goals": ([*ROAD, "env.split_by=roads_and_goals"], 10),
}


@pytest.fixture(scope="module", params=SPLITS)
def played(request, tmp_path_factory):
    overrides, width = SPLITS[request.param]
    torch.manual_seed(0)
    has_goals = overrides[0] in (MAZE[0], ROAD[0])
    cfg = yamame.compose(*overrides, *QUIET, *(["relabel=all"] if has_goals else []))
    return Played(cfg, tmp_path_factory.mktemp("replay") / "replay", width)


@pytest.mark.parametrize("path", PATHS)
def test_no_task_of_an_evaluation_reaches_the_learner(played, path, tmp_path):
    torch.manual_seed(1)
    roster, met = played.roster(), played.drawn(PATHS[path](played, tmp_path))
    assert len(played.pairs(roster)) > 10
    assert len(played.pairs(met)) > 20
    assert played.pairs(roster) & played.pairs(met) == set()
    if "world_hash" not in played.env.observation_spec.keys():
        assert played.layouts(roster) & played.layouts(met) == set()
    else:  # the negative control: what is held out is not rejected
        batch = Relabel("all")(played.replay.storage.get(slice(0, None)))
        assert len(played.pairs(roster) & played.pairs(batch)) > 2


@pytest.mark.parametrize("overrides", [MAZE, ROAD], ids=["mazes", "roads"])
def test_without_a_split_relabelled_trajectories_are_of_tasks_of_the_evaluation(
    overrides, tmp_path
):
    """The negative control of the test above."""
    torch.manual_seed(0)
    cfg = yamame.compose(
        *overrides, *QUIET, "relabel=all", "env.split=all", "evaluation.env.split=all"
    )
    played = Played(cfg, tmp_path / "replay", 81 if overrides is MAZE else 10)
    assert len(played.pairs(played.roster()) & played.pairs(played.drawn(played.replay))) > 20


TINY = [
    "debug=tiny",
    "logger=none",
    "budget.minutes=null",
    "evaluation.max_steps=10",
    "encoder=gru",
]
SMALL = [*TINY, "env=mazerunner", "env.size=9", "env.num_goals=1", "env.time_limit=20"]


def trained(tmp_path, name, *overrides, recipe="train"):
    return yamame.train(*overrides, f"run.name={name}", f"run.root={tmp_path}", recipe=recipe)


def test_an_evaluation_of_tasks_that_training_meets_is_not_called_one_of_new_tasks(
    tmp_path, capsys
):
    run = trained(tmp_path, "memory", *TINY, "env=tmaze", "env.length=4")
    shown = capsys.readouterr().out
    assert "training may meet the same tasks" in shown
    assert run.summary["evaluated_on"] == "new seeds; training may meet the same tasks"
    yamame.evaluate(f"run={run.path}")
    assert "held-out" not in capsys.readouterr().out


def test_data_of_a_run_that_played_all_tasks_are_told(tmp_path, capsys):
    source = trained(tmp_path, "source", *SMALL, "env.split=all", "evaluation.env.split=all")
    same = trained(tmp_path, "same", *SMALL)
    capsys.readouterr()
    for recipe, more in (("offline", []), ("train", ["schedule.offline_updates=1"])):
        data = ["data=runs", f"data.path={source.path}", *more]
        run = trained(tmp_path, f"other-{recipe}", *SMALL, *data, recipe=recipe)
        lines = [line for line in capsys.readouterr().err.splitlines() if "env.split=all" in line]
        assert len(lines) == 1
        assert str(source.path) in lines[0]
        assert "env.split=train" in lines[0]
        assert run.summary["evaluated_on"] == "new seeds; training may meet the same tasks"
    # The negative control: data of a run with the same split.
    run = trained(
        tmp_path, "alike", *SMALL, "data=runs", f"data.path={same.path}", recipe="offline"
    )
    assert "env.split" not in capsys.readouterr().err
    assert run.summary["evaluated_on"] == "new mazes"
