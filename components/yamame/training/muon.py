"""Muon for hidden matrices, AdamW for all other parameters."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from yamame.agent.roles import parameter_roles
from yamame.checks import require, require_at_least
from yamame.distributed import is_rank0
from yamame.execution.precision import multiplies_bfloat16
from yamame.system.messages import print_stderr
from yamame.training.optimizer_state import name_parameters

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the post: they raise small singular values fastest
_SMALLEST = 32
"""Shortest side of a matrix among parameters of which nothing but the size is known."""


class MuonAdamW(torch.optim.AdamW):
    """Muon for hidden matrices, AdamW for all other parameters.

    Muon moves a matrix along its orthogonalised momentum. A gradient has few large singular values,
    so other optimizers learn along few directions at a time; here a matrix moves equally far along
    each of them. Stacked matrices, such as those of an ensemble, are orthogonalised one by one.

    Sources: https://kellerjordan.github.io/posts/muon (the algorithm, the coefficients of its
    Newton-Schulz steps, and AdamW for input and output layers); arXiv 2502.16982 (an update whose
    size does not depend on the shape, and weight decay). `torch.optim.Muon` computes the same for
    parameters that are single matrices, all of them.

    Args:
        params: Parameters, not groups. They are divided into two groups. Groups that are added
            later are updated by AdamW.
        module: Network of the parameters. Its hidden matrices (see `yamame.agent.roles`) are
            updated by Muon. Embeddings, tables of positions, first layers of encoders, last layers
            of heads, kernels of convolutions, gains and biases, and parameters that are not in it,
            are updated by AdamW. A weight that holds several gates, or queries, keys and values,
            counts as one matrix. With a module, the state holds the names of parameters: one that
            was saved with other roles is not loaded.
        lr: Learning rate of AdamW.
        matrix_lr: Learning rate of Muon: about the root mean square of an entry's change in one
            update, at most.
        momentum: Share of the former momentum in the next one, for Muon.
        smallest: Shortest side of a matrix. If given, parameters are divided by size instead of by
            role, as in version 0.2: those with at least two dimensions, of which the last two have
            at least this size, are updated by Muon. None: by role, or with a size of 32 if there is
            no ``module``.
        num_steps: Newton-Schulz steps of an orthogonalisation, which is approximate and is computed
            in bfloat16 on devices that multiply it.
        weight_decay: Share of a parameter that is subtracted in an update, in units of its learning
            rate.
        betas: Coefficients of AdamW's running averages.
        fused: Use the fused implementation of AdamW.

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
        module: nn.Module | None = None,
        lr: float = 5e-4,
        matrix_lr: float = 1e-3,
        momentum: float = 0.95,
        smallest: int | None = None,
        num_steps: int = 5,
        weight_decay: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        fused: bool = True,
    ) -> None:
        require_at_least("MuonAdamW", 0, lr=lr, matrix_lr=matrix_lr, weight_decay=weight_decay)
        require("MuonAdamW", "momentum", momentum, 0 <= momentum < 1, "lie in [0, 1)")
        if smallest is not None:
            require_at_least("MuonAdamW", 1, smallest=smallest)
        are_steps = isinstance(num_steps, int) and num_steps >= 1
        require("MuonAdamW", "num_steps", num_steps, are_steps, "be a whole number of at least 1")
        are_betas = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        require("MuonAdamW", "betas", betas, are_betas, "be two numbers in [0, 1)")
        params = list(params)
        for parameter in params:
            require(
                "MuonAdamW", "params", type(parameter), isinstance(parameter, Tensor), "be tensors"
            )
        if module is None or smallest is not None:
            matrices, others = _by_size(params, smallest or _SMALLEST)
        else:
            matrices, others = _by_role(params, module)
        own = {"lr": matrix_lr, "momentum": momentum, "num_steps": num_steps}
        groups: list[dict[str, Any]] = [{"params": matrices, **own}, {"params": others}]
        super().__init__(
            [group for group in groups if group["params"]],
            lr=lr,
            betas=betas,
            weight_decay=weight_decay,
            fused=fused,
        )
        name_parameters(self, module, roles=None if module is None else parameter_roles(module))

    @staticmethod
    def method_of(group: dict[str, Any]) -> str:
        """The method that updates a group: only groups of matrices have ``num_steps``."""
        return "Muon" if "num_steps" in group else "AdamW"

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient; a closure is refused."""
        require("MuonAdamW", "closure", closure, closure is None, "be None")
        taken: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            if self.method_of(group) == "Muon":
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
            by_shape[parameter.shape].append(
                (parameter, self._ahead(parameter, gradient, group["momentum"]))
            )
        for shape, members in by_shape.items():
            directions = orthogonalized(
                torch.stack([ahead for _, ahead in members]), group["num_steps"]
            )
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


def _by_size(params: list[Tensor], smallest: int) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices, and all other parameters."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for parameter in params:
        is_matrix = parameter.ndim >= 2 and min(parameter.shape[-2:]) >= smallest
        (matrices if is_matrix else others).append(parameter)
    if others and not matrices:
        _tell_first(
            f"MuonAdamW: all parameters are updated by AdamW, no matrix has sides of at least smallest={smallest}"
        )
    return matrices, others


def _by_role(params: list[Tensor], module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden matrices of a module, and all other parameters."""
    roles = parameter_roles(module)
    named = dict(module.named_parameters())
    hidden = {parameter for name, parameter in named.items() if roles[name] == "hidden"}
    matrices = [parameter for parameter in params if parameter in hidden]
    others = [parameter for parameter in params if parameter not in hidden]

    taken = set(params)
    inside = set(named.values())
    unknown = [
        f"{name} {list(named[name].shape)}"
        for name, role in roles.items()
        if role == "unknown" and named[name] in taken
    ]
    outside = [
        f"{list(p.shape)}"
        for p in params
        if p not in inside and p.ndim > 1 and min(p.shape[-2:]) > 1
    ]
    name = type(module).__name__
    if unknown:
        _tell_first(
            f"MuonAdamW: {_listed(unknown)} updated by AdamW, as no module states their role in parameter_roles; "
            "see docs/howto/own_encoder.md"
        )
    if outside:
        _tell_first(
            f"MuonAdamW: matrices of shape {_listed(outside)} updated by AdamW, as they are not in the module {name}"
        )
    if others and not matrices:
        _tell_first(f"MuonAdamW: all parameters are updated by AdamW, {name} has no hidden matrix")
    return matrices, others


def _listed(names: list[str]) -> str:
    """The first few, and the verb."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'}"


def _tell_first(line: str) -> None:
    if is_rank0():
        print_stderr(line)


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
