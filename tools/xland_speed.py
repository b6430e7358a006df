"""Compare the speed of `yamame_envs.XLand` with that of xminigrid, in alternation in one process.

    pip install xminigrid==0.9.3
    python tools/xland_speed.py                        # R1 9x9, all levels, 1,024 rows
    python tools/xland_speed.py trivial --rooms R4 --size 13 --num-envs 256

Both play random actions with automatic resets, on one thread. xminigrid plays as in its own
benchmark script: a compiled scan over the steps of all rows under ``GymAutoResetWrapper``; with
one ruleset for all rows (*shared*), as that script does, and with a ruleset for each row (*own*),
as its training scripts do. `XLand` draws a new ruleset in every episode. Speeds are steps of all
rows per second of CPU time, medians over rounds; ratios are medians of the ratios of a round.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

# Before jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import torch
import xminigrid
from xminigrid.types import RuleSet
from xminigrid.wrappers import GymAutoResetWrapper
from yamame_envs import XLand
from yamame_envs.xland.rulesets import LEVELS, draw_rulesets


def main() -> None:
    """Print a Markdown table with one line per level."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("levels", nargs="*", default=list(LEVELS))
    parser.add_argument("--rooms", default="R1")
    parser.add_argument("--size", type=int, default=9)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="of all rows, in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| level | XLand | xminigrid, shared | ratio | xminigrid, own | ratio |")
    print("|---|---|---|---|---|---|")
    for level in options.levels:
        print(line_of(level, options), flush=True)


def line_of(level: str, options: argparse.Namespace) -> str:
    """Measure one level and return its line of the table."""
    players = [
        native_player(level, options),
        original_player(level, options, is_shared=True),
        original_player(level, options, is_shared=False),
    ]
    for play in players:
        # Compiles, and leaves the first steps, in which all episodes are equally old.
        play()
        play()
    speeds: list[list[float]] = [[] for _ in players]
    for _ in range(options.rounds):
        for play, measured in zip(players, speeds, strict=True):
            start = time.process_time()
            play()
            measured.append(options.steps * options.num_envs / (time.process_time() - start))
    native, shared, own = (f"{statistics.median(measured):,.0f}" for measured in speeds)
    ratios = []
    for other in speeds[1:]:
        pairs = zip(speeds[0], other, strict=True)
        ratios.append(f"{statistics.median(a / b for a, b in pairs):.2f}")
    return f"| {level} | {native} | {shared} | {ratios[0]} | {own} | {ratios[1]} |"


def native_player(level: str, options: argparse.Namespace) -> Callable[[], None]:
    """Return a function that plays steps of `XLand`."""
    env = XLand(
        num_envs=options.num_envs,
        rooms=options.rooms,
        size=options.size,
        level=level,
        num_trials=1,
        direction=False,
    )
    current = [env.reset()]

    def play() -> None:
        actions = torch.randint(6, (options.steps, options.num_envs))
        for action in actions:
            current[0] = env.step_and_maybe_reset(current[0].set("action", action))[1]

    return play


def original_player(
    level: str, options: argparse.Namespace, *, is_shared: bool
) -> Callable[[], None]:
    """Return a function that plays steps of xminigrid."""
    env, params = xminigrid.make(f"XLand-MiniGrid-{options.rooms}-{options.size}x{options.size}")
    env = GymAutoResetWrapper(env)
    ruleset, axes = rulesets(level, options.num_envs, is_shared=is_shared)

    def with_ruleset(ruleset: RuleSet) -> Any:
        return params.replace(ruleset=ruleset)

    @jax.jit
    def start(ruleset: RuleSet, keys: jax.Array) -> Any:
        return jax.vmap(lambda r, k: env.reset(with_ruleset(r), k), (axes, 0))(ruleset, keys)

    @jax.jit
    def advance(ruleset: RuleSet, timestep: Any, key: jax.Array) -> Any:
        actions = jax.random.randint(key, (options.steps, options.num_envs), 0, 6)
        step = jax.vmap(lambda r, t, a: env.step(with_ruleset(r), t, a), (axes, 0, 0))

        def body(timestep: Any, action: jax.Array) -> tuple[Any, None]:
            return step(ruleset, timestep, action), None

        return jax.lax.scan(body, timestep, actions)[0]

    key = jax.random.key(0)
    timestep = [start(ruleset, jax.random.split(key, options.num_envs))]
    keys = iter(jax.random.split(key, 1000))

    def play() -> None:
        timestep[0] = advance(ruleset, timestep[0], next(keys))
        jax.block_until_ready(timestep[0])

    return play


def rulesets(level: str, num: int, *, is_shared: bool) -> tuple[RuleSet, int | None]:
    """Return rulesets, and their axis of rows, None if all rows have the first one."""
    drawn = draw_rulesets(torch.arange(num), LEVELS[level])
    rules = drawn["rules"]
    if rules.shape[1] == 0:
        # The original has an empty rule where there is none.
        rules = torch.zeros(num, 1, 7, dtype=torch.uint8)
    parts = [jax.numpy.asarray(part.numpy()) for part in (drawn["goal"], rules, drawn["objects"])]
    if not is_shared:
        return RuleSet(*parts), 0
    return RuleSet(*(part[0] for part in parts)), None


if __name__ == "__main__":
    main()
