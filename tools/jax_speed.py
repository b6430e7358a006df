"""Measure entries and speed of games written in JAX, with 16, 256 and 1,024 environments.

    python tools/jax_speed.py  # games of all libraries that are installed
    python tools/jax_speed.py gymnax:Breakout-MinAtar mylab:Safe --num-envs 16 64

Steps/s are steps of all environments per second of CPU time, of a random policy with resets
included. `first` are the seconds of CPU time from nothing to the end of the first step with the
smallest number of environments: building, compilation (nothing of it is read from a cache) and the
first worlds. A game that has not taken a step after a limit of seconds is called slow.
"""

import argparse
import os
import sys
import tempfile
import time
from importlib.util import find_spec

import torch
from torchrl.envs import EnvBase
from yamame.checks import UsageError
from yamame.spaces import Spaces
from yamame_envs import JaxEnv

GAMES = (
    "gymnax:MemoryChain-bsuite",
    "gymnax:CartPole-v1",
    "gymnax:Pendulum-v1",
    "gymnax:MetaMaze-misc",
    "gymnax:Breakout-MinAtar",
    "xminigrid:XLand-MiniGrid-R1-9x9",
    "xminigrid:MiniGrid-MemoryS16",
    "craftax:Craftax-Classic-Symbolic-v1",
    "popgym_arcade:SkittlesEasy",
)
HEADER = ("`env.id=`", "observation; actions; horizon", "first")


def main() -> None:
    """Print one line per game."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", help="ids as env.id; all below if there are none")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of every speed")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds of first steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, "")  # for games in the present directory
    # What an earlier measurement has compiled would be free.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        counts = "; ".join(f"{count:,}" for count in options.num_envs)
        titles = (*HEADER, f"steps/s of {counts}")
        print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
        for id in options.ids or installed():
            try:
                cells = measured(id, options)
            except UsageError as error:
                cells = [id, str(error)]
            print("| " + " | ".join(cells) + " |", flush=True)


def installed() -> list[str]:
    """Return the games whose library is installed."""
    return [id for id in GAMES if find_spec(id.partition(":")[0]) is not None]


def measured(id: str, options: argparse.Namespace) -> list[str]:
    """Return the cells of one game."""
    cells: list[str] = []
    speeds: list[str] = []
    for num_envs in options.num_envs:
        start = time.process_time()
        env = JaxEnv(id=id, num_envs=num_envs)
        current = [env.reset()]
        step(env, current)
        spent = time.process_time() - start
        if not cells:
            game = "; ".join([*entries(env.spaces), str(env.time_limit or "-")])
            cells = [f"`{id}`", game, f"{spent:.0f} s"]
        speeds.append(f"{speed(env, current, options.seconds):,.0f}")
        if spent > options.limit:
            # More environments would take longer still.
            speeds.append("slow")
            break
    return [*cells, "; ".join(speeds)]


def step(env: EnvBase, current: list) -> None:
    """Step all environments with random actions."""
    action = env.action_spec.rand()
    current[0] = env.step_and_maybe_reset(current[0].set("action", action))[1]


def speed(env: EnvBase, current: list, seconds: float) -> float:
    """Return steps of all environments per CPU second."""
    start = time.process_time()
    count = 0
    while time.process_time() - start < seconds:
        step(env, current)
        count += env.batch_size[0]
    return count / (time.process_time() - start)


def entries(spaces: Spaces) -> tuple[str, str]:
    """Describe observations and actions."""
    names = {"byte": "pixels ", "token": "tokens "}
    texts = []
    for entry in spaces.observations:
        shape = " x ".join(map(str, entry.stored_shape))
        texts.append(f"{names.get(entry.kind, '')}{shape}")
    action = spaces.action
    count = len(action.bounds[0])
    actions = f"{count} continuous" if action.kind == "box" else " x ".join(map(str, action.sizes))
    return ", ".join(texts), actions


if __name__ == "__main__":
    main()
