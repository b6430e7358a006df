"""A recorded timestep encoder reads only parameters, buffers and inputs, and no values back."""

import pytest
import torch
from tensordict import TensorDict
from yamame.execution.capturing import recording
from yamame.execution.recorder import tensors_of
from yamame.testing import DeclaredReads
from yamame.timestep import Input, MLPGoalEncoder, TokenGoalEncoder, make_timestep_encoder

INPUTS = {
    "vector": Input((4,)),
    "pixels": Input((40, 40, 3), "image"),
    "cells": Input((5, 5), "image"),
    "words": Input((6,), "tokens", 9),
    "grid": Input((4, 4, 2), "tokens", 9),
}
KINDS = {
    "impala, few at a time": {"max_images": 2},
    "nature": {"image_encoder": "nature"},
    "goals": {"goal_encoder": MLPGoalEncoder(3, 2)},
    "token goals": {"goal_encoder": TokenGoalEncoder(3, 2, num_tokens=8)},
    "not normalised": {"normalize": False},
}


def timesteps(*shape):
    """Random inputs of all kinds ``[*shape]``."""
    entries = {
        "goal": torch.randint(5, (*shape, 3, 2)).float(),
        "mask": torch.ones(*shape, 1).bool(),
    }
    for name, value in INPUTS.items():
        numbers = torch.randint(value.num_tokens or 200, (*shape, *value.shape))
        entries[name] = numbers.float() if value.kind == "vector" else numbers
        if value.kind == "image":
            entries[name] = numbers.to(torch.uint8)
    return TensorDict(entries, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_encoder_reads_what_is_declared_and_nothing_back(kind, nothing_read_back):
    encoder = make_timestep_encoder(
        INPUTS, **KINDS[kind], hidden_size=8, embedding_size=4, out_size=4
    )
    for batch, training in ((timesteps(2, 3), True), (timesteps(3), False)):
        encoder.train(training).zero_grad()
        encoder(batch.copy())
        declared = [*tensors_of(encoder), *batch.values()]
        with recording(), nothing_read_back(), DeclaredReads(declared):
            features = encoder(batch.copy())["features"]
            features.square().sum().backward()
        assert features.isfinite().all()
    with (
        pytest.raises(AssertionError, match="neither declared"),
        DeclaredReads(list(batch.values())),
    ):
        encoder(batch.copy())
