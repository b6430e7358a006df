"""What an evaluation is said to be of: what is new there, for every side that training and
evaluation may play.
"""

import sys
import textwrap

import pytest
import torch
import yamame
from omegaconf import OmegaConf, open_dict
from yamame.checks import UsageError
from yamame.files.config import flatten
from yamame.runs.build import build_env, build_transform
from yamame.runs.novelty import NOTHING, what_is_new
from yamame.runs.trained import load_trained
from yamame_envs.split import is_held_out

OTHER = "another setting than in training"
WORLDS = """
    import torch
    from torchrl.envs import GymEnv
    from yamame.replay.gather import BatchTransform
    from yamame_envs import MazeRunner

    class Poles(GymEnv):
        novelty = "new poles"

        def __init__(self, arms=1, **settings):
            super().__init__("CartPole-v1", **settings)

    class Even:
        def __call__(self, instruction, trajectories):
            return instruction[:, 0].sum(-1).long() % 2 == 0

    class Halls(MazeRunner):
        novelty, held_out_instructions = "new goals in known halls", Even()

    class Greedy(BatchTransform):
        def __init__(self, strategy="all"):
            super().__init__()
"""


@pytest.fixture
def worlds(tmp_path, monkeypatch):
    """A module from outside of the package."""
    (tmp_path / "worlds.py").write_text(textwrap.dedent(WORLDS))
    monkeypatch.syspath_prepend(tmp_path)
    yield "worlds"
    sys.modules.pop("worlds", None)


def told(*overrides, **nodes):
    """What is said of the evaluation of a configuration, with nodes of its own."""
    cfg = yamame.compose(*overrides, "logger=none")
    with open_dict(cfg):
        for name, node in nodes.items():
            cfg[name] = node
    return what_is_new(cfg, build_env(cfg, num_envs=2, seed=0, held_out=True))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["env=mazerunner"], "new mazes"),
        (["env=mazerunner", "env.split_by=walls_and_goals"], "new goals in known mazes"),
        (["env=package_delivery"], "new combinations of road and button"),
        (
            ["env=package_delivery", "relabel=none", "trials=repeated", "trials.num_trials=2"],
            "new combinations of road and button",
        ),
        (
            ["env=mazerunner", "env.split_by=walls_and_goals", "env.randomize_actions=true"],
            "new combinations of maze, goals and actions",
        ),
        (
            ["env=package_delivery", "env.split_by=roads_and_goals"],
            "new combinations of road, button and goals",
        ),
        (["env=dark_key_to_door"], "new rooms"),
        (["env=dark_key_to_door", "env.split_by=rooms_and_starts"], "new starts in known rooms"),
        (["env=frozenlake"], "new lakes"),
        (["env=frozenlake", "env.split_by=lakes_and_actions"], "new lakes"),
        (
            ["env=frozenlake", "env.split_by=lakes_and_actions", "env.hard=true"],
            "new actions on known lakes",
        ),
        (["env=mazerunner", "env.split=test", "evaluation.env.split=train"], "new mazes"),
        (["env=mazerunner", "++evaluation.env.size=11"], f"{OTHER}: env.size=11 (trained with 9)"),
        (["env=mazerunner", "++evaluation.env.size=9"], "new mazes"),
        (
            ["env=mazerunner", "env.split_by=walls_and_goals", "++evaluation.env.size=11"],
            f"{OTHER}: env.size=11 (trained with 9)",
        ),
        (
            [
                "env=mazerunner",
                "env.split=all",
                "evaluation.env.split=all",
                "++evaluation.env.num_goals=1",
            ],
            f"{OTHER}: env.num_goals=1 (trained with 2)",
        ),
        (
            ["env=tmaze", "++evaluation.env.length=128"],
            f"{OTHER}: env.length=128 (trained with 32)",
        ),
        (
            ["env=gym", "++evaluation.env.settings.sutton_barto_reward=true"],
            f"{OTHER}: env.settings.sutton_barto_reward=True (not set in training)",
        ),
        (["env=mazerunner", "evaluation.env.split=train"], NOTHING),
        (["env=mazerunner", "env.split=all"], NOTHING),
        (["env=mazerunner", "evaluation.env.split=all"], NOTHING),
        (["env=mazerunner", "++evaluation.env.split_by=walls_and_goals"], NOTHING),
        (["env=mazerunner", "~env.split"], NOTHING),
        (["env=tmaze"], NOTHING),
        (["env=wind"], NOTHING),
        (["env=bandits"], NOTHING),
        (["env=gym"], NOTHING),
        (
            ["env=mazerunner", "data=npz", "data.path=demos.npz"],
            "new mazes, unless its data have met them",
        ),
    ],
    ids=" ".join,
)
def test_what_is_new_depends_on_what_training_and_evaluation_play(overrides, expected):
    assert told(*overrides) == expected


def test_an_environment_from_elsewhere_says_it_itself(worlds):
    node = {"_target_": "worlds.Poles"}
    assert told("env=wind", env=node, trust=[worlds]) == "new poles"
    assert told("env=wind", env={"_target_": "yamame_envs.Wind"}) == NOTHING


@pytest.mark.parametrize(
    ("arms", "expected"), [(2, f"{OTHER}: env.arms=2 (trained with 1)"), (1, "new poles")]
)
def test_another_setting_of_an_environment_from_elsewhere_is_named(arms, expected, worlds):
    cfg = yamame.compose("env=wind", "logger=none")
    with open_dict(cfg):
        cfg.env, cfg.trust, cfg.evaluation.env = (
            {"_target_": "worlds.Poles"},
            [worlds],
            {"arms": arms},
        )
    assert what_is_new(cfg, build_env(cfg, num_envs=2, seed=0, held_out=True)) == expected


def halls(worlds, **relabel):
    cfg = yamame.compose(
        "env=mazerunner", "logger=none", "relabel=all", "window=null", "packing=null"
    )
    with open_dict(cfg):
        cfg.env._target_, cfg.trust = "worlds.Halls", [worlds]
        cfg.relabel = relabel or cfg.relabel
    return cfg


def test_an_environment_from_elsewhere_holds_instructions_out(worlds):
    torch.manual_seed(0)
    cfg = halls(worlds)
    env = build_env(cfg, num_envs=200, seed=0)
    even = env.held_out_instructions
    first = env.reset()
    batch = yamame.replay.pack(
        env.rollout(60, auto_reset=False, tensordict=first, break_when_any_done=False), split=False
    )
    new = build_transform(cfg, env)(batch)["goal"][:, 0]
    changed = (new != batch["goal"][:, 0]).flatten(1).any(-1)
    assert changed.sum() > 50
    assert not even(new, batch)[changed].any()


def test_a_relabeller_that_cannot_reject_instructions_is_refused_where_some_are_held_out(worlds):
    cfg = halls(worlds, _target_="worlds.Greedy")
    with pytest.raises(UsageError, match=r"relabel: must take held_out.*Greedy"):
        build_transform(cfg, build_env(cfg, num_envs=2, seed=0))
    cfg.env._target_ = "yamame_envs.MazeRunner"
    build_transform(cfg, build_env(cfg, num_envs=2, seed=0))


TINY = [
    "debug=tiny",
    "logger=none",
    "budget.minutes=null",
    "evaluation.max_steps=10",
    "encoder=gru",
]
SMALL = [*TINY, "env=mazerunner", "env.num_goals=1", "env.time_limit=20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return yamame.train(*SMALL, f"run.root={tmp_path_factory.mktemp('runs')}", "run.name=a")


def older(run, path, *names):
    """A checkpoint as a version without some settings of the environment wrote it."""
    saved = torch.load(run.checkpoints.best, weights_only=True)
    for name in names:
        del saved["config"]["env"][name]
    torch.save(saved, path)
    return path


def test_a_run_of_an_earlier_version_plays_its_tasks_and_says_what_is_new(run, tmp_path):
    trained = load_trained(run.path)
    assert trained.what_is_new(trained.build_env(num_envs=1, seed=0)) == "new mazes"
    trained = load_trained(older(run, tmp_path / "old.pt", "split_by", "position"))
    env = trained.build_env(num_envs=64, seed=0)
    assert trained.config.env.split_by == "walls_and_goals"
    assert is_held_out(env.task_hash(env.tasks_of(torch.arange(64)))).all()
    assert trained.what_is_new(env) == "new goals in known mazes, unless relabelling has met them"
    # Asked for other tasks than training has held out, nothing is known to be new.
    trained = load_trained(tmp_path / "old.pt", env={"split_by": "walls"})
    assert trained.what_is_new(trained.build_env(num_envs=1, seed=0)) == NOTHING
    trained = load_trained(run.path, env={"split": "train"})
    assert trained.what_is_new(trained.build_env(num_envs=1, seed=0)) == NOTHING


def test_a_configuration_that_leaves_the_split_to_the_class_is_not_taken_for_an_old_one(tmp_path):
    run = yamame.train(
        *SMALL, "~env.split_by", "~env.position", f"run.root={tmp_path}", "run.name=own"
    )
    assert flatten(run.config)["env.split_by"] == "walls"
    assert OmegaConf.load(run.path / "config.yaml").env.split_by == "walls"
    assert load_trained(run.path).config.env.split_by == "walls"


def test_data_of_runs_of_earlier_versions_are_told(run, tmp_path, capsys):
    source = yamame.train(*SMALL, f"run.root={tmp_path}", "run.name=source")
    config = OmegaConf.load(source.path / "config.yaml")
    del config.env.split_by
    OmegaConf.save(config, source.path / "config.yaml")
    capsys.readouterr()
    data = ["data=runs", f"data.path={source.path}", f"run.root={tmp_path}"]
    learned = yamame.train(*SMALL, *data, "run.name=b", recipe="offline")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("data:")]
    assert len(lines) == 1
    assert "env.split_by=walls_and_goals" in lines[0]
    assert learned.summary["evaluated_on"] == NOTHING
    # Evaluations that claim no new tasks are not spoiled by the data.
    for name, side in (("c", "all"), ("d", "train")):
        sides = [f"env.split={side}", f"evaluation.env.split={side}", f"run.name={name}"]
        yamame.train(*SMALL, *data, *sides, recipe="offline")
        assert "data:" not in capsys.readouterr().err


def test_another_setting_than_in_training_is_named_for_a_trained_run(run):
    for changed, text in (
        ({"env": {"size": 11}}, "env.size=11 (trained with"),
        ({"env": {"size": 11, "split": "all"}}, "env.size=11 (trained with"),
        ({"env": {"num_goals": 2}}, "env.num_goals=2 (trained with 1)"),
    ):
        trained = load_trained(run.path, **changed)
        told = trained.what_is_new(trained.build_env(num_envs=1, seed=0))
        assert text in told
        assert "new" not in told
        assert "may meet" not in told
