"""Measures every environment of ``conf/env``: what it emits, what a random policy earns, how fast it is.

    python tools/environments.py                     # all that are installed, as a Markdown table
    python tools/environments.py wind env.num_tasks=1 --rows 64 --episodes 256

The random policy draws from the action spec. Steps/s are steps of all rows per second of CPU time, of a random policy
with resets included. Environments that are batched natively are also played one row at a time through
the Gymnasium interface, in alternation with the batch; the ratio of the two speeds is the last column.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from hydra import compose, initialize_config_dir
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from yamame import conf_dir
from yamame.evaluation import evaluate
from yamame.runs import UsageError
from yamame.runs.build import build_env
from yamame_envs import BatchedEnv
from yamame_envs.gymnasium_env import GymnasiumEnv

HEADER = (
    "choice", "observation", "action", "horizon", "random return", "episodes", "rows", "steps/s", "x gymnasium"
)  # fmt: skip


def main() -> None:
    """Prints one line per environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("choices", nargs="*", help="choices of conf/env, and overrides for all of them")
    parser.add_argument(
        "--episodes", type=int, default=None, help="of the random policy; as many as rows, 256 at least"
    )
    parser.add_argument("--rows", type=int, default=None, help="rows; 1024 where native, else 16")
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
    """The cells of one environment."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[f"env={choice}", *overrides])
    single = build_env(cfg, num_envs=1, seed=options.seed)
    native = isinstance(single, BatchedEnv)
    rows = options.rows or (1024 if native else 16)
    episodes = options.episodes or max(rows, 256)
    env = build_env(cfg, num_envs=rows, seed=options.seed)
    random = RandomPolicy(env)
    result = evaluate(random, env, num_episodes=episodes, seed=options.seed)
    summary = result.summary()
    spread = float(result.returns.std()) / len(result.returns) ** 0.5
    speed, ratio = speeds(env, random, single, options.seconds)
    horizon = "" if "time" not in env.observation_spec.keys() else str(int(env._time_limit))
    for played in (single, env):
        played.close()
    return [
        f"`env={choice}`", shapes(env), action(env), horizon,
        f"{summary['return_mean']:.3f} ± {spread:.3f}", str(episodes), str(rows), f"{speed:,.0f}", ratio,
    ]  # fmt: skip


def speeds(env: EnvBase, random: Callable, single: EnvBase, seconds: float) -> tuple[float, str]:
    """Steps per CPU second, and how many times the one-row Gymnasium form of a native environment it is."""
    batch = Batch(env, random)
    if not isinstance(single, BatchedEnv):
        return statistics.median(cpu_speed(batch.step, seconds / 5) for _ in range(5)), ""
    one = Single(single)
    both = [(cpu_speed(batch.step, seconds / 5), cpu_speed(one.step, seconds / 5)) for _ in range(5)]
    return statistics.median(a for a, _ in both), f"{statistics.median(a / b for a, b in both):.0f}"


def cpu_speed(step: Callable[[], int], seconds: float) -> float:
    """Steps per CPU second."""
    start, count = time.process_time(), 0
    while time.process_time() - start < seconds:
        count += step()
    return count / (time.process_time() - start)


class RandomPolicy:
    """Draws actions from the spec."""

    def __init__(self, env: EnvBase) -> None:
        self.spec = env.action_spec

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action."""
        return tensordict.set("action", self.spec.rand())


class Batch:
    """All rows of a TorchRL environment under a random policy."""

    def __init__(self, env: EnvBase, policy: Callable) -> None:
        self.env, self.policy = env, policy
        self.current = env.reset()

    def step(self) -> int:
        """Steps once."""
        _, self.current = self.env.step_and_maybe_reset(self.policy(self.current))
        return self.env.batch_size[0]


class Single:
    """The same environment through Gymnasium, one row in one process."""

    def __init__(self, env: BatchedEnv) -> None:
        self.env = GymnasiumEnv(env)
        self.env.reset(seed=0)

    def step(self) -> int:
        """Steps once."""
        _, _, terminated, truncated, _ = self.env.step(self.env.action_space.sample())
        if terminated or truncated:
            self.env.reset()
        return 1


def shapes(env: EnvBase) -> str:
    """The entries that the environment adds to the context."""
    context = {
        "prev_action",
        "prev_reward",
        "time",
        "trial_start",
        "step_index",
        "is_init",
        "success",
        "aborted",
    }
    spec = env.observation_spec
    names = [key for key in spec.keys(True, True) if key not in context]
    joined = {key: key if isinstance(key, str) else ".".join(key) for key in names}
    return ", ".join(f"{joined[key]} {list(spec[key].shape[1:])}" for key in names)


def action(env: EnvBase) -> str:
    """The kind and size of the action."""
    spec = env.action_spec
    size = int(spec.space.n) if type(spec).__name__ == "Categorical" else list(spec.shape[1:])
    return f"{type(spec).__name__} {size}"


if __name__ == "__main__":
    main()
