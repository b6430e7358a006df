"""Base classes of losses over sequences: keys, reading of a batch, heads with target copies.

A batch is a TensorDict [B, L] in which timestep t holds the observation at t and the transition
that leaves t (see :mod:`yamame.replay`): the encoder's keys, ``action`` [B, L, *],
``("next", "reward")`` [B, L, 1], ``("next", "terminated")`` bool [B, L, 1], ``mask`` bool [B, L, 1]
(a real timestep), ``is_init`` bool [B, L, 1] (a new trajectory starts) and, if the environment has
one, ``action_mask`` bool [B, L, A]. The T = L - 1 transitions join neighbouring timesteps. Numbers
in invalid transitions change nothing, but must be finite. The batch is not modified. Without
``mask``, all timesteps are real.

A batch in TorchRL's layout [*, T], with the observation after each step under ``"next"``, is packed
first (`yamame.replay.pack`): batches of collectors, samples of ``SliceSampler``, flat or reshaped,
and ``split_trajectories``. It is split at ends of episodes, and no transition is lost. This reads
the ends, so on a GPU it waits for the device; batches packed beforehand do not.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import LossModule

from yamame.actions import ActionDistribution, ActionSpace
from yamame.checks import require
from yamame.distributed import all_reduce
from yamame.execution.capturing import capturing
from yamame.losses.functional import transition_mask
from yamame.normalization import LARGEST
from yamame.replay.packing import find_pieces, pack_pieces
from yamame.replay.pieces import packed_pieces
from yamame.rollouts import INIT_REMEDY, is_rollout
from yamame.trajectory.sigma import power_iteration, sigma_layers

DEPARTURE = slice(None, -1)
"""Timesteps [T] of L that transitions leave."""
ARRIVAL = slice(1, None)
"""Timesteps [T] of L that transitions arrive in."""


class SequenceLoss(LossModule):
    """TorchRL loss over the context of a sequence encoder, whose networks are plain modules.

    Args:
        encoder: Writes ``context`` [B, L, D].
        action_space: Encodes actions and turns policy parameters into distributions.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of a batch; ``reward`` and ``terminated`` are read below ``next``."""

        action: NestedKey = "action"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"
        mask: NestedKey = "mask"
        is_init: NestedKey = "is_init"
        context: NestedKey = "context"
        action_mask: NestedKey = "action_mask"

    default_keys = _AcceptedKeys
    # TorchRL's name for losses whose parameters stay in the modules that use them.
    functional = False

    def __init__(self, encoder: TensorDictModuleBase, *, action_space: ActionSpace) -> None:
        super().__init__()
        is_encoder = hasattr(encoder, "in_keys") and hasattr(encoder, "out_keys")
        condition = "be a TensorDict module that writes 'context'"
        remedy = "use an encoder of yamame.trajectory, or wrap a module in TensorDictModule"
        kind = type(encoder).__name__
        require(type(self).__name__, "encoder", kind, is_encoder, condition, remedy=remedy)
        is_space = isinstance(action_space, ActionSpace)
        kind = type(action_space).__name__
        condition = "be a yamame.actions.ActionSpace"
        require(type(self).__name__, "action_space", kind, is_space, condition)
        self.encoder = encoder
        self.action_space = action_space

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that are read; ``action_mask`` only if the environment has one."""
        keys = self.tensor_keys
        reward = unravel_key(("next", keys.reward))
        terminated = unravel_key(("next", keys.terminated))
        own = [keys.action, reward, terminated, keys.mask, keys.is_init, keys.action_mask]
        return list(dict.fromkeys([*self.encoder.in_keys, *own]))

    def packed(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch as packed sequences [B, L] with ``mask`` and ``is_init``.

        Args:
            tensordict: Packed batch [B, L], or rollout [*, T].

        Raises:
            ArgumentError: The batch has other dimensions, no ``is_init``, or ends of episodes that
                its layout does not show.
        """
        if capturing():
            return tensordict
        keys = self.tensor_keys
        owner = type(self).__name__
        if is_rollout(tensordict):
            tensordict = self._pack(tensordict)
        shape = list(tensordict.batch_size)
        remedy = "reshape it; rollouts with the observations under 'next' may be flat"
        require(owner, "the batch", shape, len(shape) == 2, "be [B, L]", remedy=remedy)
        held = tensordict.keys(True)
        if keys.mask == "mask" and "mask" not in held:
            real = torch.ones(*shape, 1, dtype=torch.bool, device=tensordict.device)
            tensordict = tensordict.copy().set("mask", real)
        if keys.is_init == "is_init":
            has_starts = "is_init" in held
            names = sorted(map(str, tensordict.keys()))
            remedy = f"it marks where an episode starts: {INIT_REMEDY}"
            require(owner, "the batch", names, has_starts, "hold 'is_init'", remedy=remedy)
        done = tensordict.get(("next", "done"), None)
        if done is not None and done.is_cpu:
            # Without the observation after an end, its transition would be left out in silence.
            real = _flat(tensordict, keys.mask).bool()
            packed_pieces(tensordict, real, owner=owner, is_init=keys.is_init)
        return tensordict

    def _pack(self, rollout: TensorDictBase) -> TensorDictBase:
        """Pack a rollout [*, T]."""
        keys = self.tensor_keys
        for key, name in ((keys.mask, "mask"), (keys.is_init, "is_init")):
            value = rollout.get(key, None)
            if key != name and value is not None:
                rollout = rollout.copy().set(name, value)
        pieces = find_pieces(rollout, owner=type(self).__name__)
        packed = pack_pieces(rollout, pieces)
        if keys.mask != "mask":
            packed.set(keys.mask, packed["mask"])
        if packed.get(keys.is_init, None) is None:
            # Each row holds one trajectory.
            packed.set(keys.is_init, torch.zeros_like(packed["mask"]))
        return packed

    def _valid_transitions(self, tensordict: TensorDictBase) -> Tensor:
        """Mark the transitions [B, T] that join two real timesteps of one trajectory.

        Transitions with a finite reward beyond `yamame.normalization.LARGEST` are excluded, unless
        there are no others.
        """
        keys = self.tensor_keys
        mask = _flat(tensordict, keys.mask)
        valid = self._joined(tensordict)
        # On other devices, reading the result would wait for the device. Without a valid transition
        # the loss is 0 / 0 there, and the guard skips the update.
        if valid.is_cpu and not capturing():
            condition = f"leave a valid transition in the batch of {tuple(mask.shape)}"
            (num_valid,) = all_reduce(valid.any().long())
            require(type(self).__name__, "mask", "none", bool(num_valid), condition)
        if unravel_key(("next", keys.reward)) not in tensordict.keys(True):
            return valid
        reward = self._outcome(tensordict, "reward")
        too_large = reward.isfinite() & (reward.abs() > LARGEST)
        usable = valid & ~too_large
        return torch.where(usable.any(), usable, valid)

    def _joined(self, tensordict: TensorDictBase) -> Tensor:
        """Mark the transitions [B, T] that join two real timesteps of one trajectory."""
        keys = self.tensor_keys
        return transition_mask(_flat(tensordict, keys.mask), _flat(tensordict, keys.is_init))

    def _outcome(self, tensordict: TensorDictBase, name: str) -> Tensor:
        """Read ``reward`` or ``terminated`` of every transition, [B, T]."""
        key = unravel_key(("next", getattr(self.tensor_keys, name)))
        self._require_entry(tensordict, key)
        return _flat(tensordict, key)[:, DEPARTURE]

    def _require_entry(self, tensordict: TensorDictBase, key: NestedKey) -> None:
        """Raise ArgumentError unless a batch holds an entry."""
        if tensordict.get(key, None) is None:
            names = sorted(map(str, tensordict.keys(True, True)))
            require(type(self).__name__, "the batch", names, False, f"hold {key!r}")

    def _context_of(self, encoded: TensorDictBase) -> Tensor:
        """Return the context [B, L, D] that the encoder has written."""
        context = encoded.get(self.tensor_keys.context, None)
        names = sorted(map(str, encoded.keys(True)))
        condition = f"write {self.tensor_keys.context!r}"
        require(type(self).__name__, "encoder", names, context is not None, condition)
        return context

    def _taken_actions(self, tensordict: TensorDictBase, valid: Tensor) -> Tensor:
        """Encode the actions of all transitions, [B, T, A]."""
        key = self.tensor_keys.action
        self._require_entry(tensordict, key)
        action = tensordict[key]
        shape = (*tensordict.batch_size, *self.action_space.action_shape)
        name = f"{key!r} of the batch"
        found = f"{action.dtype} of shape {list(action.shape)}"
        condition = f"be of shape {list(shape)}, as {self.action_space.kind!r} actions are"
        remedy = "give action_space the action spec of the environment that was played"
        fits = action.shape == shape
        require(type(self).__name__, name, found, fits, condition, remedy=remedy)
        action = action[:, DEPARTURE]
        keep = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        # Padding may hold actions that cannot be encoded.
        action = torch.where(keep, action, torch.zeros_like(action))
        return self.action_space.encode(action)

    def _action_mask(
        self, tensordict: TensorDictBase, which: slice, *, needed: Tensor
    ) -> Tensor | None:
        """Return the allowed actions [B, T, A]; None if the environment has no mask.

        All actions are allowed where no action is needed, as after the end of an episode: a
        distribution without any action would be NaN.
        """
        mask = tensordict.get(self.tensor_keys.action_mask, None)
        if mask is None:
            return None
        return mask[:, which].bool() | ~needed.unsqueeze(-1)


def check_module(owner: str, name: str, part: object, kind: type[nn.Module]) -> None:
    """Raise if a part of a loss is no module of a kind.

    Args:
        owner: Class of the loss.
        name: Argument that the part is.
        part: Value of the argument.
        kind: Class that it must have.
    """
    found = None if part is None else type(part).__name__
    condition = f"be a module of class {kind.__name__}"
    require(owner, name, found, isinstance(part, kind), condition)


def check_size(
    owner: str, name: str, part: nn.Module | None, attribute: str, expected: int, of: str
) -> None:
    """Raise if a part declares another size than the rest of a loss has.

    Args:
        owner: Class of the loss.
        name: Argument that the part is.
        part: Module; custom ones may lack the attribute.
        attribute: Name of the size.
        expected: Size of the rest.
        of: Rest, in words.
    """
    size = getattr(part, attribute, expected)
    condition = f"be {expected} as of {of}"
    require(owner, f"{name}.{attribute}", size, size == expected, condition)


def encode(encoder: TensorDictModuleBase, tensordict: TensorDictBase) -> TensorDictBase:
    """Return a copy of a batch [B, L] with the entries of an encoder, in one parallel pass."""
    with set_recurrent_mode(True):
        return encoder(tensordict.copy())


def _flat(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return an entry [B, L, 1] or [B, L] as [B, L]."""
    return tensordict[key].reshape(tensordict.shape[:2])


class SequenceActorCriticLoss(SequenceLoss):
    """Loss with a policy and values for each of G discounts, and target copies of their heads.

    The copies get no gradient and stay in evaluation mode. One encoder serves actor and critics and
    has no target copy; `SeparateREDQLoss` has two encoders. The arguments are those of
    `MultiGammaREDQLoss`.
    """

    @dataclass
    class _AcceptedKeys(SequenceLoss._AcceptedKeys):
        """Keys of `SequenceLoss`, and the key of a context for the critics alone."""

        critic_context: NestedKey = "critic_context"

    default_keys = _AcceptedKeys
    shares_encoder: ClassVar[bool] = True
    """True if actor and critics read the same context."""

    gammas: Tensor

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module | None,
        *,
        action_space: ActionSpace,
        gammas: Sequence[float],
        target_tau: float,
    ) -> None:
        super().__init__(encoder, action_space=action_space)
        owner = type(self).__name__
        given = list(gammas)
        in_range = all(0.0 < gamma < 1.0 for gamma in given)
        differ = len(set(given)) == len(given)
        require(owner, "gammas", given, len(given) > 0 and in_range, "lie in (0, 1), at least one")
        require(owner, "gammas", given, differ, "differ from each other")
        require(owner, "target_tau", target_tau, 0.0 < target_tau <= 1.0, "be in (0, 1]")
        check_module(owner, "actor", actor, nn.Module)
        if critic is not None:
            check_module(owner, "critic", critic, nn.Module)

        # The host's copy is read without waiting for a device.
        self.discounts = tuple(float(gamma) for gamma in gammas)
        on_device = torch.tensor(self.discounts, dtype=torch.float32)
        self.register_buffer("gammas", on_device, persistent=False)
        self.actor_network = actor
        self.critic_network = critic
        self._check_heads()
        # `LossModule.parameters` leaves out names that begin with "_target", so an optimizer never
        # receives the target copies.
        self._targets = copy.deepcopy(self._followed()).requires_grad_(False).eval()
        self.target_tau = target_tau

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules but the targets, which dropout would make noisy."""
        super().train(mode)
        self._targets.eval()
        return self

    def update_targets(self) -> None:
        """Move every target copy towards its network; call it after the optimizer's step."""
        # This function updates all parameters in one fused operation.
        lerp = get_ema_multi_avg_fn(1.0 - self.target_tau)
        lerp(list(self._targets.parameters()), list(self._followed().parameters()), None)
        # An average of matrices has other singular vectors than its parts.
        power_iteration(sigma_layers(self._targets))

    def _followed(self) -> nn.ModuleDict:
        """Return the networks that have target copies."""
        heads = {"actor": self.actor_network}
        if self.critic_network is not None:
            heads["critic"] = self.critic_network
        return nn.ModuleDict(heads)

    def _contexts(
        self, encoder: TensorDictModuleBase, tensordict: TensorDictBase
    ) -> tuple[Tensor, Tensor]:
        """Compute the contexts [B, L, D] of the actor and of the critics in one pass."""
        encoded = encode(encoder, tensordict)
        context = self._context_of(encoded)
        keys = self.tensor_keys
        is_separate = keys.critic_context in encoded.keys(True)
        negation = "not " if is_separate else ""
        names = f"{keys.critic_context!r} for the critics in addition to {keys.context!r}"
        require(
            type(self).__name__,
            "encoder",
            sorted(map(str, encoded.keys(True))),
            is_separate != self.shares_encoder,
            f"{negation}write {names}",
        )
        return context, encoded[keys.critic_context] if is_separate else context

    def _arrival_contexts(
        self, tensordict: TensorDictBase, actor_context: Tensor, critic_context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the contexts [B, T, D] that transitions arrive in, without a gradient."""
        return actor_context[:, ARRIVAL].detach(), critic_context[:, ARRIVAL].detach()

    def _policy_params(self, actor: nn.Module, context: Tensor) -> Tensor:
        """Compute policy parameters [*, G, P], in float32 also under autocast."""
        params = actor(context)
        self._check_gammas("actor", params)
        return params.float()

    def _distribution(self, params: Tensor, mask: Tensor | None) -> ActionDistribution:
        """Build the distribution of parameters [*, G, P]; all discounts share a mask [*, A]."""
        mask_per_gamma = None if mask is None else mask.unsqueeze(-2)
        return self.action_space.distribution(params, mask_per_gamma)

    def _raw_values(self, critic: nn.Module, *inputs: Tensor, frozen: bool = False) -> Tensor:
        """Compute raw values [*, C, A, G, O] or [*, C, G, O], in float32 also under autocast.

        Args:
            critic: See `MultiGammaREDQLoss`.
            inputs: Context [*, D] and, where actions cannot be enumerated, actions [*, G, A].
            frozen: Inputs receive a gradient and the parameters do not.
        """
        if frozen:
            parameters = {name: parameter.detach() for name, parameter in critic.named_parameters()}
            raw = functional_call(critic, parameters, inputs)
        else:
            raw = critic(*inputs)
        self._check_gammas("critic", raw)
        return raw.float()

    def _check_heads(self) -> None:
        """Raise if a head declares other discounts or actions than the loss has."""
        owner = type(self).__name__
        for name, head in (("actor", self.actor_network), ("critic", self.critic_network)):
            check_size(owner, name, head, "num_gammas", len(self.discounts), "the gammas")
        critic = self.critic_network
        num_actions = self.action_space.encoded_size
        check_size(owner, "critic", critic, "num_actions", num_actions, "the action space")
        gammas = list(getattr(critic, "gammas", self.discounts))
        condition = f"be those of the loss, {list(self.discounts)}"
        # Some configurations hold them in single precision.
        is_same = bool(np.allclose(gammas, self.discounts, rtol=0, atol=1e-6))
        require(owner, "critic.gammas", gammas, is_same, condition)

    def _check_gammas(self, head: str, output: Tensor) -> None:
        shape = tuple(output.shape)
        num_gammas = len(self.discounts)
        condition = f"return {num_gammas} gammas in its last dimension but one"
        require(type(self).__name__, head, shape, shape[-2] == num_gammas, condition)
