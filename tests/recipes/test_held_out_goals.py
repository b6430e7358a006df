"""Recipes relabel trajectories with goals of training, never with those that are held out for
evaluation.
"""

import sys

import pytest
import yamame
from yamame.runs.build import build_env

WITNESS = """
from yamame.replay import Relabel

SEEN = []


class Witness(Relabel):
    def forward(self, tensordict):
        out = super().forward(tensordict)
        SEEN.append([each.select("goal", "world_hash").clone() for each in (tensordict, out)])
        return out
"""
MAZE = [
    *(
        "debug=tiny",
        "logger=none",
        "env=mazerunner",
        "env.split_by=walls_and_goals",
        "env.num_goals=1",
    ),
    *("env.time_limit=20", "encoder=gru", "encoder.hidden_size=16", "evaluation.num_episodes=2"),
    "schedule.batch_size=64",
    *("relabel=all", "relabel._target_=witness.Witness", "trust=[witness.]"),
]


@pytest.mark.parametrize("recipe", ["train", "offline"])
def test_a_recipe_never_relabels_with_goals_that_are_held_out(recipe, own_module, tmp_path):
    own_module("witness", WITNESS)
    more = ["schedule.steps_per_iteration=256", f"run.root={tmp_path}", "run.name=source"]
    source = yamame.train(*MAZE, *more)
    if recipe == "offline":
        sys.modules["witness"].SEEN.clear()
        data = ["data=runs", f"data.path={source.path}"]
        yamame.train(*MAZE, *data, f"run.root={tmp_path}", "run.name=offline", recipe="offline")

    changed = 0
    cfg = yamame.compose(*MAZE)
    training, evaluation = (
        build_env(cfg, num_envs=1, seed=0, held_out=side) for side in (False, True)
    )
    for old, new in sys.modules["witness"].SEEN:
        relabelled = (old["goal"][:, 0] != new["goal"][:, 0]).flatten(1).any(1)
        changed += int(relabelled.sum())
        goals = new["goal"][:, 0][relabelled]
        assert not training.held_out_instructions(goals, new[relabelled]).any()
        assert evaluation.held_out_instructions(
            goals, new[relabelled]
        ).all()  # the negative control
    assert changed > 10
