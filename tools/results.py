"""README's picture, from the tables that a report wrote.

python recipes/report.py directory=docs/results        # of the runs that docs/results.md names
python tools/results.py                                # draws docs/figures/three_goals.png
"""

import csv
from pathlib import Path

from yamame.report.figures import learning_curve

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FIGURES = RESULTS.parent / "figures"


def read(name: str) -> list[dict[str, str]]:
    """The rows of one of the report's tables."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def draw() -> Path:
    """Three goals in a maze, with and without relabelling: means over the seeds, and their intervals."""
    names = {"A  relabel.strategy=some": "with hindsight relabelling", "B  relabel.strategy=none": "without"}
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
    print(draw())
