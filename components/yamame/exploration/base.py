"""Base class of exploration modules: their schedule over training, and when noise is applied.

An exploration module comes after the policy. It reads ``action`` and, if present, ``action_mask``
``[N, A]`` bool from a TensorDict ``[N]`` and replaces the action by the one to execute and to
store. It changes actions only if TorchRL's `exploration_type` is RANDOM or unset; under
DETERMINISTIC, MODE and MEAN it is the identity. All noise comes from PyTorch's global generator.

TorchRL's `EGreedyModule` and `AdditiveGaussianModule` are no substitutes: they anneal by one
float32 subtraction per environment step (over 32 million steps epsilon never falls, because each
decrement is rounded away), replace all bits of an action together, and measure noise in the units
of the action rather than in its range.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Categorical, TensorSpec
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.actions import ActionSpace
from yamame.checks import (
    ArgumentError,
    Bounds,
    PositiveInt,
    check_bounds,
    require,
    require_tensordict,
)

Share = Annotated[float, Bounds(above=0, most=1)]
"""Share of a budget."""


class Exploration(TensorDictModuleBase):
    """Base class of exploration modules; subclasses return the strength of the noise in `epsilon`.

    The schedule follows either environment steps or the share of a budget. With ``anneal_steps``,
    `step` must be called with every environment step, summed over all envs and all actors. Without,
    `set_spent` must be called as the budget is spent; recipes do so before they collect. Steps can
    be captured (`yamame.execution.capturing`): no branch depends on the data, and the state is in
    `static_buffers`.

    Args:
        action_space: A `yamame.actions.ActionSpace`, or the environment's action spec with or
            without its batch dimensions.
        anneal: Share of the budget, in (0, 1], after which a schedule has reached its end.
        anneal_steps: Environment steps after which it has, in place of ``anneal``; None: the share.
        action_key: Key of the action, read and written.

    Attributes:
        kinds: Kinds of actions that the noise suits, see `yamame.actions.ActionEncoding`.
        enabled: Apply noise; see `disable_exploration`.
        num_env_steps: Environment steps so far, int64 scalar.
        spent: Largest spent share of the budget so far, float32 scalar.

    Raises:
        ValueError: If ``anneal`` or ``anneal_steps`` is out of its range or actions are of another
            kind; at run time if there is no action.
    """

    kinds: ClassVar[tuple[str, ...]] = ("index", "indices", "one_hot", "bits", "box")
    num_env_steps: Tensor
    spent: Tensor

    @check_bounds
    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal: Share = 0.25,
        anneal_steps: PositiveInt | None = None,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__()
        if isinstance(action_space, TensorSpec):
            # An index has no dimension of its own, every other action has one.
            own_dims = 0 if type(action_space) is Categorical else 1
            batch_dims = len(action_space.shape) - own_dims
            action_space = ActionSpace(action_space, batch_dims=batch_dims)
        kind = action_space.kind
        kinds = " or ".join(self.kinds)
        remedy = "EpsilonGreedy is for choices and bits, GaussianNoise for boxes"
        owner = type(self).__name__
        is_suited = kind in self.kinds
        require(owner, "action_space", kind, is_suited, f"be of kind {kinds}", remedy=remedy)
        self.action_space = action_space
        self.anneal_share = anneal
        self.anneal_steps = anneal_steps
        self.action_key = action_key
        self.enabled = True
        self.in_keys = [action_key]
        self.out_keys = [action_key]
        # A buffer, so that a restored schedule continues, and an integer, so that no step is lost
        # to rounding.
        self.register_buffer("num_env_steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("spent", torch.zeros((), dtype=torch.float32))

    @abstractmethod
    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """Return the strength of the noise in every env, ``[N]`` or a scalar; see `perturb`."""

    def step(self, num_env_steps: int) -> None:
        """Advance the schedule by a number of environment steps."""
        owner = type(self).__name__
        require(owner, "num_env_steps", num_env_steps, num_env_steps >= 0, "be at least 0")
        self.num_env_steps.add_(num_env_steps)

    def set_spent(self, share: float) -> None:
        """Set the share of the budget that is spent, in [0, 1]; ignored with ``anneal_steps``.

        A smaller share than before changes nothing: noise does not become stronger again in a run
        whose budget is raised.
        """
        owner = type(self).__name__
        require(owner, "share", share, 0.0 <= share <= 1.0, "be in [0, 1]")
        if self.anneal_steps is None:
            # In place, because captured steps read this tensor.
            self.spent.clamp_(min=share)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Checkpoints of earlier versions count environment steps alone.
        state_dict.setdefault(f"{prefix}spent", self.spent)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def reserve(self, num_steps: int) -> bool:
        """Return whether steps can be captured now; see `yamame.collectors.Capturable`."""
        return self.enabled

    def static_buffers(self) -> dict[str, Tensor]:
        """Return the tensors that a step reads or replaces, by name."""
        return {"num_env_steps": self.num_env_steps, "spent": self.spent}

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use tensors like those of `static_buffers`, without a copy."""
        self.num_env_steps = tensors["num_env_steps"]
        self.spent = tensors["spent"]

    def progress(self) -> Tensor:
        """Return the share of the schedule that has passed, at most 1, a scalar tensor."""
        if self.anneal_steps is None:
            share = self.spent / self.anneal_share
        else:
            share = self.num_env_steps / self.anneal_steps
        return share.clamp(max=1.0)

    def anneal(self, start: float, end: float) -> Tensor:
        """Return the present value of a linear schedule, a scalar tensor."""
        return start + self.progress() * (end - start)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replace the action by the one to execute, and return ``tensordict``."""
        require_tensordict(type(self).__name__, tensordict)
        if not self.enabled or exploration_type() not in (ExplorationType.RANDOM, None):
            return tensordict
        action = self._get(tensordict, self.action_key)
        mask = tensordict.get("action_mask", None)
        with torch.no_grad():
            epsilon = self.epsilon(tensordict).expand(tensordict.batch_size)
            perturbed = perturb(self.action_space, action, epsilon, mask)
        return tensordict.set(self.action_key, perturbed)

    def _get(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            keys = sorted(map(str, tensordict.keys()))
            raise ArgumentError(type(self).__name__, "tensordict", keys, f"hold {key!r}")
        return value


def perturb(
    space: ActionSpace, action: Tensor, epsilon: Tensor, action_mask: Tensor | None
) -> Tensor:
    """Apply noise of strength ``epsilon`` in [0, 1], in the way that suits the action space.

    One choice, or several at once: the whole action is replaced, with probability epsilon, by a
    uniform one among the allowed, which may be the same. Bits: each is replaced by a fair coin with
    probability epsilon; a bit that is not allowed becomes 0. Box: normal noise with a standard
    deviation of epsilon half ranges, clipped.

    Args:
        space: Kind and bounds of actions.
        action: ``[*, ...]`` as the environment takes it.
        epsilon: ``[*]``.
        action_mask: ``[*, A]`` bool or None; not used by a box.

    Returns:
        A new tensor of the shape and dtype of ``action``.
    """
    epsilon = epsilon.to(action.device)
    if space.kind == "box":
        low, high = space.bounds(action.device)
        scale = epsilon.to(action.dtype).unsqueeze(-1) * (high - low) / 2
        noise = scale * torch.randn_like(action)
        return (action + noise).clamp(low, high)
    logits = torch.zeros(*epsilon.shape, space.num_params, device=action.device)
    sample = space.distribution(logits, action_mask).sample()
    uniform = space.decode(sample).to(action.dtype)
    epsilon = epsilon.reshape(*epsilon.shape, *[1] * (action.ndim - epsilon.ndim))
    # Bits are replaced one by one, any other action as a whole.
    shape = action.shape if space.kind == "bits" else epsilon.shape
    draw = torch.rand(shape, device=action.device)
    return torch.where(draw < epsilon, uniform, action)


def disable_exploration(policy: nn.Module) -> None:
    """Disable every `Exploration` inside a policy for good."""
    for module in policy.modules():
        if isinstance(module, Exploration):
            module.enabled = False
