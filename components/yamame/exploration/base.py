"""What all exploration modules share: a schedule counted in environment steps, and when they act at all.

An exploration module stands behind the policy: it reads ``action`` from a tensordict ``[N]`` and writes the
action to execute (and to store) under the same key. It changes something only where TorchRL's
`exploration_type` is RANDOM or unset; under DETERMINISTIC, MODE and MEAN it is the identity. All noise comes
from PyTorch's global generator.
"""

import functools
from abc import abstractmethod

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.actions import ActionSpace, BoxActions, MultiBinaryActions, action_space_from_spec
from yamame.actions.distributions import ActionDistribution


class Exploration(TensorDictModuleBase):
    """Base of the exploration modules: subclasses say in `explore` which action is executed.

    The number of environment steps is a buffer, so schedules go on after a restart. `step` must be told of
    every environment step, summed over all rows and all actors.

    Args:
        action_space: A `yamame.actions.ActionSpace`, or the environment's action spec with or without its
            batch dimensions.
        anneal_steps: Environment steps after which a schedule has reached its end.
        action_key: Key of the action, read and written.

    Attributes:
        enabled: Whether the module may act; see `disable_exploration`.

    Raises:
        ValueError: If ``anneal_steps`` is not positive; at run time if there is no action.
    """

    num_env_steps: Tensor

    def __init__(
        self, action_space: ActionSpace | TensorSpec, *, anneal_steps: int, action_key: NestedKey
    ) -> None:
        super().__init__()
        if anneal_steps < 1:
            raise ValueError(f"{type(self).__name__}: anneal_steps must be positive, got {anneal_steps}")
        if isinstance(action_space, ActionSpace):
            self.check_space(action_space)
        self._space: ActionSpace | TensorSpec = action_space
        self.anneal_steps = anneal_steps
        self.action_key = action_key
        self.enabled = True
        self.in_keys = [action_key]
        self.out_keys = [action_key]
        self.register_buffer("num_env_steps", torch.zeros((), dtype=torch.int64))

    def step(self, num_env_steps: int) -> None:
        """Moves the schedule on by ``num_env_steps``."""
        if num_env_steps < 0:
            raise ValueError(
                f"{type(self).__name__}: num_env_steps must not be negative, got {num_env_steps}"
            )
        self.num_env_steps.add_(num_env_steps)

    def anneal(self, start: float, end: float) -> Tensor:
        """Value of a linear schedule from ``start`` to ``end`` at the current step, a scalar."""
        return start + self._progress() * (end - start)

    def _progress(self) -> Tensor:
        return (self.num_env_steps / self.anneal_steps).clamp(max=1.0)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the action by the one to execute, where exploration is on."""
        if not self.enabled or exploration_type() not in (ExplorationType.RANDOM, None):
            return tensordict
        action = self._require(tensordict, self.action_key)
        with torch.no_grad():
            explored = self.explore(tensordict, self._space_of(action, tensordict.batch_dims), action)
        return tensordict.set(self.action_key, explored)

    def check_space(self, space: ActionSpace) -> None:
        """Raises ``ValueError`` where this kind of noise does not suit the actions; called once they are known."""

    @abstractmethod
    def explore(self, tensordict: TensorDictBase, space: ActionSpace, action: Tensor) -> Tensor:
        """The action to execute: same shape and dtype as ``action``, which is not changed in place."""

    def _require(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise ValueError(
                f"{type(self).__name__}: {key!r} must be in the tensordict, got "
                f"{sorted(map(str, tensordict.keys()))}"
            )
        return value

    def _space_of(self, action: Tensor, batch_dims: int) -> ActionSpace:
        if isinstance(self._space, TensorSpec):
            # Only an action tells how many dimensions of the spec belong to the batch.
            spec_batch_dims = len(self._space.shape) - (action.ndim - batch_dims)
            space = action_space_from_spec(self._space, batch_dims=spec_batch_dims)
            self.check_space(space)
            self._space = space
        return self._space


def perturb(space: ActionSpace, action: Tensor, epsilon: Tensor, action_mask: Tensor | None) -> Tensor:
    """Noise of strength ``epsilon`` in [0, 1], in the way that suits the action space.

    One choice, or several at once: the whole action is replaced, with probability epsilon, by a uniform one
    among the allowed (so it may come out as it was). Bits: each is replaced by a fair coin with probability
    epsilon, a bit that is not allowed by 0. Box: normal noise with a standard deviation of epsilon half
    ranges, clipped.

    Args:
        space: What an action is.
        action: ``[*, ...]`` as the environment takes it.
        epsilon: ``[*]``.
        action_mask: ``[*, A]`` bool or None.
    """
    epsilon = epsilon.to(action.device)
    if isinstance(space, BoxActions):
        low, high = space.low.to(action.device), space.high.to(action.device)
        scale = epsilon.to(action.dtype).unsqueeze(-1) * (high - low) / 2
        return (action + scale * torch.randn_like(action)).clamp(low, high)
    if action_mask is None:
        chance = _uniform(space, epsilon.shape, action.device)
    else:
        flat_logits = torch.zeros(*epsilon.shape, space.num_params, device=action.device)
        chance = space.distribution(flat_logits, action_mask)
    uniform = space.decode(chance.sample()).to(action.dtype)
    epsilon = epsilon.reshape(*epsilon.shape, *[1] * (action.ndim - epsilon.ndim))
    per_bit = isinstance(space, MultiBinaryActions)
    draw = torch.rand(action.shape if per_bit else epsilon.shape, device=action.device)
    return torch.where(draw < epsilon, uniform, action)


@functools.lru_cache(maxsize=16)
def _uniform(space: ActionSpace, shape: torch.Size, device: torch.device) -> ActionDistribution:
    """Every action equally likely. The same at every step, so it is made once."""
    with torch.inference_mode(False):
        return space.distribution(torch.zeros(*shape, space.num_params, device=device))


def disable_exploration(policy: nn.Module) -> None:
    """Turns every `Exploration` inside ``policy`` off for good, so that a sampling policy is just that."""
    for module in policy.modules():
        if isinstance(module, Exploration):
            module.enabled = False
