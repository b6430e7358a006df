"""A selective state space model as trajectory encoder, on the CUDA kernels of `mamba_ssm`.

Source: Gu & Dao, arXiv 2312.00752; layout (linear map, pre-norm residual blocks, LayerNorm) as in
AMAGO, arXiv 2310.09971. The kernels process a sequence from its beginning only, so segments between
starts become rows of a batch.
"""

from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import Bounds, NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Device, TrajectoryKeys
from yamame.trajectory.recurrent import RecurrentEncoder, segment_outputs


class MissingKernels(ImportError, ValueError):  # noqa: N818
    """Raised if the package with the kernels is not installed, or cannot be imported."""


class MambaEncoder(RecurrentEncoder):
    """A linear map, residual blocks ``x + Mamba(LayerNorm(x))`` and a LayerNorm (arXiv 2312.00752).

    Acts and learns on a CUDA device only. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        d_model: Width D of the layers and of the context.
        num_layers: Number of blocks.
        d_state: Size of the state of each inner channel.
        d_conv: Width in timesteps of the convolution before the recurrence; 2 to 4.
        expand: Number of inner channels, in multiples of ``d_model``.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: A size is out of range.
        MissingKernels: `mamba_ssm` cannot be imported; both an `ImportError` and a `ValueError`.

    >>> MambaEncoder(3, d_conv=5)
    Traceback (most recent call last):
    yamame.checks.ArgumentError: MambaEncoder: d_conv must be in [2, 4], got 5
    """

    capture_obstacle = "MambaEncoder"  # no test has captured the kernels of the package
    needs_cuda = True

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        d_model: PositiveInt = 128,
        num_layers: NumLayers = 2,
        d_state: PositiveInt = 16,
        # The widths of the convolution for which kernels exist.
        d_conv: Annotated[int, Bounds(least=2, most=4)] = 4,
        expand: PositiveInt = 2,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__(in_features, d_model, keys=keys)
        mamba = _kernels().Mamba
        self.embed = nn.Linear(in_features, d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers))
        self.mixers: Any = nn.ModuleList()  # modules of the package, without type annotations
        for _ in range(num_layers):
            mixer = mamba(d_model, d_state=d_state, d_conv=d_conv, expand=expand)
            self.mixers.append(mixer)
        self.norm = nn.LayerNorm(d_model)

    @property
    def parameter_roles(self) -> dict[str, str]:
        """Roles of the decay rates, which are stored as a matrix and are not one."""
        num_layers = len(self.mixers)
        return {f"mixers.{index}.A_log": "other" for index in range(num_layers)}

    def parallel(
        self, x: Tensor, step_index: Tensor, is_init: Tensor, num_segments: int | None = None
    ) -> Tensor:
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        x = self.embed(x)
        x = segment_outputs(self._blocks, x, is_init, num_segments)
        return self.norm(x)

    def _blocks(self, x: Tensor) -> Tensor:
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return x

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return the empty states of each layer's convolution (``conv``) and recurrence (``ssm``).

        Both have shape ``[N, layers, channels, *]``.
        """
        convs = []
        ssms = []
        for mixer in self.mixers:
            conv, ssm = mixer.allocate_inference_cache(num_envs, 1)
            convs.append(conv)
            ssms.append(ssm)
        conv = torch.stack(convs, 1)
        ssm = torch.stack(ssms, 1)
        memory = TensorDict({"conv": conv, "ssm": ssm}, [num_envs])
        return memory.to(conv.device if device is None else device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        conv = _by_layer(memory["conv"], is_init)  # [layers, N, channels, *]
        ssm = _by_layer(memory["ssm"], is_init)
        # The kernels of a step require the input in the dtype of the state.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.embed.weight.dtype)
            x = self.embed(x).unsqueeze(1)  # [N, 1, D]
            for layer, mixer in enumerate(self.mixers):
                normed = self.norms[layer](x)
                output, next_conv, next_ssm = mixer.step(normed, conv[layer], ssm[layer])
                # No effect if the kernel has written in place already.
                conv[layer].copy_(next_conv)
                ssm[layer].copy_(next_ssm)
                x = x + output
            context = self.norm(x.squeeze(1))
        entries = {"conv": conv.transpose(0, 1), "ssm": ssm.transpose(0, 1)}
        return context, TensorDict(entries, memory.batch_size, device=memory.device)


def _by_layer(state: Tensor, is_init: Tensor) -> Tensor:
    """Reset states ``[N, layers, *]`` of envs that start; reorder them to ``[layers, N, *]``."""
    forget = is_init.view(-1, 1, 1, 1)
    reset = state.masked_fill(forget, 0)
    # The kernels write into contiguous states of one layer.
    return reset.transpose(0, 1).contiguous()


def _kernels() -> ModuleType:
    remedy = "run: pip install mamba-ssm causal-conv1d (needs CUDA)"
    try:
        return import_module("mamba_ssm")
    except ModuleNotFoundError as error:
        # The missing package may be a dependency of mamba_ssm.
        missing = (error.name or "mamba_ssm").partition(".")[0]
        message = f"MambaEncoder: the package {missing} must be installed, {remedy}"
        raise MissingKernels(message) from error
    except ImportError as error:
        message = f"MambaEncoder: mamba_ssm must be importable ({error}), {remedy}"
        raise MissingKernels(message) from error
