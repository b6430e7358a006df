"""A selective state space model as trajectory encoder, on the CUDA kernels of the package `mamba_ssm`.

Source: Gu & Dao, arXiv 2312.00752; layout (linear map, pre-norm residual blocks, LayerNorm) as in AMAGO, arXiv
2310.09971. The kernels read a sequence from its beginning only, so segments between starts go side by side.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from yamame.trajectory.base import TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.segments import segment_outputs


class MissingKernels(ImportError, ValueError):  # noqa: N818
    """The package that holds the kernels is not installed, or cannot be imported."""


class MambaEncoder(TrajectoryEncoder):
    """A linear map, residual blocks ``x + Mamba(LayerNorm(x))`` and a LayerNorm. ``step_index`` is not used.

    Acts and learns on a CUDA device only.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_layers: Number of blocks.
        d_state: Size of the state of each inner channel.
        d_conv: Width in timesteps of the convolution before the recurrence; 2 to 4.
        expand: Number of inner channels, in multiples of ``d_model``.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is outside its range.
        MissingKernels: If `mamba_ssm` cannot be imported; both an `ImportError` and a `ValueError`.

    >>> MambaEncoder(3, d_conv=5)
    Traceback (most recent call last):
    ValueError: MambaEncoder: d_conv must be 2, 3 or 4, got 5
    """

    capture_obstacle = "MambaEncoder"  # the sizes of what it computes depend on where memories begin

    def __init__(
        self,
        in_features: int,
        *,
        d_model: int = 128,
        num_layers: int = 2,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        sizes = {"d_model": d_model, "num_layers": num_layers, "d_state": d_state, "expand": expand}
        for label, size in sizes.items():
            if size < 1:
                raise ValueError(f"MambaEncoder: {label} must be at least 1, got {size}")
        if d_conv not in (2, 3, 4):
            raise ValueError(f"MambaEncoder: d_conv must be 2, 3 or 4, got {d_conv}")
        super().__init__(in_features, d_model, context_length=None, keys=keys)
        mixer = _kernels().Mamba
        self.embed = nn.Linear(in_features, d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers))
        self.mixers = nn.ModuleList(
            mixer(d_model, d_state=d_state, d_conv=d_conv, expand=expand) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        return self.norm(segment_outputs(self._blocks, self.embed(x), starts))

    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """What each layer's convolution (``conv``) and recurrence (``ssm``) remember, ``[layers, N, channels, *]``."""
        states = [mixer.allocate_inference_cache(num_rows, 1) for mixer in self._mixers()]
        conv, ssm = (torch.stack(parts).to(like.device) for parts in zip(*states, strict=True))
        return {"conv": conv, "ssm": ssm}

    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``; see `TrajectoryEncoder.advance`."""
        states = memory["conv"], memory["ssm"]
        for part in states:
            part.masked_fill_(starts.view(1, -1, 1, 1), 0)
        # The kernels of a step want their input in the dtype of the state.
        with torch.autocast(x.device.type, enabled=False):
            x = self.embed(x.to(self.embed.weight.dtype)).unsqueeze(1)
            for norm, mixer, *state in zip(self.norms, self._mixers(), *states, strict=True):
                found, *new = mixer.step(norm(x), *state)
                for old, value in zip(state, new, strict=True):
                    old.copy_(value)  # nothing where the kernel has already written it there
                x = x + found
            return self.norm(x.squeeze(1))

    def _blocks(self, x: Tensor) -> Tensor:
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return x

    def _mixers(self) -> list[Any]:
        """The blocks of the package, which mypy does not know."""
        return list(self.mixers)


def _kernels() -> ModuleType:
    remedy = "run: pip install mamba-ssm causal-conv1d (needs CUDA)"
    try:
        return import_module("mamba_ssm")
    except ModuleNotFoundError as error:
        missing = (error.name or "mamba_ssm").partition(".")[0]
        raise MissingKernels(f"MambaEncoder: the package {missing} must be installed, {remedy}") from error
    except ImportError as error:
        raise MissingKernels(f"MambaEncoder: mamba_ssm must be importable ({error}), {remedy}") from error
