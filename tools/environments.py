"""Measure entries, random returns and speed of every environment in ``conf/env``.

    python tools/environments.py                     # all that are installed, as a Markdown table
    python tools/environments.py wind env.num_tasks=1 --num-envs 64 --episodes 256

The random policy draws from the action spec. Steps/s are steps of all environments of a batch per
second of CPU time, of a random policy with resets included. Environments that are batched natively
are also played one at a time through the Gymnasium interface, in alternation with the batch; the
ratio of the two speeds is the last column.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from hydra import compose, initialize_config_dir
from torchrl.envs import EnvBase
from torchrl.envs.utils import RandomPolicy
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.evaluation import evaluate
from yamame.keys import CONTEXT
from yamame.runs.build import build_env
from yamame_envs import BatchedEnv
from yamame_envs.gymnasium_env import GymnasiumEnv

HEADER = (
    "choice", "observation", "action", "horizon", "random return", "episodes", "envs", "steps/s",
    "x gymnasium",
)  # fmt: skip


def main() -> None:
    """Print one line per environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "choices", nargs="*", help="choices of conf/env, and overrides for all of them"
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=None,
        help="of the random policy; one for each environment, 256 at least",
    )
    parser.add_argument(
        "--num-envs", type=int, default=None, help="of a batch; 1024 where native, else 16"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds of every speed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    overrides = [text for text in options.choices if "=" in text]
    chosen = [text for text in options.choices if "=" not in text]
    choices = chosen or sorted(path.stem for path in (conf_dir() / "env").glob("*.yaml"))
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
    for choice in choices:
        try:
            line = measured(choice, overrides, options)
        except UsageError as error:
            line = [choice, str(error)]
        print("| " + " | ".join(line) + " |", flush=True)


def measured(choice: str, overrides: list[str], options: argparse.Namespace) -> list[str]:
    """Return the cells of one environment."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[f"env={choice}", *overrides])
    single = build_env(cfg, num_envs=1, seed=options.seed)
    native = isinstance(single, BatchedEnv)
    num_envs = options.num_envs or (1024 if native else 16)
    episodes = options.episodes or max(num_envs, 256)
    env = build_env(cfg, num_envs=num_envs, seed=options.seed)
    random = RandomPolicy(env.action_spec)
    result = evaluate(random, env, num_episodes=episodes, seed=options.seed)
    summary = result.summary()
    spread = float(result.returns.std()) / len(result.returns) ** 0.5
    speed, ratio = speeds(env, random, single, options.seconds)
    horizon = "" if "time" not in env.observation_spec.keys() else str(int(env.time_limit))
    for played in (single, env):
        played.close()
    return [
        f"`env={choice}`", shapes(env), action(env), horizon,
        f"{summary['return_mean']:.3f} ± {spread:.3f}",
        str(episodes), str(num_envs), f"{speed:,.0f}", ratio,
    ]  # fmt: skip


def speeds(env: EnvBase, random: Callable, single: EnvBase, seconds: float) -> tuple[float, str]:
    """Return steps per CPU second, and their ratio to those of the Gymnasium interface.

    The ratio is measured for native environments only.
    """
    batch = play_batch(env, random)
    if not isinstance(single, BatchedEnv):
        return statistics.median(cpu_speed(batch, seconds / 5) for _ in range(5)), ""
    one = play_single(GymnasiumEnv(single))
    both = [(cpu_speed(batch, seconds / 5), cpu_speed(one, seconds / 5)) for _ in range(5)]
    return statistics.median(a for a, _ in both), f"{statistics.median(a / b for a, b in both):.0f}"


def play_batch(env: EnvBase, random: Callable) -> Callable[[], int]:
    """Return a function that steps all environments of a batch and returns their number."""
    current = [env.reset()]

    def step() -> int:
        current[0] = env.step_and_maybe_reset(random(current[0]))[1]
        return env.batch_size[0]

    return step


def play_single(env: GymnasiumEnv) -> Callable[[], int]:
    """Return a function that steps one environment through Gymnasium and returns 1."""
    env.reset(seed=0)

    def step() -> int:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        return 1

    return step


def cpu_speed(step: Callable[[], int], seconds: float) -> float:
    """Return steps per CPU second."""
    start, count = time.process_time(), 0
    while time.process_time() - start < seconds:
        count += step()
    return count / (time.process_time() - start)


def shapes(env: EnvBase) -> str:
    """Describe the entries that the environment adds to the context."""
    spec = env.observation_spec
    names = [key for key in spec.keys(True, True) if key not in (*CONTEXT, "success", "aborted")]
    joined = {key: key if isinstance(key, str) else ".".join(key) for key in names}
    return ", ".join(f"{joined[key]} {list(spec[key].shape[1:])}" for key in names)


def action(env: EnvBase) -> str:
    """Describe the kind and size of the action."""
    spec = env.action_spec
    size = int(spec.space.n) if type(spec).__name__ == "Categorical" else list(spec.shape[1:])
    return f"{type(spec).__name__} {size}"


if __name__ == "__main__":
    main()
