"""What a device cannot do is refused before a run begins, in one line with key and value."""

import re

import pytest
import yamame
from yamame.checks import UsageError

TINY = ("debug=tiny", "logger=none")
REFUSED = {
    "device=cuda:1": r"device: must be available, got 'cuda:1'.*invalid device ordinal",
    "collector.cuda_graph=true": r"collector\.cuda_graph:? must be false on cpu",
    "hardware=gpu device=cpu": r"schedule\.cuda_graph:? must be false on cpu",
    "device=cuda schedule.cuda_graph=true encoder.checkpoint_layers=true": (
        r"schedule\.cuda_graph:? must be false with checkpoint_layers"
    ),
    "device=cuda schedule.cuda_graph=true optimizer._target_=torch.optim.SGD": (
        r"schedule\.cuda_graph:? must be false with SGD"
    ),
    "device=cuda schedule.cuda_graph=true encoder=hf": r"schedule\.cuda_graph:? must be "
    r"false with HFEncoder",
    "device=cuda encoder.compiled=true": r"encoder\.compiled: no such key.*got "
    r"encoder\.compiled=true",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_a_device_cannot_do_is_refused_before_a_run_begins(
    settings, tmp_path, monkeypatch, skip_if_missing
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        yamame.train(*TINY, *settings.split())
    message = str(refused.value)
    skip_if_missing(message)
    assert re.match(REFUSED[settings], message)
    assert "\n" not in message
    assert not [*tmp_path.glob("runs/*")]
