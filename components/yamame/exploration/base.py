"""What all exploration modules share: a schedule counted in environment steps, and when they act at
all.

An exploration module stands behind the policy: it reads ``action`` and, when present,
``action_mask`` ``[N, A]`` bool from a tensordict ``[N]`` and writes the action to execute (and to
store) under the same key. It changes something only where TorchRL's `exploration_type` is RANDOM or
unset; under DETERMINISTIC, MODE and MEAN it is the identity. All noise comes from PyTorch's global
generator.

TorchRL's `EGreedyModule` and `AdditiveGaussianModule` are no substitutes: they anneal by one
float32 subtraction per environment step (over 32 million steps epsilon never falls, for each
decrement is rounded away), replace all bits of an action together, and measure noise in the units
of the action rather than in its range.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Categorical, TensorSpec
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.actions import ActionSpace
from yamame.checks import require, require_at_least


class Exploration(TensorDictModuleBase):
    """Base of the exploration modules: subclasses say in `epsilon` how strong the noise is.

    The number of environment steps is a buffer, so schedules go on after a restart. `step` must be
    told of every environment step, summed over all envs and all actors. A step can be captured
    (`yamame.execution.capturing`): it decides nothing by the data, and what it remembers is in
    `carried`.

    Args:
        action_space: A `yamame.actions.ActionSpace`, or the environment's action spec with or
            without its batch dimensions.
        anneal_steps: Environment steps after which a schedule has reached its end.
        action_key: Key of the action, read and written.

    Attributes:
        kinds: Of actions that the noise suits, see `yamame.actions.ActionEncoding`.
        enabled: Whether the module may act; see `disable_exploration`.

    Raises:
        ValueError: If ``anneal_steps`` is not positive or actions are of another kind; at run time
            if there is no action.
    """

    kinds: ClassVar[tuple[str, ...]] = ("index", "indices", "one_hot", "bits", "box")
    num_env_steps: Tensor

    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal_steps: int,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__()
        require(type(self).__name__, "anneal_steps", anneal_steps, anneal_steps >= 1, "be positive")
        if isinstance(action_space, TensorSpec):
            own_dims = 0 if type(action_space) is Categorical else 1
            action_space = ActionSpace(action_space, batch_dims=len(action_space.shape) - own_dims)
        kind, kinds = action_space.kind, " or ".join(self.kinds)
        condition = (
            f"be of kind {kinds} (EpsilonGreedy is for choices and bits, GaussianNoise for boxes)"
        )
        require(type(self).__name__, "action_space", kind, kind in self.kinds, condition)
        self.action_space = action_space
        self.anneal_steps = anneal_steps
        self.action_key = action_key
        self.enabled = True
        self.in_keys = [action_key]
        self.out_keys = [action_key]
        self.register_buffer("num_env_steps", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """The strength of the noise in every env, ``[N]`` or a scalar, as `perturb` takes it."""

    def step(self, num_env_steps: int) -> None:
        """Moves the schedule on by ``num_env_steps``."""
        require_at_least(type(self).__name__, 0, num_env_steps=num_env_steps)
        self.num_env_steps.add_(num_env_steps)

    def reserve(self, num_steps: int) -> bool:
        """Whether steps can be captured now."""
        return self.enabled

    def carried(self) -> dict[str, Tensor]:
        """The tensors that a step reads or puts others in the place of, by names."""
        return {"num_env_steps": self.num_env_steps}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on with tensors like those of `carried`; it does not copy them."""
        self.num_env_steps = tensors["num_env_steps"]

    def anneal(self, start: float, end: float) -> Tensor:
        """Value of a linear schedule from ``start`` to ``end`` at the current step, a scalar."""
        progress = (self.num_env_steps / self.anneal_steps).clamp(max=1.0)
        return start + progress * (end - start)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the action by the one to execute, where exploration is on."""
        if not self.enabled or exploration_type() not in (ExplorationType.RANDOM, None):
            return tensordict
        action = self._get(tensordict, self.action_key)
        mask = tensordict.get("action_mask", None)
        with torch.no_grad():
            epsilon = self.epsilon(tensordict).expand(tensordict.batch_size)
            return tensordict.set(
                self.action_key, perturb(self.action_space, action, epsilon, mask)
            )

    def _get(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        keys = sorted(map(str, tensordict.keys()))
        require(type(self).__name__, "tensordict", keys, value is not None, f"hold {key!r}")
        return value


def perturb(
    space: ActionSpace, action: Tensor, epsilon: Tensor, action_mask: Tensor | None
) -> Tensor:
    """Noise of strength ``epsilon`` in [0, 1], in the way that suits the action space.

    One choice, or several at once: the whole action is replaced, with probability epsilon, by a
    uniform one among the allowed (so it may come out as it was). Bits: each is replaced by a fair
    coin with probability epsilon, a bit that is not allowed by 0. Box: normal noise with a standard
    deviation of epsilon half ranges, clipped.

    Args:
        space: What an action is.
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
        return (action + scale * torch.randn_like(action)).clamp(low, high)
    even = torch.zeros(*epsilon.shape, space.num_params, device=action.device)
    uniform = space.decode(space.distribution(even, action_mask).sample()).to(action.dtype)
    epsilon = epsilon.reshape(*epsilon.shape, *[1] * (action.ndim - epsilon.ndim))
    draw = torch.rand(action.shape if space.kind == "bits" else epsilon.shape, device=action.device)
    return torch.where(draw < epsilon, uniform, action)


def disable_exploration(policy: nn.Module) -> None:
    """Turns every `Exploration` inside ``policy`` off for good, so that a sampling policy is just
    that.
    """
    for module in policy.modules():
        if isinstance(module, Exploration):
            module.enabled = False
