"""Results of a GPU run: one line of JSON each, and a table of all of them."""

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

FILE = "results.jsonl"


class Prediction(NamedTuple):
    """Predicted result: its name, and the interval or the value."""

    part: str
    name: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    value: str | None = None

    def __str__(self) -> str:
        if self.value is not None:
            return self.value
        unit = f" {self.unit}" if self.unit else ""
        if self.low is None:
            return f"at most {self.high:g}{unit}"
        if self.high is None:
            return f"at least {self.low:g}{unit}"
        return f"{self.low:g} to {self.high:g}{unit}"

    def holds(self, measured: Any) -> bool:
        """Return whether a measured value is as predicted."""
        if self.value is not None:
            return bool(measured == self.value)
        if not isinstance(measured, int | float):
            return False
        low = -float("inf") if self.low is None else self.low
        return low <= measured <= (float("inf") if self.high is None else self.high)


ENVIRONMENTS = (
    "dark_key_to_door", "mazerunner", "tmaze", "frozenlake", "bandits", "wind", "package_delivery",
)  # fmt: skip
PREDICTIONS = (
    Prediction("machine", "product in float32", None, 67, "TFLOP/s"),
    Prediction("machine", "product in TF32", 250, None, "TFLOP/s"),
    Prediction("machine", "product in bfloat16", 600, None, "TFLOP/s"),
    Prediction("machine", "launch of a kernel", 3, 6, "us"),
    Prediction("machine", "kernel in a graph", 1.5, 2.5, "us"),
    Prediction("machine", "GRU encoder under autocast, error of small gradients", None, 0.01),
    *(Prediction("smoke", name, value="ok") for name in ("door", "maze", "gru", "muon", "float32")),
    Prediction("parity", "recorded losses, largest relative difference", None, 0.001),
    Prediction("parity", "actions that differ after new weights, with sigma_reparam", None, 0.03),
    Prediction("parity", "actions that differ after new weights, without", None, 0.03),
    *(Prediction("parity", f"{name} on both devices", value="equal") for name in ENVIRONMENTS),
    Prediction("tests", "failed", None, 0),
    Prediction("speed", "waits of the host in a recorded step", None, 0),
    Prediction("speed", "waits of the host in a recorded update", None, 1),
    Prediction("speed", "update of 16 x 501, bfloat16, recorded", 2, 4.5, "ms"),
    Prediction("speed", "update of 16 x 501, float32, recorded", 6, 9, "ms"),
    Prediction("speed", "update of 16 x 501, bfloat16", 8, 15, "ms"),
    Prediction("speed", "update of 16 x 501, float32", 8, 15, "ms"),
    Prediction("speed", "update of 24 x 501, bfloat16, recorded", 2.8, 3.8, "ms"),
    Prediction("speed", "step of 12 environments, float32", 2, 3.5, "ms"),
    Prediction("speed", "step of 128 environments, bfloat16, recorded", 0.2, 0.6, "ms"),
    Prediction("speed", "update, bfloat16: ordinary time over recorded time", 1.1, None, "x"),
    Prediction("speed", "update, float32: ordinary time over recorded time", 1.1, None, "x"),
    Prediction("speed", "step of 128, bfloat16: ordinary time over recorded time", 1.1, None, "x"),
    Prediction("speed", "sampling and pinning 16 x 501", 1, 3, "ms"),
    Prediction(
        "speed", "8,000,000 steps and 127,872 updates, float32, 12 environments", 40, 70, "minutes"
    ),
    Prediction("speed", "8,000,000 steps and 127,872 updates, hardware=gpu", 6, 12, "minutes"),
)
"""Predictions for one H100 or H200, from counted kernels and bytes, as in docs/lab/gpu."""


def append(folder: Path, part: str, name: str, value: Any, **more: Any) -> None:
    """Append a result to the file and flush it to disk."""
    line = json.dumps(
        {"part": part, "name": name, "value": value, "time": round(time.time(), 1), **more},
        default=str,
    )
    with (folder / FILE).open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> list[dict[str, Any]]:
    """Read the results of the latest run in a folder, without a line that was cut off."""
    path = folder / FILE
    lines: list[dict[str, Any]] = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if (line["part"], line["name"]) == ("run", "began"):
            lines.clear()
        lines.append(line)
    return lines


def table(folder: Path) -> str:
    """Format predictions beside measurements, all results and the curve of the fit as Markdown."""
    lines = read(folder)
    rehearsal = any(line["name"] == "began" and line.get("rehearsal") for line in lines)
    measured = {(line["part"], line["name"]): line["value"] for line in lines}
    text = ["| part | what | predicted | measured | as predicted |", "|---|---|---|---|---|"]
    for each in PREDICTIONS:
        value = measured.get((each.part, each.name), "not measured")
        known = (each.part, each.name) in measured and not (rehearsal and each.unit)
        verdict = ("yes" if each.holds(value) else "**no**") if known else ""
        text.append(f"| {each.part} | {each.name} | {each} | {cell(value)} | {verdict} |")

    text += ["", "| part | result | value | more |", "|---|---|---|---|"]
    curve = []
    latest = {(line["part"], line["name"]): line for line in lines}
    for line in lines:
        if line["name"] != "progress" and line is not latest[line["part"], line["name"]]:
            continue  # a count that was written again later
        more = {
            key: value
            for key, value in line.items()
            if key not in ("part", "name", "value", "time")
        }
        if line["name"] == "progress":
            curve.append(more)
        else:
            text.append(
                f"| {line['part']} | {line['name']} | {cell(line['value'])} | {cell(more or '')} |"
            )
    if curve:
        columns = ("seconds", "env_steps", "updates", "training_return", "held_out_return")
        text += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        shown = [point for point in curve if "held_out_return" in point or point is curve[-1]]
        text += [
            f"| {' | '.join(str(point.get(column, '')) for column in columns)} |" for point in shown
        ]
    return "\n".join(text) + "\n"


def cell(value: Any) -> str:
    """Format a value as the cell of a table, cut to a readable length."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.replace("|", "\\|").split())
    return text if len(text) <= 300 else f"{text[:140]} ... {text[-140:]}"
