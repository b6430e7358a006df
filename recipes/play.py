"""Play one episode of a trained run: step by step in the terminal, and as a video.

    yamame play run=runs/mine [key=value]          # --help lists the keys
    yamame play run=runs/maze instruction="3,5 7,1" seed=4
    yamame play run=runs/crafter instruction="collect sapling, place plant, eat cow"

A run is a directory, a checkpoint file or the id of an MLflow run. If the environment takes
instructions and none is given, the terminal prompts for one; without an answer, or outside of a
terminal, the seed draws the goals. The video is written to <output>/episode.gif, with video=mp4 to
<output>/episode.mp4 (pip install 'yamame[video]').
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("play")

# isort: split
import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from yamame.checks import UsageError, require_setting
from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.settings import PlayConfig
from yamame.evaluation import describe_step, describe_timestep, play_episode
from yamame.evaluation.bound import EndlessEpisodes
from yamame.evaluation.episode import render_frame
from yamame.files.run_directory import check_folder
from yamame.report.figures import write_gif, write_mp4
from yamame.report.terminal import half_blocks
from yamame.runs.extras import reported
from yamame.runs.trained import load_from_options
from yamame.spaces import Spaces
from yamame.spaces.from_specs import spaces_of
from yamame.system.messages import one_line, warnings_as_lines
from yamame.system.user_code import UserCodeError

WRITERS = {"gif": write_gif, "mp4": write_mp4}


class Spectator:
    """Prints the steps of an episode and collects its pictures.

    Args:
        cfg: Configuration of the recipe.
        env: Environment that is played.

    Attributes:
        frames: Pictures ``[H, W, 3]`` so far.
        reasons: Reasons why there are no pictures.
    """

    def __init__(self, cfg: PlayConfig, env: EnvBase) -> None:
        self.frames: list[Any] = []
        self.reasons: set[str] = set()
        self._env = env
        # To print values of the environment's spaces instead of the entries stored for training.
        self._spaces: Spaces | None = spaces_of(env)
        self._width = cfg.width if cfg.picture and sys.stdout.isatty() else None

    def __call__(self, step: TensorDictBase) -> None:
        """Print a step, or the first timestep, and draw its picture."""
        try:
            self.frames.append(render_frame(self._env))
            if self._width is not None:
                print(half_blocks(self.frames[-1], width=self._width))
        except (NotImplementedError, UserCodeError) as error:
            self.reasons.add(str(error))
        except Exception as error:  # of any library that draws
            self.reasons.add(f"{type(error).__name__}: {one_line(error)}")
        if "next" in step.keys():
            print(describe_step(step, self._spaces))
        else:
            print(f"    0  {describe_timestep(step, self._spaces)}")


def play(cfg: PlayConfig) -> float:
    """Run the recipe; return the return of the episode."""
    check(cfg)
    trained = load_from_options(cfg.run, plain(cfg))
    folder = Path(cfg.output or (trained.folder or Path("runs")) / "play")
    check_folder(folder, "output")
    gamma_index = -1 if cfg.gamma is None else trained.gamma_index(cfg.gamma)
    options = {"max_steps": cfg.max_steps, "greedy": cfg.greedy, "seed": cfg.seed}
    env = trained.build_env(num_envs=1, seed=cfg.seed)
    with closing(env), warnings_as_lines(EndlessEpisodes):
        spectator = Spectator(cfg, env)
        policy = trained.build_agent(env).policy(gamma_index=gamma_index)
        instruct(env, cfg.instruction)
        episode = play_episode(policy, env, watch=spectator, **options)

    total = float(episode["next", "reward"].sum())
    print(f"return {total:g} in {episode.shape[-1]} steps")
    for reason in spectator.reasons:
        name = trained.config.env["_target_"].rpartition(".")[2]
        print(f"no video of {name}: {reason}", file=sys.stderr)
    if spectator.frames:
        with reported(f"episode.{cfg.video}"):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"episode.{cfg.video}"
            print(WRITERS[cfg.video](file, np.stack(spectator.frames), fps=cfg.fps))
    return total


def check(cfg: PlayConfig) -> None:
    """Raise for settings that need a missing package."""
    can_write = cfg.video != "mp4" or importlib.util.find_spec("av") is not None
    condition = "be gif without the package av"
    remedy = "run: pip install 'yamame[video]'"
    require_setting("video", cfg.video, can_write, condition, remedy=remedy)


def instruct(env: EnvBase, text: str | None) -> None:
    """Set the instruction of the episode; without one, prompt for it in a terminal."""
    if not hasattr(env, "set_instruction"):
        # Repeated trials wrap the environment that takes instructions.
        env = getattr(env, "env", env)
    if not hasattr(env, "set_instruction"):
        condition = f"be null, because {type(env).__name__} takes no instructions"
        require_setting("instruction", text, text is None, condition)
        return

    if text is None and sys.stdin.isatty():
        try:
            text = input("instruction (empty: drawn by the seed): ").strip() or None
        except EOFError:
            print()
    if text is None:
        return
    try:
        env.set_instruction(text)
    except UsageError:
        raise
    except ValueError as error:  # of a class that does not use yamame.checks
        raise UsageError(one_line(error), key="instruction") from error


if __name__ == "__main__":
    main(play, config_name="play")
