"""Two ways to the same numbers: what the project does, and the plain way, measured in alternation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROUNDING = 1e-4
"""Of the largest number, where float32 numbers, up to some ten thousand, are added in another order."""
LAST_BITS = 1e-6
"""The same where few operations follow each other: far below what a step of an optimizer changes."""
COARSE_ROUNDING = 2.0**-7
"""The same of bfloat16: its last bit."""

Way = Callable[[Any], Any]


def _nothing() -> None:
    """What a way is given that needs nothing."""


@dataclass(frozen=True)
class Pair:
    """What the project does, and the plain way to the same numbers.

    Attributes:
        name: What is done.
        unit: What one call of a way makes.
        ours: The project's way; returns all that it computes: tensors, in lists or in a batch.
        plain: The plain way; returns the same.
        how: What the plain way is, in words.
        given: Makes what each call of a way takes, and may write into; not timed.
        tolerance: Largest difference of both ways' numbers, as a share of the largest of them; zero for the same bits.
    """

    name: str
    unit: str
    ours: Way
    plain: Way
    how: str
    given: Callable[[], Any] = _nothing
    tolerance: float = 0.0


def measured(pair: Pair, clock: Any) -> tuple[str, str, float, None, str]:
    """The row of a pair: name, unit, seconds of the project's way, no limit, and a note on the plain way.

    Raises:
        ValueError: If the two ways compute different numbers.
    """
    ours, plain = (list(_tensors(way(pair.given()))) for way in (pair.ours, pair.plain))
    pairs = zip(ours, plain, strict=False)
    if not len(ours) == len(plain) > 0 or not all(_same(*both, pair.tolerance) for both in pairs):
        raise ValueError(f"{pair.name}: both ways must compute the same numbers, got others ({pair.how})")
    seconds, other = clock.in_turn(pair.ours, pair.plain, given=pair.given)
    return pair.name, pair.unit, seconds, None, f"{seconds / other:.2f} of {other * 1e3:.3g} ms ({pair.how})"


def differentiated(function: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor]) -> Way:
    """Computes ``function(x)`` and, from the same gradient in every call, those of ``x`` and of parameters."""
    with torch.no_grad():
        found = function(x)
    gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found)

    def way(_: None) -> list[Tensor]:
        inputs = x.detach().requires_grad_()
        found = function(inputs)
        return [found, *torch.autograd.grad(found, [inputs, *parameters], gradient)]

    return way


def _tensors(found: Any) -> Iterator[Tensor]:
    """All tensors in ``found``, in a fixed order."""
    if isinstance(found, Tensor):
        yield found.detach()
    elif isinstance(found, list | tuple):
        for part in found:
            yield from _tensors(part)
    else:
        yield from (found.get(key) for key in sorted(found.keys(True, True), key=str))


def _same(ours: Tensor, plain: Tensor, tolerance: float) -> bool:
    if ours.shape != plain.shape or ours.dtype != plain.dtype:
        return False
    if not tolerance:
        return torch.equal(ours, plain)
    return bool((ours - plain).abs().max() <= tolerance * plain.abs().max())
