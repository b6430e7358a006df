"""Runs made by hand: no database, every number known."""

import itertools

import numpy as np
import pytest
from yamame.tracking.history import MetricHistory, RunHistory

PARAMS = {
    "env._target_": "yamame_envs.Maze",
    "env.size": "9",
    "encoder._target_": "a.GRU",
    "encoder.width": "8",
}


@pytest.fixture
def make_run():
    """Makes a run from parameters and from metrics given as ``{step: value}``; each starts after
    the one before.
    """
    clock = itertools.count(1_700_000_000_000, 60_000)

    def make(seed=0, metrics=None, *, status="FINISHED", tags=None, name=None, **params):
        started = next(clock)
        series = {
            key: MetricHistory(
                np.array(list(points), float), np.array(list(points.values()), float)
            )
            for key, points in (
                {"eval/success_mean": {10: 0.5}} if metrics is None else metrics
            ).items()
        }
        given = (
            PARAMS
            | {key.replace("__", "."): str(value) for key, value in params.items()}
            | {"seed": str(seed)}
        )
        name = f"run-{seed}" if name is None else name
        return RunHistory(f"id-{started}", name, status, started, given, dict(tags or {}), series)

    return make
