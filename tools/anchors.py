"""Measure the random anchors of a suite again, beside the committed ones.

    python tools/anchors.py dev
    python tools/anchors.py reported cartpole wind

A uniform random policy plays held-out tasks with the evaluation's seed. The numbers belong in
``random`` of the tasks in `conf/suite`. A task whose package is not installed is named and left
out.
"""

import argparse

import torch
import yamame
from torchrl.envs.utils import RandomPolicy
from yamame.checks import UsageError
from yamame.evaluation import EvaluationResult, evaluate
from yamame.runs.build import build_env
from yamame_envs import BatchedEnv

EPISODES_NATIVE = 2048
EPISODES = 512


def main() -> None:
    """Print one line per task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", help="file in conf/suite, without .yaml")
    parser.add_argument("tasks", nargs="*", help="names of tasks; none for all")
    options = parser.parse_args()
    torch.set_num_threads(1)

    suite = yamame.compose(f"suite={options.suite}", recipe="leaderboard").suite
    print("| task | metric | committed | measured | episodes |\n|---|---|---|---|---|")
    for name in options.tasks or suite.tasks:
        task = suite.tasks[name]
        try:
            result = play_at_random(task.overrides)
        except UsageError as error:
            print(f"| {name} | {error} | | | |", flush=True)
            continue
        measured = result.summary()[task.metric]
        cells = [name, task.metric, f"{task.random:.3f}", f"{measured:.3f}", len(result.returns)]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def play_at_random(overrides: list[str]) -> EvaluationResult:
    """Play held-out tasks of an environment by uniform random actions."""
    cfg = yamame.compose(*overrides)
    seed = cfg.evaluation.seed
    env = build_env(cfg, num_envs=16, seed=seed, held_out=True)
    num_episodes = EPISODES
    if isinstance(env, BatchedEnv):
        # Episodes of an environment do not depend on the number of environments beside it.
        env = build_env(cfg, num_envs=256, seed=seed, held_out=True)
        num_episodes = EPISODES_NATIVE
    result = evaluate(RandomPolicy(env.action_spec), env, num_episodes=num_episodes, seed=seed)
    env.close()
    return result


if __name__ == "__main__":
    main()
