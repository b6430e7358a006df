"""Plays one episode of a trained run: step by step in the terminal, and as a film.

    python recipes/play.py run=runs/mine [key=value]          # --help lists the keys
    python recipes/play.py run=runs/maze instruction="3,5 7,1" seed=4
    python recipes/play.py run=runs/crafter instruction="collect sapling, place plant, eat cow"

A run is a directory, a checkpoint file or the id of an MLflow run. Where the environment knows instructions and none
is given, one is asked for in a terminal; an empty answer, and anything else than a terminal, leaves the goals to the
seed. The film goes to <output>/episode.gif, with film=mp4 to <output>/episode.mp4 (pip install 'yamame[video]').
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from yamame import runs
from yamame.evaluation import describe_step, describe_timestep, play_episode
from yamame.runs.arguments import ease_command_line
from yamame.runs.directory import check_folder
from yamame.runs.hydra import main, plain
from yamame.runs.terminal import half_blocks
from yamame.runs.trained import Trained, load_trained

FILMS = {"gif": runs.write_gif, "mp4": runs.write_mp4}


def play(cfg: DictConfig) -> float:
    """The recipe: the return of the episode."""
    check(cfg)
    trained = load_trained(
        cfg.run,
        checkpoint=cfg.checkpoint,
        tracking_uri=cfg.tracking_uri,
        device=cfg.device,
        env=plain(cfg.env),
        trials=plain(cfg.trials),
        context_length=cfg.context_length,
    )
    check_folder(output_of(cfg, trained), "output")
    gamma_index = -1 if cfg.gamma is None else trained.gamma_index(cfg.gamma)
    env = trained.build_env(num_envs=1, seed=cfg.seed)
    viewer = Viewer(cfg, env)
    try:
        policy = trained.build_agent(env).policy(gamma_index=gamma_index)
        instruct(env, cfg.instruction)
        episode = play_episode(
            policy,
            env,
            max_steps=cfg.max_steps,
            greedy=cfg.greedy,
            seed=cfg.seed,
            watch=viewer.watch,
        )
    except ValueError as error:
        raise runs.UsageError(str(error)) from error
    finally:
        env.close()
    total = float(episode["next", "reward"].sum())
    print(f"return {total:g} in {episode.shape[-1]} steps")
    viewer.write(output_of(cfg, trained))
    return total


def check(cfg: DictConfig) -> None:
    """Refuses settings before anything is read."""
    if not 0.0 < cfg.fps <= 50.0:
        raise runs.UsageError(f"fps must be in (0, 50], got {cfg.fps}")
    if cfg.film not in FILMS:
        raise runs.UsageError(f"film must be one of {tuple(FILMS)}, got {cfg.film!r}")
    if cfg.film == "mp4" and importlib.util.find_spec("av") is None:
        raise runs.UsageError("film=mp4: the package av must be installed, run: pip install 'yamame[video]'")
    if cfg.width < 1:
        raise runs.UsageError(f"width must be positive, got {cfg.width}")


def instruct(env: EnvBase, text: str | None) -> None:
    """Sets the instruction of the episode, where there is one."""
    # Repeated trials hold the environment that knows instructions.
    knows = next((e for e in (env, getattr(env, "env", None)) if hasattr(e, "set_instruction")), None)
    if knows is None:
        if text is not None:
            raise runs.UsageError(f"instruction: {type(env).__name__} takes none, got {text!r}")
        return
    if text is None and sys.stdin.isatty():
        text = asked()
    if text is not None:
        knows.set_instruction(text)


def asked() -> str | None:
    """What a person answers; nothing, and the end of the input, leave the goals to the seed."""
    try:
        return input("instruction (empty: drawn by the seed): ").strip() or None
    except EOFError:
        print()
        return None


class Viewer:
    """Shows every step and keeps the pictures."""

    def __init__(self, cfg: DictConfig, env: EnvBase) -> None:
        self.cfg, self.env = cfg, env
        self.frames: list[Any] = []
        self.no_picture: str | None = None
        self.shows = cfg.picture and sys.stdout.isatty()

    def watch(self, step: TensorDictBase) -> None:
        """Tells of the first timestep, then of every step."""
        frame = self.draw()
        if frame is not None and self.shows:
            print(half_blocks(frame, width=self.cfg.width))
        begins = "next" not in step.keys()
        print(f"    0  {describe_timestep(step)}" if begins else describe_step(step))

    def draw(self) -> Any:
        """The picture of where the environment is, if it has one."""
        if self.no_picture is None:
            try:
                self.frames.append(self.env.render())
                return self.frames[-1]
            except NotImplementedError as error:
                self.no_picture = str(error)
        return None

    def write(self, folder: Path) -> None:
        """Writes the film; its path is the last line."""
        if self.no_picture is not None:
            print(f"no film: {self.no_picture}", file=sys.stderr)
            return
        folder.mkdir(parents=True, exist_ok=True)
        write = FILMS[self.cfg.film]
        print(write(folder / f"episode.{self.cfg.film}", np.stack(self.frames), fps=self.cfg.fps))


def output_of(cfg: DictConfig, trained: Trained) -> Path:
    """The directory of the film."""
    if cfg.output is not None:
        return Path(cfg.output)
    source = Path(trained.source)
    return source / "play" if source.is_dir() else Path("runs/play")


def command_line() -> None:
    """Runs the recipe with the arguments of this process."""
    ease_command_line(texts=("run", "instruction", "output"), below=("env", "trials"))
    main(play, config_name="play")


if __name__ == "__main__":
    command_line()
