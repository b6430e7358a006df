"""Draw the pictures of README.md and of the trained agents, and fill the tables of results.

    python tools/pictures.py                       # everything below
    python tools/pictures.py attempts curve cards preview tables

- ``attempts``: ``docs/figures/attempts.gif``, the first and the last attempt of a trained agent at
  one frozen lake.
- ``curve``: ``docs/figures/relabelling_curve.png``, the success of an agent with and without
  hindsight relabelling, from the runs in ``docs/results``.
- ``cards``: ``docs/figures/zoo/NAME.gif``, an episode of each agent of ``zoo/``.
- ``preview``: ``docs/figures/preview.png``, the picture of links to the repository.
- ``tables``: the marked tables of README.md and ``docs/benchmarks.md``, from ``docs/results``.

All of it depends on files of the repository alone, so a second call changes nothing.
"""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from tensordict import TensorDictBase
from yamame.evaluation import play_episode
from yamame.evaluation.episode import render_frame
from yamame.report import Resampling, make_sections, read_evidence
from yamame.report.figures import learning_curve, write_gif
from yamame.report.groups import Group
from yamame.report.plots import learning_curve_of
from yamame.report.settings import Command
from yamame.runs.trained import load_trained

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
RESULTS = ROOT / "docs" / "results"
PAGES = ("README.md", "docs/benchmarks.md")
SEEDS = {"cpu_tmaze_gru": 3}
"""Seeds of the pictures of agents, 0 for others: the two of the T-Maze turn to different sides."""
PANEL = 240
CAPTION = 44
WHITE, INK, MUTED = (255, 255, 255), (38, 44, 60), (110, 118, 138)
GOOD, BAD = (26, 127, 90), (190, 60, 40)
MOST_FRAMES = 120
"""Frames of an animation of a card."""

Frame = npt.NDArray[np.uint8]


class Episode:
    """The pictures and rewards of one episode of a trained agent.

    Args:
        source: Run or agent, as for `yamame.runs.trained.load_trained`.
        seed: Seed of the environment.

    Attributes:
        frames: One picture for each timestep.
        rewards: Reward of the step that leads to each timestep; 0 at the first.
        starts: Timesteps at which an attempt begins.
    """

    def __init__(self, source: str, seed: int) -> None:
        self.frames: list[Frame] = []
        self.rewards: list[float] = []
        self.starts: list[int] = [0]
        trained = load_trained(source)
        self._env = trained.build_env(num_envs=1, seed=seed)
        with closing(self._env):
            policy = trained.build_agent(self._env).policy()
            play_episode(policy, self._env, watch=self._watch, max_steps=1000, seed=seed)

    def _watch(self, step: TensorDictBase) -> None:
        self.frames.append(render_frame(self._env))
        if "next" not in step.keys():
            self.rewards.append(0.0)
            return
        self.rewards.append(float(step["next", "reward"].sum()))
        if "trial_start" in step["next"].keys() and bool(step["next", "trial_start"].any()):
            self.starts.append(len(self.frames) - 1)

    def attempts(self) -> list[tuple[list[Frame], float]]:
        """Return the pictures and the return of each attempt."""
        result = []
        ends = [*self.starts[1:], len(self.frames)]
        for start, end in zip(self.starts, ends, strict=True):
            # The reward of the last step belongs to the attempt that it ends.
            total = sum(self.rewards[start + 1 : end + 1])
            result.append((self.frames[start:end], total))
        return result


def font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Return the font that comes with Pillow."""
    return ImageFont.load_default(size)


def panel(frame: Frame, title: str, note: str, color: tuple[int, int, int]) -> Image.Image:
    """Draw one picture with a title above it and a note below it."""
    image = Image.new("RGB", (PANEL, PANEL + 2 * CAPTION), WHITE)
    scaled = Image.fromarray(frame).resize((PANEL, PANEL), Image.Resampling.NEAREST)
    image.paste(scaled, (0, CAPTION))
    draw = ImageDraw.Draw(image)
    draw.text((PANEL // 2, CAPTION // 2), title, INK, font(17), anchor="mm")
    draw.text((PANEL // 2, PANEL + CAPTION * 3 // 2), note, color, font(15), anchor="mm")
    return image


def attempt_panels(frames: list[Frame], title: str, reached: bool) -> list[Image.Image]:
    """Draw the steps of an attempt and its outcome."""
    images = []
    for index, frame in enumerate(frames):
        images.append(panel(frame, title, f"step {index}", MUTED))
    outcome = "reached the goal" if reached else "fell into a hidden hole"
    images.append(panel(frames[-1], title, outcome, GOOD if reached else BAD))
    return images


def draw_attempts() -> list[Path]:
    """Draw the first attempt at a lake beside the last one of the same episode."""
    for seed in range(100):
        attempts = Episode("zoo:cpu_frozenlake", seed).attempts()
        first, last = attempts[0], attempts[-1]
        # An episode that shows what memory is for: a lucky first attempt does not.
        if first[1] == 0 and last[1] > 0:
            break
    left = attempt_panels(first[0], "first attempt", reached=False)
    right = attempt_panels(last[0], f"attempt {len(attempts)}, same lake", reached=True)
    length = max(len(left), len(right)) + 4  # the outcome stays for a moment
    frames = []
    for index in range(length):
        image = Image.new("RGB", (2 * PANEL + 20, PANEL + 2 * CAPTION), WHITE)
        image.paste(left[min(index, len(left) - 1)], (0, 0))
        image.paste(right[min(index, len(right) - 1)], (PANEL + 20, 0))
        frames.append(np.asarray(image))
    return [write_gif(FIGURES / "attempts.gif", np.stack(frames), fps=2.5)]


def draw_curve() -> list[Path]:
    """Draw the learning curves with and without relabelling."""
    overrides = {
        "experiment=cpu_mazerunner_k3": "with hindsight relabelling",
        "experiment=cpu_mazerunner_k3 +ablation=no_relabel": "without",
    }
    groups = groups_of(set(overrides))
    resampling = Resampling()
    curves = {}
    for words, name in overrides.items():
        if words not in groups:
            print(f"no curve: docs/results has no run of {words}", file=sys.stderr)
            return []
        curve = learning_curve_of(groups[words], "success_mean", resampling, axis="cpu_s")
        if curve is not None:
            curves[name] = (curve.x, curve.y, *(curve.band or ()))
    label = "success in new 11x11 mazes"
    path = FIGURES / "relabelling_curve.png"
    return [learning_curve(path, curves, x_label="CPU-seconds", y_label=label)]


def groups_of(overrides: set[str]) -> dict[str, Group]:
    """Return the latest group of runs of each command in the evidence."""
    sections, _ = make_sections(read_evidence(RESULTS))
    groups = {}
    for section in sections:
        for group in section.groups:
            command = Command.of(group.runs[0])
            if command is None:
                continue
            given = [word for word in command.words[2:] if not word.startswith("seed=")]
            words = " ".join(given)
            if words in overrides:
                groups[words] = group
    return groups


def draw_cards() -> list[Path]:
    """Draw an episode of each trained agent."""
    folder = FIGURES / "zoo"
    folder.mkdir(exist_ok=True)
    paths = []
    for card in sorted((ROOT / "zoo").glob("*/config.json")):
        name = card.parent.name
        try:
            frames = Episode(f"zoo:{name}", seed=SEEDS.get(name, 0)).frames
        except NotImplementedError as error:
            print(f"no picture of {name}: {error}", file=sys.stderr)
            continue
        paths.append(write_gif(folder / f"{name}.gif", np.stack(frames[:MOST_FRAMES]), fps=6))
    return paths


def draw_preview() -> list[Path]:
    """Draw the picture of links to the repository, 1280 x 640."""
    image = Image.new("RGB", (1280, 640), WHITE)
    draw = ImageDraw.Draw(image)
    draw.text((80, 190), "Yamame", INK, font(110))
    draw.text((84, 330), "In-context reinforcement learning", MUTED, font(36))
    draw.text((84, 382), "from TorchRL components", MUTED, font(36))
    frame = Image.fromarray(Episode("zoo:cpu_mazerunner", seed=0).frames[0])
    image.paste(frame.resize((440, 440), Image.Resampling.NEAREST), (760, 100))
    path = FIGURES / "preview.png"
    image.save(path, optimize=True)
    return [path]


def fill_tables() -> list[Path]:
    """Fill the marked tables of pages."""
    pages = ",".join(PAGES)
    command = ["recipes/report.py", f"evidence={RESULTS}", f"tables=[{pages}]"]
    command += ["store.tracking_uri=null"]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    return [ROOT / page for page in PAGES]


PARTS = {
    "attempts": draw_attempts,
    "curve": draw_curve,
    "cards": draw_cards,
    "preview": draw_preview,
    "tables": fill_tables,
}


def main(names: list[str]) -> None:
    """Make the parts of these names, or all."""
    unknown = set(names) - set(PARTS)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    for name in names or PARTS:
        for path in PARTS[name]():
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
