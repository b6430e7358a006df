"""Plays one episode of a trained run: step by step in the terminal, and as a video.

    python recipes/play.py run=runs/mine [key=value]          # --help lists the keys
    python recipes/play.py run=runs/maze instruction="3,5 7,1" seed=4
    python recipes/play.py run=runs/crafter instruction="collect sapling, place plant, eat cow"

A run is a directory, a checkpoint file or the id of an MLflow run. Where the environment knows
instructions and none is given, one is asked for in a terminal; an empty answer, and anything else
than a terminal, leaves the goals to the seed. The video goes to <output>/episode.gif, with
video=mp4 to <output>/episode.mp4 (pip install 'yamame[video]').
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    answer("play")  # prints help and usage errors before torch is imported

# isort: split
import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.evaluation import describe_step, describe_timestep, play_episode
from yamame.files.run_directory import check_folder
from yamame.report.figures import write_gif, write_mp4
from yamame.report.terminal import half_blocks
from yamame.runs.trained import load_from_options
from yamame.spaces.from_specs import spaces_of

WRITERS = {"gif": write_gif, "mp4": write_mp4}


def play(cfg: DictConfig) -> float:
    """The recipe: the return of the episode."""
    check(cfg)
    trained = load_from_options(cfg.run, plain(cfg))
    folder = Path(cfg.output or (trained.folder or Path("runs")) / "play")
    check_folder(folder, "output")
    gamma_index = -1 if cfg.gamma is None else trained.gamma_index(cfg.gamma)
    frames: list[Any] = []
    no_picture: set[str] = set()
    with closing(trained.build_env(num_envs=1, seed=cfg.seed)) as env:
        spaces = spaces_of(
            env
        )  # to print numbers of the environment, not the entries stored for training

        def watch(step: TensorDictBase) -> None:
            """Shows a timestep and keeps its picture."""
            try:
                frames.append(env.render())
                if cfg.picture and sys.stdout.isatty():
                    print(half_blocks(frames[-1], width=cfg.width))
            except NotImplementedError as error:
                no_picture.add(str(error))
            if "next" in step.keys():
                print(describe_step(step, spaces))
            else:
                print(f"    0  {describe_timestep(step, spaces)}")

        try:
            policy = trained.build_agent(env).policy(gamma_index=gamma_index)
            instruct(env, cfg.instruction)
            episode = play_episode(
                policy, env, max_steps=cfg.max_steps, greedy=cfg.greedy, seed=cfg.seed, watch=watch
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
    total = float(episode["next", "reward"].sum())
    print(f"return {total:g} in {episode.shape[-1]} steps")
    for reason in no_picture:
        print(f"no video: {reason}", file=sys.stderr)
    if frames:
        folder.mkdir(parents=True, exist_ok=True)
        print(WRITERS[cfg.video](folder / f"episode.{cfg.video}", np.stack(frames), fps=cfg.fps))
    return total


def check(cfg: DictConfig) -> None:
    """Refuses settings before anything is read."""
    if not 0.0 < cfg.fps <= 50.0:
        raise UsageError(f"fps must be in (0, 50], got {cfg.fps}")
    if cfg.video not in WRITERS:
        raise UsageError(f"video must be one of {tuple(WRITERS)}, got {cfg.video!r}")
    if cfg.video == "mp4" and importlib.util.find_spec("av") is None:
        raise UsageError(
            "video=mp4: the package av must be installed, run: pip install 'yamame[video]'"
        )
    if cfg.width < 1:
        raise UsageError(f"width must be positive, got {cfg.width}")


def instruct(env: EnvBase, text: str | None) -> None:
    """Sets the instruction of the episode, where the environment knows any; without one, a person
    is asked.
    """
    # Repeated trials hold the environment that knows instructions.
    instructed = next(
        (e for e in (env, getattr(env, "env", None)) if hasattr(e, "set_instruction")), None
    )
    if instructed is None:
        if text is not None:
            raise UsageError(f"instruction: {type(env).__name__} takes none, got {text!r}")
        return
    if text is None and sys.stdin.isatty():
        try:
            text = input("instruction (empty: drawn by the seed): ").strip() or None
        except EOFError:
            print()
    if text is not None:
        instructed.set_instruction(text)


if __name__ == "__main__":
    main(play, config_name="play")
