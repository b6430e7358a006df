"""Trajectory encoders raise for an argument outside of its bounds, with its name and value."""

import math

import pytest
from yamame.checks import ArgumentError, Bounds, bounds_of
from yamame.trajectory import (
    DeltaNetEncoder,
    FFMEncoder,
    GRUEncoder,
    HFEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MambaEncoder,
    MemoEncoder,
    MemorylessEncoder,
    MLSTMEncoder,
    RSMEncoder,
    SigmaReparamLinear,
    TrajectoryEncoder,
    TransformerEncoder,
    WindowEncoder,
)

BLOCKS = {"in_features", "d_model", "num_layers"}
CELLS = {
    "in_features",
    "hidden_size",
    "num_layers",
    "out_features",
    "max_time_constant",
    "gate_gain",
    "memory_resolution",
}
RECURRENT = BLOCKS | {"ff_factor", "max_time_constant"}
SEGMENTS = BLOCKS | {"num_heads", "ff_factor", "dropout", "segment_length", "num_slots", "jitter"}
BOUNDED = {
    TrajectoryEncoder: {"in_features", "out_features", "context_length"},
    TransformerEncoder: BLOCKS
    | {"num_heads", "ff_factor", "d_ff", "dropout", "context_length", "window", "sinks"}
    | {"num_positions"},
    GRUEncoder: CELLS,
    LSTMEncoder: CELLS,
    LinearRecurrentEncoder: RECURRENT | {"expansion"},
    LRUEncoder: RECURRENT | {"max_phase"},
    FFMEncoder: RECURRENT | {"num_traces", "num_contexts"},
    MLSTMEncoder: RECURRENT | {"num_heads"},
    DeltaNetEncoder: RECURRENT | {"num_heads"},
    MemorylessEncoder: BLOCKS | {"ff_factor", "dropout"},
    WindowEncoder: BLOCKS | {"ff_factor", "dropout", "window"},
    RSMEncoder: SEGMENTS,
    MemoEncoder: SEGMENTS | {"context_length"},
    HFEncoder: BLOCKS | {"num_heads", "context_length"},
    MambaEncoder: BLOCKS | {"d_state", "d_conv", "expand"},
    SigmaReparamLinear: {"in_features", "out_features"},
}
REQUIRED = {
    TrajectoryEncoder: {"in_features": 3, "out_features": 3},
    SigmaReparamLinear: {"in_features": 3, "out_features": 3},
}


def outside(bounds: Bounds) -> list[float]:
    """The nearest numbers beyond each limit, and NaN."""
    values = [math.nan]
    if bounds.least is not None:
        values += [bounds.least - 1, math.nextafter(bounds.least, -math.inf)]
    if bounds.most is not None:
        values.append(bounds.most + 1)
    if bounds.below is not None:
        values.append(bounds.below)
    return values


@pytest.mark.parametrize("kind", BOUNDED)
def test_an_argument_outside_of_its_bounds_is_refused(kind: type) -> None:
    bounds = bounds_of(kind)
    assert bounds.keys() == BOUNDED[kind]
    for name, limits in bounds.items():
        for value in outside(limits):
            arguments = {"in_features": 3, **REQUIRED.get(kind, {}), name: value}
            with pytest.raises(ArgumentError) as raised:
                kind(**arguments)
            error = raised.value
            assert (error.owner, error.name) == (kind.__name__, name)
            assert error.value is value
            assert isinstance(error, ValueError)


@pytest.mark.parametrize("kind", BOUNDED)
def test_limits_themselves_are_allowed(kind: type) -> None:
    for name, limits in bounds_of(kind).items():
        for limit in (limits.least, limits.most):
            assert limit is None or limits.contain(limit), name


@pytest.mark.parametrize(
    "kind",
    [
        TransformerEncoder,
        LinearRecurrentEncoder,
        LRUEncoder,
        FFMEncoder,
        MLSTMEncoder,
        DeltaNetEncoder,
        MemorylessEncoder,
        WindowEncoder,
        RSMEncoder,
    ],
)
def test_an_unknown_activation_is_refused(kind: type) -> None:
    with pytest.raises(ArgumentError, match=r"'leaky_relu', .*, got 'swish'") as raised:
        kind(3, activation="swish")
    assert raised.value.name == "activation"
