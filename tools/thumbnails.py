"""Draw a thumbnail of each environment for docs/environments.md.

    python tools/thumbnails.py                  # all whose packages are installed
    python tools/thumbnails.py tmaze minigrid   # these alone
    python tools/thumbnails.py --out /tmp/pictures --seed 3

Random actions play a few steps, then the environment draws itself. If it cannot, the picture in its
observation is used, or else its numbers over time, one column per step. Packages that are missing
are left out: games in JAX need one environment for ``gymnax``, ``craftax`` and ``xland``, and one
for ``arcade``. On a machine without a screen, MuJoCo needs ``MUJOCO_GL=egl`` (or ``osmesa``) and
pygame ``SDL_VIDEODRIVER=dummy``.
"""

import argparse
import contextlib
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import yamame
from PIL import Image
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from yamame.checks import UsageError
from yamame.evaluation.episode import render_frame
from yamame.keys import CONTEXT
from yamame.runs.build import build_env
from yamame_envs.rendering import Palette

Picture = npt.NDArray[np.uint8]

OUT = Path(__file__).parents[1] / "docs" / "figures" / "environments"
SIZE = (200, 150)
"""Largest width and height in pixels; twice what the page shows, for screens with fine pixels."""
COLOURS = 128
STEPS = 12
"""Random actions before the picture."""
COLUMNS = 40
"""Timesteps in a picture of numbers."""
CELL = 5
"""Pixels along a side of one of its cells."""
SETTINGS = {
    "mazerunner": "env=mazerunner",
    "package_delivery": "env=package_delivery env.length=15",
    "dark_key_to_door": "env=dark_key_to_door",
    "frozenlake": "env=frozenlake",
    "tmaze": "env=tmaze env.length=8",
    "active_tmaze": "env=active_tmaze env.length=8",
    "wind": "env=wind",
    "bandits": "env=bandits",
    "xland": "env=xland",
    "gym": "env=gym env.id=CartPole-v1",
    "gym_goals": "env=gym_goals env.id=gymnasium_robotics:FetchReach-v4",
    "popgym": "env=popgym env.id=RepeatPreviousEasy",
    "half_cheetah_vel": "env=half_cheetah_vel",
    "metaworld": "env=metaworld env.benchmark=ML1-reach-v3",
    "crafter": "env=crafter",
    "minigrid": "env=minigrid env.id=MiniGrid-MemoryS7-v0",
    "atari": "env=atari env.game=Pong",
    "multi_domain": "env=multi_domain",
    "anymdp": "env=anymdp env.num_tasks=8",
    "memory_gym": "env=memory_gym env.id=MortarMayhem-Grid",
    "minihack": "env=minihack env.id=MiniHack-Memento-Short-F2-v0 env.observations=[pixel_crop]",
    "jax_gymnax": "env=jax env.id=gymnax:MemoryChain-bsuite",
    "jax_arcade": "env=jax env.id=popgym_arcade:MineSweeperEasy",
    "jax_craftax": "env=jax env.id=craftax:Craftax-Classic-Pixels-v1",
    "jax_xland": "env=jax env.id=xminigrid:MiniGrid-MemoryS16",
}
"""Overrides of each picture."""
SEEDS = {"crafter": 5, "multi_domain": 4}
MORE_STEPS = {"atari": 60}
"""Steps where a picture shows little after `STEPS`."""


def main() -> None:
    """Write one PNG for each environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"all by default: {', '.join(SETTINGS)}")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    parser.add_argument("--seed", type=int, default=None, help="of the episode")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SETTINGS):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")

    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or SETTINGS:
        seed = SEEDS.get(name, 0) if options.seed is None else options.seed
        steps = MORE_STEPS.get(name, STEPS)
        try:
            picture = draw(SETTINGS[name].split(), seed=seed, steps=steps)
        except UsageError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        path = options.out / f"{name}.png"
        thumbnail(picture).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size:,} bytes", flush=True)


def draw(overrides: list[str], *, seed: int, steps: int) -> Picture:
    """Play random actions and draw the environment: ``[H, W, 3]``.

    Raises:
        UsageError: The package of the environment is missing.
    """
    cfg = yamame.compose(*overrides, "logger=none")
    env = build_env(cfg, num_envs=1, seed=seed)
    torch.manual_seed(seed)
    timestep = env.reset()
    for _ in range(steps):
        _, timestep = env.step_and_maybe_reset(env.rand_action(timestep))
    try:
        # Some environments print when they are drawn.
        with contextlib.redirect_stdout(io.StringIO()):
            return render_frame(env)
    except NotImplementedError:
        shown = picture_of(timestep)
        return shown if shown is not None else numbers_over_time(env, timestep)
    finally:
        env.close()


def picture_of(timestep: TensorDictBase) -> Picture | None:
    """Return the picture ``[H, W, 3]`` that the first env observes, if there is one."""
    for value in timestep.values(include_nested=True, leaves_only=True):
        if value.dtype == torch.uint8 and value.ndim == 4 and value.shape[-1] == 3:
            picture: Picture = value[0].numpy()
            return picture
    return None


def numbers_over_time(env: EnvBase, timestep: TensorDictBase) -> Picture:
    """Draw what the first env observes at `COLUMNS` timesteps, one column each.

    Each row is one number of the observation that changes, from its least value (light) to its
    largest (dark).
    """
    columns = []
    for _ in range(COLUMNS):
        parts = [
            value[0].flatten().float()
            for key, value in timestep.items(include_nested=True, leaves_only=True)
            if key not in CONTEXT and key not in ("success", "aborted", "is_init")
        ]
        columns.append(torch.cat(parts))
        _, timestep = env.step_and_maybe_reset(env.rand_action(timestep))
    numbers = torch.stack(columns, 1).numpy()
    varies = numbers.max(1) > numbers.min(1)
    numbers = numbers[varies] if varies.any() else numbers

    low = numbers.min(1, keepdims=True)
    span = np.maximum(numbers.max(1, keepdims=True) - low, 1e-9)
    share = ((numbers - low) / span)[..., None]
    cells = np.array(Palette.FLOOR) * (1 - share) + np.array(Palette.AGENT) * share
    picture: Picture = cells.round().astype(np.uint8)
    # Few rows are drawn taller.
    height = max(CELL, 60 // len(numbers))
    return picture.repeat(height, 0).repeat(CELL, 1)


def thumbnail(picture: Picture) -> Image.Image:
    """Fit a picture into `SIZE`, with few colours."""
    image = Image.fromarray(picture)
    # Small pictures are enlarged without blur, by whole factors.
    factor = min(SIZE[0] // image.width, SIZE[1] // image.height)
    if factor > 1:
        image = image.resize(
            (image.width * factor, image.height * factor), Image.Resampling.NEAREST
        )
    image.thumbnail(SIZE, Image.Resampling.LANCZOS)
    return image.quantize(COLOURS)


if __name__ == "__main__":
    main()
