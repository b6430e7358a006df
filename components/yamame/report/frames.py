"""Data frames of the metrics of runs."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from yamame.tracking.history import Axis, RunHistory


class RunMetrics:
    """Metrics of several runs in a long data frame.

    Args:
        runs: The runs. A row refers to its run by the position in this sequence.

    Attributes:
        axes: Axis of each run, by position.
        frame: Columns ``run``, ``metric``, ``step`` and ``value``; one row per logged value, steps
            ascending. Values that are no finite number are NaN.
    """

    def __init__(self, runs: Sequence[RunHistory]) -> None:
        self.axes = pd.Series([run.axis for run in runs], dtype=object)
        self.frame = _long_frame(runs)

    @cached_property
    def last(self) -> pd.DataFrame:
        """Values at the last step: one row per run, one column per metric.

        NaN if the metric was never logged, or if its last value is not finite.
        """
        # Not groupby().last(): it would replace a NaN by an earlier value.
        rows = self.frame.drop_duplicates(["run", "metric"], keep="last")
        table = rows.pivot(index="run", columns="metric", values="value")
        table.columns = list(table.columns)
        return table.reindex(self.axes.index)

    @property
    def names(self) -> list[str]:
        """Names of all metrics that a run has logged."""
        return list(self.last.columns)

    def last_of(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the columns of `last` with these names; a metric that no run logged is NaN."""
        return self.last.reindex(columns=list(names))

    def points(self, metric: str) -> pd.DataFrame:
        """Return the finite values of a metric: columns ``run``, ``step`` and ``value``."""
        rows = self.frame[self.frame["metric"] == metric]
        return rows.dropna(subset="value")[["run", "step", "value"]]

    def on_axis(self, metric: str, axis: Axis) -> pd.DataFrame:
        """Return the finite values of a metric with their position on an axis.

        The steps of a run are positions on its own axis. On another axis it has a position only at
        those steps where ``cost/<axis>`` was logged.

        Returns:
            Columns ``run``, ``step``, ``value`` and ``x``, sorted by run and ``x``.
        """
        costs = self.points(f"cost/{axis}").rename(columns={"value": "x"})
        points = self.points(metric).merge(costs, on=["run", "step"], how="left")
        is_own_axis = points["run"].map(self.axes) == axis
        points["x"] = points["x"].mask(is_own_axis, points["step"])
        # A resumed run may have logged a lower cost than before it was interrupted.
        points = points.dropna(subset="x").sort_values(["run", "x"])
        # Of several evaluations at one position the last counts, as of several at one step.
        return points.drop_duplicates(["run", "x"], keep="last")

    def num_steps(self) -> pd.Series:
        """Return the last step of an evaluation of each run; NaN for runs without evaluation."""
        is_evaluation = self.frame["metric"].str.startswith("eval/")
        return self.frame[is_evaluation].groupby("run")["step"].max().reindex(self.axes.index)

    def costs(self) -> pd.DataFrame:
        """Return costs up to the last evaluation: columns ``env_steps``, ``cpu_s``, ``wall_s``.

        One row per run; NaN if a cost was not logged.
        """
        names = ["env_steps", "cpu_s", "wall_s"]
        table = self.last_of(["cost/env_steps", "cost/cpu_s", "cost/wall_s"])
        table.columns = names
        # Steps of a run that counts them are exact; its cost may have been logged later.
        counts_env_steps = self.axes == "env_steps"
        table.loc[counts_env_steps, "env_steps"] = self.num_steps()[counts_env_steps]
        return table


def _long_frame(runs: Sequence[RunHistory]) -> pd.DataFrame:
    positions, names = [], []
    steps, values = [np.empty(0)], [np.empty(0)]
    for position, run in enumerate(runs):
        for name, series in run.metrics.items():
            positions.append(position)
            names.append(name)
            steps.append(series.steps)
            values.append(series.values)
    lengths = list(map(len, steps[1:]))
    all_values = np.concatenate(values)
    return pd.DataFrame(
        {
            "run": np.repeat(np.array(positions, int), lengths),
            # A categorical column: comparing hundreds of thousands of strings is slow.
            "metric": pd.Categorical(names).repeat(lengths),
            "step": np.concatenate(steps),
            "value": np.where(np.isfinite(all_values), all_values, np.nan),
        }
    )
