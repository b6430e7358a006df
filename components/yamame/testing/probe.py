"""Encoder under test, and the sequences that it runs on.

Shapes: B envs or sequences, L timesteps, D numbers of a context.
"""

import dataclasses

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.modules import set_recurrent_mode

from yamame.trajectory import TrajectoryEncoder, segment_positions


class BrokenLawError(AssertionError):
    """Law that an encoder breaks."""


@dataclasses.dataclass
class Probe:
    """Encoder under test, and the runs and comparisons that the laws consist of.

    Args:
        encoder: Encoder under test.
        atol: Largest absolute difference between outputs that count as equal.
        generator: Source of all random numbers.
        has_memory: True if outputs must depend on earlier timesteps.
        law: Name of the law that is being checked, for messages.
    """

    encoder: TrajectoryEncoder
    atol: float
    generator: torch.Generator
    has_memory: bool
    law: str = ""

    @property
    def device(self) -> torch.device:
        """Device of the parameters; the default device of an encoder without any."""
        return next(self.encoder.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters; the default dtype of an encoder without any."""
        return next(self.encoder.parameters(), torch.empty(0)).dtype

    def noise(self, *shape: int) -> Tensor:
        """Return normally distributed numbers."""
        # Numbers are drawn on the host, so that all devices check the same ones.
        return torch.randn(shape, generator=self.generator).to(self.device)

    def coins(self, *shape: int, chance: float = 0.3) -> Tensor:
        """Return bools that are True with the probability ``chance``."""
        is_true = torch.rand(shape, generator=self.generator) < chance
        return is_true.to(self.device)

    def parallel(self, batch: TensorDict) -> Tensor:
        """Return the context ``[B, L, D]`` of one parallel pass."""
        with torch.no_grad(), set_recurrent_mode(True):
            output = self.encoder(batch.clone())
        return output.get(self.encoder.keys.context)

    def act(self, batch: TensorDict, encoder: TrajectoryEncoder | None = None) -> Tensor:
        """Return the context ``[B, L, D]`` of L steps that continue from the present memory."""
        encoder = self.encoder if encoder is None else encoder
        contexts = []
        with torch.no_grad(), set_recurrent_mode(False):
            for timestep in batch.unbind(1):
                output = encoder(timestep.clone())
                contexts.append(output.get(encoder.keys.context))
        return torch.stack(contexts, 1)

    def error(self, message: str) -> BrokenLawError:
        """Return the error to raise where the encoder breaks the present law."""
        encoder_name = type(self.encoder).__name__
        return BrokenLawError(f"{encoder_name} breaks the {self.law} law: {message}")

    def require(self, holds: bool, message: str) -> None:
        """Raise unless a condition of the present law holds."""
        if not holds:
            raise self.error(message)

    def require_equal(
        self, actual: Tensor, expected: Tensor, message: str, *, first: int = 0
    ) -> None:
        """Raise, with the largest difference, unless contexts ``[B, L, D]`` are equal.

        Args:
            actual: Contexts of the encoder.
            expected: Contexts that they must equal.
            message: Beginning of the error.
            first: Index of their first timestep in the sequences, for the error.
        """
        difference = (actual - expected).abs().amax(-1)
        # NaN counts as infinitely different, also where both are NaN.
        difference = difference.nan_to_num(torch.inf)
        env, timestep = divmod(int(difference.argmax()), difference.shape[1])
        worst = float(difference[env, timestep])
        place = (
            f"env {env}, timestep {first + timestep}: off by {worst:.1e}, allowed {self.atol:.0e}"
        )
        self.require(worst <= self.atol, f"{message} ({place})")


def sequences(probe: Probe, batch_size: int, length: int) -> TensorDict:
    """Return random sequences ``[B, L]`` with starts."""
    keys = probe.encoder.keys
    starts = probe.coins(batch_size, length, chance=0.2)
    # Env 0 starts once, env 1 also in the middle, the others anywhere.
    starts[:2, 1:] = False
    starts[1, length // 2] = True
    starts[:, 0] = True
    batch = TensorDict({}, [batch_size, length], device=probe.device)
    features = probe.noise(batch_size, length, probe.encoder.in_features)
    batch.set(keys.features, features.to(probe.dtype))
    batch.set(keys.is_init, starts.unsqueeze(-1))
    batch.set(keys.step_index, segment_positions(starts).unsqueeze(-1))
    return batch


def with_noise(probe: Probe, batch: TensorDict, where: Tensor, scale: float = 1.0) -> TensorDict:
    """Return a copy with other features where ``where [B, L]`` is True."""
    key = probe.encoder.keys.features
    features = batch.get(key)
    noise = scale * probe.noise(*features.shape).to(features.dtype)
    return batch.clone().set(key, torch.where(where.unsqueeze(-1), noise, features))


def without_starts(probe: Probe, batch: TensorDict) -> TensorDict:
    """Return a copy in which no memory starts afresh."""
    key = probe.encoder.keys.is_init
    no_starts = torch.zeros_like(batch.get(key))
    return batch.clone().set(key, no_starts)


def timesteps(batch: TensorDict) -> Tensor:
    """Return the index of every timestep, ``[B, L]``."""
    length = batch.batch_size[1]
    return torch.arange(length, device=batch.device).expand(batch.batch_size)
