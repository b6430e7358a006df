"""Every choice of ``encoder=`` keeps the laws, so a new one is tested by being there."""

import pytest
import torch
import torchrl.modules
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.cli.nodes import instantiate
from yamame.testing import check_trajectory_encoder

NEED_CUDA = {"mamba"}
NEED_TORCHRL = set() if hasattr(torchrl.modules, "CausalTransformer") else {"torchrl"}
"""Choices that need a newer TorchRL than is installed."""
EXACT = {"gru_rounded": ["encoder.memory_resolution=null"]}
"""Settings without which acting differs from the parallel pass by intention."""
ENCODERS = sorted(path.stem for path in (conf_dir() / "encoder").glob("*.yaml"))


@pytest.mark.parametrize(
    "choice", [name for name in ENCODERS if name not in NEED_CUDA | NEED_TORCHRL]
)
def test_every_encoder_on_the_command_line_keeps_the_laws(choice, skip_if_missing):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        node = compose("train", overrides=[f"encoder={choice}", *EXACT.get(choice, [])]).encoder
    torch.manual_seed(0)
    try:
        encoder = instantiate(node)(8)
    except ValueError as error:
        skip_if_missing(str(error))
        raise
    # Exponential gates of the mLSTM enlarge rounding errors.
    atol = 1e-4 if choice == "mlstm" else 1e-5
    check_trajectory_encoder(
        encoder, batch_size=2, length=8, has_memory=choice != "memoryless", atol=atol
    )


def test_those_that_are_left_out_exist():
    assert set(ENCODERS) > NEED_CUDA | NEED_TORCHRL


def test_choices_that_are_variants_differ_in_what_they_say():
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain, selective, rounded = (
            dict(compose("train", overrides=[f"encoder={name}"]).encoder)
            for name in ("gru", "gru_selective", "gru_rounded")
        )
    assert selective == {**plain, "gate_gain": 8.0}
    assert rounded == {**selective, "memory_resolution": 0.25}
