"""The adapter to the Mamba kernels: their absence, and segments, resets and states over a block of
their interface.
"""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import MambaEncoder, segment_positions


@torch.no_grad()
def step(encoder, x, is_init, step_index=None):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init, step_index)
    return context


SIZES = {"d_model": 6, "d_state": 3, "expand": 2}


class Selective(nn.Module):
    """A selective recurrence behind a convolution, with the interface of `mamba_ssm.Mamba`, on any
    device.
    """

    in_place = True

    def __init__(self, d_model: int, *, d_state: int, d_conv: int, expand: int) -> None:
        super().__init__()
        width = expand * d_model
        self.width, self.d_state, self.d_conv = width, d_state, d_conv
        self.in_proj = nn.Linear(d_model, 2 * width, bias=False)
        self.conv = nn.Parameter(torch.randn(width, d_conv))
        self.x_proj = nn.Linear(width, width + 2 * d_state)
        self.A_log = nn.Parameter(torch.rand(width, d_state))
        self.out_proj = nn.Linear(width, d_model, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x, gate = self.in_proj(hidden_states).chunk(2, -1)
        before = F.pad(x, (0, 0, self.d_conv - 1, 0)).unfold(1, self.d_conv, 1)
        x = F.silu((before * self.conv).sum(-1))
        state, outputs = x.new_zeros(len(x), self.width, self.d_state), []
        for t in range(x.shape[1]):
            state, y = self._recur(x[:, t], state)
            outputs.append(y)
        return self.out_proj(torch.stack(outputs, 1) * F.silu(gate))

    def step(self, hidden_states, conv_state, ssm_state):
        assert hidden_states.shape[1] == 1
        if not self.in_place:
            conv_state, ssm_state = conv_state.clone(), ssm_state.clone()
        x, gate = self.in_proj(hidden_states.squeeze(1)).chunk(2, -1)
        conv_state.copy_(conv_state.roll(-1, -1))
        conv_state[:, :, -1] = x
        state, y = self._recur(F.silu((conv_state * self.conv).sum(-1)), ssm_state)
        ssm_state.copy_(state)
        return self.out_proj(y * F.silu(gate)).unsqueeze(1), conv_state, ssm_state

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None
    ):
        dtype = self.conv.dtype if dtype is None else dtype
        conv_state = torch.zeros(batch_size, self.width, self.d_conv, dtype=dtype)
        return conv_state, torch.zeros(batch_size, self.width, self.d_state, dtype=dtype)

    def _recur(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        delta, b, c = self.x_proj(x).split((self.width, self.d_state, self.d_state), -1)
        delta = F.softplus(delta).unsqueeze(-1)
        state = (-delta * self.A_log.exp()).exp() * state + delta * b.unsqueeze(1) * x.unsqueeze(-1)
        return state, (state * c.unsqueeze(1)).sum(-1)


class SelectiveElsewhere(Selective):
    """Returns its states without having touched those it was given."""

    in_place = False


@pytest.fixture(params=[Selective, SelectiveElsewhere])
def kernels(request, monkeypatch):
    monkeypatch.setitem(sys.modules, "mamba_ssm", SimpleNamespace(Mamba=request.param))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 1, "d_conv": 2}, {"num_layers": 3}])
def test_the_laws_hold_over_any_block_of_the_interface(kernels, settings, seed):
    torch.manual_seed(seed)
    check_trajectory_encoder(MambaEncoder(5, **SIZES, **settings), seed=seed)


class ForgetsToReset(MambaEncoder):
    """Resets the recurrence, not the convolution."""

    def step(self, x, memory, is_init, step_index=None):
        memory["ssm"].masked_fill_(is_init.view(-1, 1, 1, 1), 0)
        return super().step(x, memory, torch.zeros_like(is_init), step_index)


class ReadsOn(MambaEncoder):
    """Reads sequences as if nothing started inside them."""

    def parallel(self, x, step_index, starts, num_segments=None):
        begins = torch.zeros_like(starts)
        begins[:, 0] = True
        return super().parallel(x, step_index, begins)


@pytest.mark.parametrize(
    ("defect", "law"), [(ForgetsToReset, "reset law: in acting"), (ReadsOn, "reset")]
)
def test_a_state_that_is_not_reset_is_caught(kernels, defect, law):
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=f"breaks the {law}"):
        check_trajectory_encoder(defect(5, **SIZES))


def test_gradients_reach_every_parameter_through_segments(kernels):
    torch.manual_seed(0)
    encoder = MambaEncoder(5, **SIZES)
    starts = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1]]).bool()
    encoder.parallel(torch.randn(2, 6, 5), segment_positions(starts), starts).pow(
        3
    ).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_acting_works_in_and_out_of_inference_mode_and_under_autocast(kernels):
    torch.manual_seed(0)
    encoder = MambaEncoder(5, **SIZES).eval()
    x, starts = torch.randn(3, 8, 5), torch.arange(8).eq(0).expand(3, 8)
    with torch.no_grad():
        expected = encoder.parallel(x, segment_positions(starts), starts)
    for t in range(8):
        with (
            torch.inference_mode(t % 2 == 0),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=t % 3 == 0),
        ):
            found = step(encoder, x[:, t], starts[:, t])
        assert torch.allclose(found, expected[:, t], atol=1e-5)


COMMAND = r"run: pip install mamba-ssm causal-conv1d \(needs CUDA\)"
ABSENCES = {
    "the package mamba_ssm must be installed, ": ModuleNotFoundError("No module", name="mamba_ssm"),
    "the package einops must be installed, ": ModuleNotFoundError(
        "No module", name="einops.layers"
    ),
    r"mamba_ssm must be importable \(libcudart\), ": ImportError("libcudart"),
}


@pytest.mark.parametrize("message", ABSENCES)
@pytest.mark.parametrize("kind", [ImportError, ValueError])
def test_missing_kernels_are_named_with_the_command_that_installs_them(monkeypatch, message, kind):
    def fail(name):
        assert name == "mamba_ssm"
        raise ABSENCES[message]

    monkeypatch.setattr("yamame.trajectory.adapters.mamba.import_module", fail)
    with pytest.raises(kind, match=f"^MambaEncoder: {message}{COMMAND}$"):
        MambaEncoder(3)


def test_the_package_is_asked_for_when_an_encoder_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)  # as if it were not installed
    with pytest.raises(
        ImportError, match=f"MambaEncoder: the package mamba_ssm must be installed, {COMMAND}"
    ):
        MambaEncoder(3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_true_kernels_keep_the_laws(skip_if_missing):
    torch.manual_seed(0)
    try:
        encoder = MambaEncoder(8).cuda()
    except ImportError as error:
        skip_if_missing(str(error))
        raise
    # The kernels of the two passes take exponentials in lower accuracy, each in its own way.
    check_trajectory_encoder(encoder, atol=1e-4)
