"""Which of the held-out tasks training meets: counts equal tasks, whatever their seeds.

    python tools/overlap.py env=frozenlake env.size=4                  # any overrides of recipes/train.py
    python tools/overlap.py experiment=cpu_mazerunner --episodes 7000

Training draws as many tasks as it begins episodes: at least the budget's steps by the longest episode, which is taken
unless ``--episodes`` says how many there were. Two more lines tell how many tasks there are on each side, as far as was
drawn, and the overlap without ``env.split``. Of environments of other libraries nothing but seeds is known.
"""

import argparse

import torch
import yamame
from omegaconf import DictConfig
from torch import Tensor
from yamame.runs.build import build_env, longest_episode
from yamame_envs import BatchedEnv
from yamame_envs.streams import fold


def hashes(cfg: DictConfig, num: int, *, held_out: bool, split: str | None = None) -> Tensor:
    """The hashes of the tasks of so many episodes, those that each env begins with first."""
    num_envs = cfg.evaluation.num_episodes if held_out else cfg.schedule.num_envs
    seed = cfg.evaluation.seed if held_out else cfg.seed
    env = build_env(cfg, num_envs=1, seed=seed, held_out=held_out)
    env = getattr(env, "env", env)  # of repeated trials
    if not isinstance(env, BatchedEnv):
        raise SystemExit(
            f"overlap: env must be a native one, whose tasks are known, got {type(env).__name__}"
        )
    env._split = env._split if split is None else split
    place = torch.arange(num)
    seeds = fold(fold(torch.full_like(place, seed), place % num_envs), place // num_envs)
    return torch.cat([env.task_hash(env.tasks_of(part)) for part in seeds.split(4096)])


def main() -> None:
    """Prints the overlap."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="of recipes/train.py")
    parser.add_argument("--episodes", type=int, default=None, help="that training begins")
    options = parser.parse_intermixed_args()
    cfg = yamame.compose(*options.overrides, "logger=none")
    steps = longest_episode(build_env(cfg, num_envs=1, seed=0)) or 1
    episodes = options.episodes or max(1, int(cfg.budget.env_steps) // steps)
    for name, split in (("as configured", None), ("with env.split=all", "all")):
        trained = hashes(cfg, episodes, held_out=False, split=split)
        held_out = hashes(cfg, cfg.evaluation.num_episodes, held_out=True, split=split)
        met = torch.isin(held_out, trained)
        print(
            f"{name}: training meets {int(met.sum())} of {len(held_out)} held-out tasks ({met.double().mean():.0%}); "
            f"{len(trained.unique()):,} distinct tasks in {len(trained):,} episodes, {len(held_out.unique())} held out"
        )


if __name__ == "__main__":
    main()
