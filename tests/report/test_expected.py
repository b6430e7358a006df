"""What an experiment expects: read, refused, read back, judged."""

import math
import re

import pytest
from yamame.checks import UsageError
from yamame.files.config import flatten
from yamame.report.expected import Expected

NODE = {"metric": "success_mean", "interval": [0.9, 1.0], "source": "a paper", "cost": "190 CPU-s"}


def test_a_node_is_read_and_nothing_expected_is_nothing():
    assert Expected.from_config(NODE) == Expected(
        "success_mean", (0.9, 1.0), "a paper", "190 CPU-s"
    )
    assert Expected.from_config({"metric": "a", "interval": [None, 3]}) == Expected(
        "a", (-math.inf, 3.0)
    )
    assert Expected.from_config(None) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": None}, "expected.metric: must name a metric without eval/, got null"),
        (
            {"metric": "eval/success_mean"},
            "expected.metric: must name a metric without eval/, got 'eval/success_mean'",
        ),
        (
            {"interval": [1.0, 0.9]},
            "expected.interval: must be two ends in order, null for an open one, got [1.0, ",
        ),
        ({"interval": [None, None]}, "got [None, None]"),
        ({"interval": [0.9]}, "got [0.9]"),
        ({"interval": 0.9}, "got 0.9"),
        ({"interval": ["a", 1]}, "got ['a', 1]"),
        ({"interval": [True, 2]}, "got [True, 2]"),
        ({"interval": [math.nan, 2]}, "got [nan, 2]"),
        ({"source": 3}, "expected.source: must be text, got 3"),
        ({"bogus": 1}, "expected.bogus: expected has metric, interval, source, cost, not 'bogus'"),
    ],
)
def test_a_malformed_node_is_refused_by_key_and_value(change, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Expected.from_config(NODE | change)


def test_what_is_no_node_is_refused():
    with pytest.raises(UsageError, match=r"expected: must be null or have metric, .*, got 0.9"):
        Expected.from_config(0.9)


@pytest.mark.parametrize(
    "node",
    [
        NODE,
        {"metric": "a", "interval": [None, 3]},
        {"metric": "a", "interval": [0.95, math.inf]},
        {"metric": "a", "interval": [-math.inf, -1e-7]},
        {**NODE, "source": None},
    ],
)
def test_a_node_survives_the_parameters_of_a_run(node):
    params = {key: str(value) for key, value in flatten({"expected": node, "seed": 0}).items()}
    assert Expected.from_params(params) == Expected.from_config(node)


def test_parameters_without_a_sound_node_expect_nothing():
    assert Expected.from_params({"expected": "None", "seed": "0"}) is None
    for interval in ("[1, ", "[a, 1]", "1", "[nan, 1]", "[None, None]", ""):
        assert Expected.from_params({"expected.metric": "a", "expected.interval": interval}) is None
    assert Expected.from_params({"expected.metric": "a"}) is None


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (0.89, "below"),
        (0.9, "reached"),
        (0.9 - 1e-15, "reached"),
        (1.0, "reached"),
        (1.01, "above"),
    ],
)
def test_both_ends_belong_to_the_interval(value, outcome):
    assert Expected("a", (0.9, 1.0)).judge(value) == outcome
