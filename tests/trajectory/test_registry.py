"""Every choice of ``encoder=`` keeps the laws, so a new one is tested by being there."""

import pytest
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.runs.hydra import instantiate
from yamame.testing import check_trajectory_encoder

ENCODERS = sorted(path.stem for path in (conf_dir() / "encoder").glob("*.yaml"))


@pytest.mark.parametrize("choice", ENCODERS)
def test_every_encoder_on_the_command_line_keeps_the_laws(choice):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        node = compose("train", overrides=[f"encoder={choice}"]).encoder
    encoder = instantiate(node)(8)
    check_trajectory_encoder(encoder, has_memory=choice != "memoryless")
