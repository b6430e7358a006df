"""Under autocast the networks compute in bfloat16, and the rest in float32."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from yamame.actions import ActionSpace


@pytest.mark.parametrize("binned", [False, True])
def test_terms_metrics_and_statistics_are_float32_and_close(
    space: ActionSpace, make_batch: Callable[..., Any], make_loss: Callable[..., Any], binned: bool
) -> None:
    batch, outputs = make_batch(space), {}
    for enabled in (False, True):
        loss = make_loss(space, binned=binned, reward_multiplier=1.0)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outputs[enabled] = loss(batch)
        assert all(value.dtype == torch.float32 for value in outputs[enabled].values())
        assert all(
            buffer.dtype in (torch.float32, torch.float64, torch.int64)
            for buffer in loss.returns.buffers()
        )
        sum(
            value for name, value in outputs[enabled].items() if name.startswith("loss_")
        ).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters())
    # 8 bits in a few layers: values of order 1 keep two digits. The filter's share can jump with
    # one entry, and the cloning term with it.
    for name in set(outputs[False].keys()) - {"filter_weight", "loss_cloning"}:
        torch.testing.assert_close(outputs[True][name], outputs[False][name], rtol=0.05, atol=0.05)
    assert not torch.equal(outputs[True]["loss_critic"], outputs[False]["loss_critic"])
