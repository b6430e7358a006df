"""Count the tasks of an evaluation that training meets, comparing tasks by value.

    python tools/overlap.py                                            # native environments
    python tools/overlap.py env=frozenlake env.size=4                  # any overrides
    python tools/overlap.py experiment=cpu_mazerunner --episodes 7000

Training meets a task if it draws it, or if relabelling creates it. Tasks are the same if they are
equal in the entries of which the evaluation claims novelty (`CLAIMS`); the hash of the split is not
used. Environments without a split use their hash. Trajectories are those of random actions, and
each is relabelled several times. Layouts are walls, roads with their buttons, pairs of key and
door, and holes of lakes.
"""

import argparse
from collections.abc import Iterator

import torch
import yamame
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor
from yamame import conf_dir
from yamame.cli.nodes import target_of
from yamame.cli.validation import parameters_of
from yamame.runs.build import build_env, build_transform, relabels
from yamame.runs.novelty import what_is_new
from yamame.testing import task_overlap
from yamame.testing.overlap import Hash
from yamame_envs import BatchedEnv
from yamame_envs.split import FEWEST
from yamame_envs.streams import fold

ROWS = (
    "experiment=cpu_mazerunner",
    "experiment=cpu_mazerunner env.split_by=walls_and_goals",
    "experiment=cpu_mazerunner env.split=all evaluation.env.split=all",
    "experiment=cpu_mazerunner env.randomize_actions=true",
    "experiment=cpu_mazerunner_k3",
    "experiment=cpu_mazerunner env.split_by=walls_and_goals env.randomize_actions=true",
    "experiment=cpu_package_delivery",
    "experiment=cpu_package_delivery env.split_by=roads_and_goals",
    "experiment=cpu_package_delivery_20",
    "experiment=cpu_dark_key_to_door",
    "experiment=cpu_dark_key_to_door env.split_by=rooms_and_starts env.randomize_actions=true",
    "experiment=cpu_frozenlake",
    "env=frozenlake env.hard=true env.size=4",
    "experiment=xland_trivial",
    "experiment=xland_small",
)
"""Overrides that are counted by default."""
CLAIMS = {
    "new mazes": ("walls",),
    "new goals in known mazes": ("walls", "instruction"),
    "new combinations of maze, goals and actions": ("walls", "instruction", "actions"),
    "new combinations of road and button": ("onward", "button"),
    "new combinations of road, button and goals": ("onward", "button", "instruction"),
    "new rooms": ("key", "door"),
    "new starts in known rooms": ("key", "door", "start"),
    "new combinations of room, start and actions": ("key", "door", "start", "actions"),
    "new lakes": ("holes",),
    "new actions on known lakes": ("holes", "effects"),
    "new goals": ("goal",),
    "new rulesets": ("goal", "rules"),
}
"""Entries in which tasks must differ from those of training, by description of an evaluation."""
AT_ONCE = 500
"""Number of episodes that run together."""
HEADER = (
    *("settings", "new in an evaluation", "different tasks in training", "in the evaluation"),
    *("met", "met with relabelling", "layouts met"),
)


def main() -> None:
    """Print the table, and the environments that it leaves out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="of recipes/train.py")
    parser.add_argument("--episodes", type=int, default=5000, help="that training begins")
    parser.add_argument("--draws", type=int, default=5, help="how often each of them is relabelled")
    options = parser.parse_intermixed_args()
    torch.manual_seed(0)
    asked = [options.overrides] if options.overrides else [row.split() for row in ROWS]
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
    for overrides in asked:
        print(
            "| " + " | ".join(row_of(overrides, options.episodes, options.draws)) + " |", flush=True
        )
    for line in [] if options.overrides else without_split():
        print(line)


def row_of(overrides: list[str], episodes: int, draws: int) -> list[str]:
    """Return the cells of one configuration."""
    cfg = yamame.compose(*overrides, "logger=none", "window=null", "packing=null")
    training = native(cfg, num_envs=min(AT_ONCE, episodes))
    evaluation = native(cfg, held_out=True)
    evaluated, described = cfg.evaluation.num_episodes, what_is_new(cfg, evaluation)
    counted = task_overlap(
        training,
        evaluation,
        trained=seeds(cfg.seed, cfg.schedule.num_envs, episodes),
        evaluated=seeds(cfg.evaluation.seed, evaluated, evaluated),
        relabel=build_transform(cfg, training) if relabels(cfg) else None,
        num_draws=draws,
        layout_hash=layout_hash(cfg),
        entries=entries_of(described, evaluation),
    )
    shares = [counted.drawn, counted.met, counted.layouts]
    return [
        f"`{' '.join(overrides)}`",
        described,
        f"{counted.trained:,}",
        f"{counted.evaluated:,}",
        *("-" if share is None else f"{share:.0%}" for share in shares),
    ]


def native(cfg: DictConfig, *, num_envs: int = 1, held_out: bool = False) -> BatchedEnv:
    """Build the native environment of a configuration, without the wrapper of repeated trials."""
    env = build_env(cfg, num_envs=num_envs, seed=0, held_out=held_out)
    env = getattr(env, "env", env)
    if not isinstance(env, BatchedEnv):
        name = type(env).__name__
        raise SystemExit(f"overlap: env must be a native one, whose tasks are known, got {name}")
    return env


def entries_of(described: str, env: BatchedEnv) -> tuple[str, ...] | None:
    """Return the entries in `CLAIMS` of an evaluation; None if it claims no novelty."""
    if env.novelty is None or not described.startswith(env.novelty):
        return None
    if env.novelty not in CLAIMS:
        raise SystemExit(
            f"overlap: CLAIMS must have what is new in {type(env).__name__}, got {env.novelty!r}"
        )
    return CLAIMS[env.novelty]


def layout_hash(cfg: DictConfig) -> Hash | None:
    """Return a hash of walls, roads, rooms or lakes; None for an environment without a split."""
    split_by = parameters_of(target_of(cfg.env)).get("split_by")
    if split_by is None:
        return None
    with open_dict(cfg):
        layouts = OmegaConf.merge(cfg, {"env": {"split": "all", "split_by": split_by.default}})
    return native(layouts).task_hash


def seeds(seed: int, num_envs: int, num: int) -> Tensor:
    """Return the seeds of the tasks of the first episodes, in the order in which envs draw them."""
    place = torch.arange(num)
    return fold(fold(torch.full_like(place, seed), place % num_envs), place // num_envs)


def without_split() -> Iterator[str]:
    """Yield the native environments without a split, and those with too few tasks for one."""
    tasks = {}
    for path in sorted((conf_dir() / "env").glob("*.yaml")):
        cfg = yamame.compose(f"env={path.stem}", "logger=none")
        target = target_of(cfg.env)
        if isinstance(target, type) and issubclass(target, BatchedEnv) and "split" not in cfg.env:
            env = native(cfg)
            tasks[path.stem] = len(env.task_hash(env.tasks_of(seeds(0, 1, 1000))).unique())
    few = [f"{name} ({count})" for name, count in tasks.items() if count < FEWEST]
    many = [name for name, count in tasks.items() if count >= FEWEST]
    yield f"no split: {', '.join(many)}; 1,000 episodes draw as many different tasks"
    yield f"too few tasks for a split: {', '.join(few)}"


if __name__ == "__main__":
    main()
