"""Muon for weight matrices, AdamW for all other parameters."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from yamame.checks import require, require_at_least
from yamame.failures import tell_aside
from yamame.precision import multiplies_bfloat16
from yamame.ranks import is_first

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the post: they raise small singular values fastest


class MuonAdamW(torch.optim.AdamW):
    """Moves a weight matrix along its orthogonalised momentum, and what is no matrix as AdamW does.

    A gradient has few large singular values, so other optimizers learn along few directions at a time; here a matrix
    moves as far along each of them. Matrices may be stacked, as those of an ensemble are: each counts by itself.

    Sources: https://kellerjordan.github.io/posts/muon (the algorithm and the coefficients of its Newton-Schulz steps);
    arXiv 2502.16982 (an update whose size does not depend on the shape, and weight decay). `torch.optim.Muon` is the
    same for parameters that are single matrices, all of them.

    Args:
        params: Parameters. Those of at least two dimensions whose last two have at least ``smallest`` are matrices;
            gates, or queries, keys and values, that lie in one weight are one. Not groups: it makes two of its own, and
            moves those that are added later by AdamW.
        lr: Learning rate of all that are none.
        matrix_lr: Of matrices: at most about the root mean square of what an entry changes by in one update.
        momentum: Share of the former momentum in the next one.
        smallest: Shortest side of a matrix; narrow ones, as most last layers and kernels are, are AdamW's.
        num_steps: Newton-Schulz steps of an orthogonalisation, which is approximate, and computed in bfloat16 where
            a device multiplies it.
        weight_decay: Share of a parameter that it loses in an update, in units of its learning rate.
        betas: Of AdamW.
        fused: Whether AdamW moves all parameters in one pass.

    Raises:
        ValueError: If a setting is out of its range.

    >>> weight = torch.nn.Parameter(torch.eye(32))
    >>> weight.grad = torch.eye(32)
    >>> MuonAdamW([weight], matrix_lr=0.01, weight_decay=0.0).step()
    >>> change = weight.detach() - torch.eye(32)
    >>> 0.007 < change.square().mean().sqrt() < 0.013
    tensor(True)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        *,
        lr: float = 5e-4,
        matrix_lr: float = 1e-3,
        momentum: float = 0.95,
        smallest: int = 32,
        num_steps: int = 5,
        weight_decay: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        fused: bool = True,
    ) -> None:
        require_at_least("MuonAdamW", 0, lr=lr, matrix_lr=matrix_lr, weight_decay=weight_decay)
        require("MuonAdamW", "momentum", momentum, 0 <= momentum < 1, "lie in [0, 1)")
        require_at_least("MuonAdamW", 1, smallest=smallest)
        are_steps = isinstance(num_steps, int) and num_steps >= 1
        require("MuonAdamW", "num_steps", num_steps, are_steps, "be a whole number of at least 1")
        are_betas = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        require("MuonAdamW", "betas", betas, are_betas, "be two numbers in [0, 1)")
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for parameter in params:
            require("MuonAdamW", "params", type(parameter), isinstance(parameter, Tensor), "be tensors")
            is_matrix = parameter.ndim >= 2 and min(parameter.shape[-2:]) >= smallest
            (matrices if is_matrix else others).append(parameter)
        if others and not matrices and is_first():
            tell_aside(f"MuonAdamW: AdamW moves all, no matrix has sides of at least smallest={smallest}")
        own = {"lr": matrix_lr, "momentum": momentum, "num_steps": num_steps}
        groups: list[dict[str, Any]] = [{"params": matrices, **own}, {"params": others}]
        super().__init__(
            [group for group in groups if group["params"]],
            lr=lr,
            betas=betas,
            weight_decay=weight_decay,
            fused=fused,
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient; a closure is refused."""
        require("MuonAdamW", "closure", closure, closure is None, "be None")
        taken: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            if "num_steps" in group:  # as matrices have it
                moved = [(p, p.grad) for p in group["params"] if p.grad is not None]
                self._move(moved, group)
                taken += moved
        for parameter, _ in taken:  # AdamW passes over what has no gradient
            parameter.grad = None
        super().step()
        for parameter, gradient in taken:
            parameter.grad = gradient

    def _move(self, moved: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        """Moves matrices, those of one shape together: fewer and larger operations."""
        lr, by_shape = group["lr"], defaultdict[torch.Size, list[tuple[Tensor, Tensor]]](list)
        for parameter, gradient in moved:
            by_shape[parameter.shape].append((parameter, self._ahead(parameter, gradient, group["momentum"])))
        for shape, members in by_shape.items():
            directions = orthogonalized(torch.stack([ahead for _, ahead in members]), group["num_steps"])
            for (parameter, _), direction in zip(members, directions, strict=True):
                parameter.mul_(1.0 - lr * group["weight_decay"])
                parameter.sub_(lr * max(shape[-2:]) ** 0.5 * direction)

    def _ahead(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum after one more gradient."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())  # AdamW reads one where it loads a state
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer: Tensor = state["momentum_buffer"].lerp_(gradient, 1.0 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonalized(matrices: Tensor, num_steps: int = 5) -> Tensor:
    """Matrices [*, M, N] whose singular values were all brought near one, in float32.

    >>> values = torch.linalg.svdvals(orthogonalized(torch.randn(3, 40, 64)))
    >>> bool((values > 0.4).all() & (values < 1.4).all())
    True
    """
    a, b, c = _COEFFICIENTS
    dtype = torch.bfloat16 if multiplies_bfloat16(matrices.device) else torch.float32
    x = matrices.reshape(-1, *matrices.shape[-2:]).to(dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(matrices.shape).float()
