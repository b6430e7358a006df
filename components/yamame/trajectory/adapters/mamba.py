"""A selective state space model as trajectory encoder, on the CUDA kernels of the package
`mamba_ssm`.

Source: Gu & Dao, arXiv 2312.00752; layout (linear map, pre-norm residual blocks, LayerNorm) as in
AMAGO, arXiv 2310.09971. The kernels read a sequence from its beginning only, so segments between
starts go side by side.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import require, require_at_least
from yamame.trajectory.base import Device, TrajectoryKeys
from yamame.trajectory.recurrent import RecurrentEncoder, segment_outputs


class MissingKernels(ImportError, ValueError):  # noqa: N818
    """The package that holds the kernels is not installed, or cannot be imported."""


class MambaEncoder(RecurrentEncoder):
    """A linear map, residual blocks ``x + Mamba(LayerNorm(x))`` and a LayerNorm. ``step_index`` is
    not used.

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

    capture_obstacle = "MambaEncoder"  # nobody has captured the package's kernels yet
    needs_cuda = True
    takes_num_segments = True

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
        require_at_least("MambaEncoder", 1, **sizes)
        require("MambaEncoder", "d_conv", d_conv, d_conv in (2, 3, 4), "be 2, 3 or 4")
        super().__init__(in_features, d_model, keys=keys)
        mixer = _kernels().Mamba
        self.embed = nn.Linear(in_features, d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers))
        self.mixers: Any = nn.ModuleList(  # blocks of the package, which mypy does not know
            mixer(d_model, d_state=d_state, d_conv=d_conv, expand=expand) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    @property
    def parameter_roles(self) -> dict[str, str]:
        """Rates of decay are no matrices, although they stand in one."""
        return {f"mixers.{index}.A_log": "other" for index in range(len(self.mixers))}

    def parallel(
        self, x: Tensor, step_index: Tensor, is_init: Tensor, num_segments: int | None = None
    ) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        return self.norm(segment_outputs(self._blocks, self.embed(x), is_init, num_segments))

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """What each layer's convolution (``conv``) and recurrence (``ssm``) remember,
        ``[N, layers, channels, *]``.
        """
        states = [mixer.allocate_inference_cache(num_envs, 1) for mixer in self.mixers]
        conv, ssm = (torch.stack(parts, 1) for parts in zip(*states, strict=True))
        memory = TensorDict({"conv": conv, "ssm": ssm}, [num_envs])
        return memory.to(conv.device if device is None else device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        # The kernels write into contiguous states of one layer.
        conv, ssm = (
            memory[name].masked_fill(is_init.view(-1, 1, 1, 1), 0).transpose(0, 1).contiguous()
            for name in ("conv", "ssm")
        )
        # The kernels of a step want their input in the dtype of the state.
        with torch.autocast(x.device.type, enabled=False):
            x = self.embed(x.to(self.embed.weight.dtype)).unsqueeze(1)
            for norm, mixer, *state in zip(self.norms, self.mixers, conv, ssm, strict=True):
                output, *new = mixer.step(norm(x), *state)
                for old, value in zip(state, new, strict=True):
                    old.copy_(value)  # nothing where the kernel has already written it there
                x = x + output
            context = self.norm(x.squeeze(1))
        states = {"conv": conv.transpose(0, 1), "ssm": ssm.transpose(0, 1)}
        return context, TensorDict(states, memory.batch_size, device=memory.device)

    def _blocks(self, x: Tensor) -> Tensor:
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return x


def _kernels() -> ModuleType:
    remedy = "run: pip install mamba-ssm causal-conv1d (needs CUDA)"
    try:
        return import_module("mamba_ssm")
    except ModuleNotFoundError as error:
        missing = (error.name or "mamba_ssm").partition(".")[0]
        raise MissingKernels(
            f"MambaEncoder: the package {missing} must be installed, {remedy}"
        ) from error
    except ImportError as error:
        raise MissingKernels(
            f"MambaEncoder: mamba_ssm must be importable ({error}), {remedy}"
        ) from error
