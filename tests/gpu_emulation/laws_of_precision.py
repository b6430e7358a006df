"""Recurrent layers compute in the precision of their weights, whatever the precision around
them.
"""

import pytest
import torch
from tensordict import TensorDict
from torchrl.modules import set_recurrent_mode
from yamame.trajectory import GRUEncoder, LSTMEncoder


@pytest.mark.parametrize("kind", [GRUEncoder, LSTMEncoder])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_off_around_recurrent_layers_and_they_read_the_dtype_of_their_weights(
    kind, dtype, monkeypatch
):
    seen, function = [], kind.function

    def noted(x, states, weights, *options):
        tensors = [x, *(states if isinstance(states, tuple) else (states,)), *weights]
        seen.append((torch.is_autocast_enabled("cuda"), {tensor.dtype for tensor in tensors}))
        return function(x, states, weights, *options)

    monkeypatch.setattr(kind, "function", staticmethod(noted))
    encoder = kind(3, hidden_size=8, out_features=4).to("cuda")
    features = torch.randn(2, 6, 3, device="cuda").to(dtype)  # as a layer before it leaves them
    batch = TensorDict({"features": features}, [2, 6])
    with torch.autocast("cuda", dtype):
        assert torch.is_autocast_enabled("cuda")
        with set_recurrent_mode(True):
            context = encoder(batch.copy())["context"]
        assert encoder.out(torch.ones(8, device="cuda")).dtype == dtype
    context.float().sum().backward()
    assert seen == [(False, {torch.float32})]
    assert all(weight.grad.dtype == torch.float32 for weight in encoder.layers.parameters())
    monkeypatch.setattr(kind, "function", staticmethod(function))
    with set_recurrent_mode(True):
        plain = encoder(TensorDict({"features": features.float()}, [2, 6]))["context"]
    # All that is rounded is what the last linear map reads and makes.
    torch.testing.assert_close(context.float(), plain, rtol=0.05, atol=0.05)
