"""README's table and picture, from the tables that a report wrote: prints the rows, draws the picture.

python recipes/report.py directory=docs/results        # of the runs that docs/results.md names
python tools/results.py                                # draws docs/figures/three_goals.png
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from yamame.report.figures import learning_curve

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FIGURES = RESULTS.parent / "figures"
ROWS = [
    ("recall over 100 steps: success", "cpu_tmaze", "", "success_mean"),
    ("the same without memory", "cpu_tmaze", "encoder=memoryless budget.env_steps=80000", "success_mean"),
    ("two goals in a 9x9 maze: success", "cpu_mazerunner", "", "success_mean"),
    ("three goals in an 11x11 maze: success", "cpu_mazerunner_k3", "", "success_mean"),
    ("the same without relabelling", "cpu_mazerunner_k3", "+ablation=no_relabel", "success_mean"),
    ("five attempts at a frozen lake: goals", "cpu_frozenlake", "", "return_mean"),
    ("twelve attempts in a dark room: return", "cpu_dark_key_to_door", "", "return_mean"),
    ("hold a place in the wind: return, at most 60.5", "cpu_wind", "", "return_mean"),
    ("deliver on an unknown road: success", "cpu_package_delivery", "", "success_mean"),
    ("the same without memory", "cpu_package_delivery", "+ablation=no_memory", "success_mean"),
    ("POPGym's RepeatPreviousEasy: return", "cpu_repeat_previous", "", "return_mean"),
]
"""What is done and measured, experiment, further override, metric."""
_LABELS = {"memor": "encoder=memoryless", "relabel": "relabel.strategy=none", "": ""}
"""What the report calls a group, by a part of its override."""


def read(name: str) -> list[dict[str, str]]:
    """The rows of one of the report's tables."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table() -> Iterator[str]:
    """The lines of README's table: the last evaluation of every seed, and what a run has cost on the average."""
    groups, runs = read("groups"), read("runs")
    yield "| task | `python recipes/train.py ...` | at the end, seeds 0, 1, 2 | steps | CPU-s |"
    yield "|---|---|---|---|---|"
    for task, experiment, override, metric in ROWS:
        label = next(label for part, label in _LABELS.items() if part in override)
        of_task = [
            row for row in groups if (row["section"].split()[0], row["metric"]) == (experiment, metric)
        ]
        group = next(
            row for row in of_task if label in row["label"]
        )  # the first one is the experiment as it is
        place = {key: group[key] for key in ("section", "group", "metric")}
        ends = [
            f"{float(row['value']):.2f}"
            for row in runs
            if place.items() <= row.items() and int(row["seed"]) < 3
        ]
        command = " ".join(filter(None, (f"experiment={experiment}", override)))
        cost = f"{float(group['env_steps']):,.0f} | {float(group['cpu_s']):.0f}"
        yield f"| {task} | `{command}` | {', '.join(ends)} | {cost} |"


def draw() -> Path:
    """Three goals in a maze, with and without relabelling: means over the seeds, and their intervals."""
    names = {"A  base": "with hindsight relabelling", "D  relabel.strategy=none": "without"}
    columns: dict[str, list[list[float]]] = {name: [[], [], [], []] for name in names.values()}
    for row in read("curves"):
        is_there = row["section"].startswith("cpu_mazerunner_k3 ") and row["plot"].endswith(
            "success_mean-env_steps"
        )
        if is_there and row["line"] in names:
            for column, key in zip(columns[names[row["line"]]], ("x", "y", "low", "high"), strict=True):
                column.append(float(row[key]))
    return learning_curve(FIGURES / "three_goals.png", columns, y_label="success with three goals")


if __name__ == "__main__":
    print("\n".join(table()))
    print(draw())
