"""Muon for hidden matrices, AdamW for all other parameters."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from yamame.agent.roles import parameter_roles
from yamame.checks import Bounds, NonNegativeFloat, PositiveInt, check_bounds, require
from yamame.distributed import is_rank0
from yamame.execution.precision import multiplies_bfloat16
from yamame.system.messages import print_stderr
from yamame.training.optimizer_state import name_parameters

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz polynomial, chosen to raise small singular values fastest."""
_SMALLEST = 32
"""Shortest side of a matrix, for parameters of which nothing but the size is known."""


class MuonAdamW(torch.optim.AdamW):
    """Muon for hidden matrices, AdamW for all other parameters.

    Muon moves a matrix along its orthogonalised momentum. A gradient has few large singular values,
    so other optimizers learn along few directions at a time; Muon moves a matrix equally far along
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
            counts as one matrix. With a module, the state holds the names of parameters: a state
            that was saved with other roles is not loaded.
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

    @check_bounds
    def __init__(
        self,
        params: Iterable[Tensor],
        *,
        module: nn.Module | None = None,
        lr: NonNegativeFloat = 5e-4,
        matrix_lr: NonNegativeFloat = 1e-3,
        momentum: Annotated[float, Bounds(least=0, below=1)] = 0.95,
        smallest: PositiveInt | None = None,
        num_steps: PositiveInt = 5,
        weight_decay: NonNegativeFloat = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        fused: bool = True,
    ) -> None:
        owner = "MuonAdamW"
        require(owner, "num_steps", num_steps, isinstance(num_steps, int), "be a whole number")
        are_betas = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        require(owner, "betas", betas, are_betas, "be two numbers in [0, 1)")
        params = list(params)
        for parameter in params:
            is_tensor = isinstance(parameter, Tensor)
            require(owner, "params", type(parameter), is_tensor, "be tensors")

        roles = None if module is None else parameter_roles(module)
        if module is None or smallest is not None:
            matrices, others = _divide_by_size(params, smallest or _SMALLEST)
        else:
            matrices, others = _divide_by_role(params, module)
        groups: list[dict[str, Any]] = []
        # An empty group would have no parameter from which to read its device.
        if matrices:
            settings = {"lr": matrix_lr, "momentum": momentum, "num_steps": num_steps}
            groups.append({"params": matrices, **settings})
        if others:
            groups.append({"params": others})
        super().__init__(groups, lr=lr, betas=betas, weight_decay=weight_decay, fused=fused)
        name_parameters(self, module, roles=roles)

    @staticmethod
    def method_of(group: dict[str, Any]) -> str:
        """Return the name of the method that updates a group."""
        # Only groups of matrices have this setting.
        return "Muon" if "num_steps" in group else "AdamW"

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient.

        Raises:
            ValueError: A closure is given.
        """
        require("MuonAdamW", "closure", closure, closure is None, "be None")
        moved: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            if self.method_of(group) != "Muon":
                continue
            matrices = [(p, p.grad) for p in group["params"] if p.grad is not None]
            self._move(matrices, group)
            moved += matrices
        # AdamW skips parameters without a gradient.
        for parameter, _ in moved:
            parameter.grad = None
        super().step()
        for parameter, gradient in moved:
            parameter.grad = gradient

    def _move(self, matrices: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        """Move matrices, given with their gradients."""
        lr = group["lr"]
        # Matrices of one shape are moved together: fewer and larger operations.
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, gradient in matrices:
            momentum = self._momentum(parameter, gradient, group["momentum"])
            by_shape[parameter.shape].append((parameter, momentum))
        for shape, members in by_shape.items():
            stacked = torch.stack([momentum for _, momentum in members])
            directions = orthogonalized(stacked, group["num_steps"])
            # Independent of the shape, an entry changes by about lr (arXiv 2502.16982).
            scale = lr * max(shape[-2:]) ** 0.5
            for (parameter, _), direction in zip(members, directions, strict=True):
                parameter.mul_(1.0 - lr * group["weight_decay"])
                parameter.sub_(scale * direction)

    def _momentum(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Return Nesterov's momentum after one more gradient."""
        state = self.state[parameter]
        if not state:
            # AdamW reads a step when it loads a state.
            state["step"] = torch.zeros(())
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer: Tensor = state["momentum_buffer"].lerp_(gradient, 1.0 - momentum)
        return gradient.lerp(buffer, momentum)


def _divide_by_size(params: list[Tensor], smallest: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return matrices, and all other parameters."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for parameter in params:
        is_matrix = parameter.ndim >= 2 and min(parameter.shape[-2:]) >= smallest
        if is_matrix:
            matrices.append(parameter)
        else:
            others.append(parameter)
    if others and not matrices:
        _warn(
            "MuonAdamW: all parameters are updated by AdamW, no matrix has sides of at least "
            f"smallest={smallest}"
        )
    return matrices, others


def _divide_by_role(params: list[Tensor], module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return hidden matrices of a module, and all other parameters."""
    roles = parameter_roles(module)
    name_of: dict[Tensor, str] = {}
    for name, parameter in module.named_parameters():
        name_of[parameter] = name
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    unknown: list[str] = []
    outside: list[str] = []
    for tensor in params:
        if tensor in name_of and roles[name_of[tensor]] == "hidden":
            matrices.append(tensor)
            continue
        others.append(tensor)
        shape = list(tensor.shape)
        if tensor not in name_of:
            # Vectors are never hidden matrices, wherever they are.
            if len(shape) > 1 and min(shape[-2:]) > 1:
                outside.append(f"{shape}")
        elif roles[name_of[tensor]] == "unknown":
            unknown.append(f"{name_of[tensor]} {shape}")

    module_name = type(module).__name__
    if unknown:
        _warn(
            f"MuonAdamW: {_listed(unknown)} updated by AdamW, as no module states their role in "
            "parameter_roles; see docs/howto/own_encoder.md"
        )
    if outside:
        _warn(
            f"MuonAdamW: matrices of shape {_listed(outside)} updated by AdamW, as they are not "
            f"in the module {module_name}"
        )
    if others and not matrices:
        _warn(f"MuonAdamW: all parameters are updated by AdamW, {module_name} has no hidden matrix")
    return matrices, others


def _listed(names: list[str]) -> str:
    """Return the first few names, and the verb."""
    listed = ", ".join(names[:3])
    if len(names) > 3:
        listed += f" and {len(names) - 3} more"
    verb = "is" if len(names) == 1 else "are"
    return f"{listed} {verb}"


def _warn(line: str) -> None:
    if is_rank0():
        print_stderr(line)


def orthogonalized(matrices: Tensor, num_steps: int = 5) -> Tensor:
    """Return matrices [*, M, N] with all singular values brought near one, in float32.

    >>> values = torch.linalg.svdvals(orthogonalized(torch.randn(3, 40, 64)))
    >>> bool((values > 0.4).all() & (values < 1.4).all())
    True
    """
    a, b, c = _COEFFICIENTS
    # Devices that emulate products in bfloat16 are faster in float32.
    dtype = torch.bfloat16 if multiplies_bfloat16(matrices.device) else torch.float32
    x = matrices.reshape(-1, *matrices.shape[-2:]).to(dtype)
    # The Gram matrix below is the smaller one.
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    # The Frobenius norm bounds the largest singular value, which must not exceed one.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(num_steps):
        # x <- a x + (b A + c A A) x with A = x x^T: an odd polynomial of the singular values.
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    if is_tall:
        x = x.mT
    return x.reshape(matrices.shape).float()
