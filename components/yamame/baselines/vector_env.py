"""An environment of TorchRL as arrays: what learners of other libraries read and write.

Shapes: N envs, F numbers of an observation.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.nn import functional as F
from torchrl.envs import EnvBase

from yamame.actions import ActionEncoding
from yamame.checks import require
from yamame.keys import CONTEXT, NOT_INPUTS
from yamame.timestep.specs import Input, inputs_from_spec

Array = npt.NDArray[Any]
_GOAL = "goal"


class FlatObservations:
    """Concatenation of all inputs of a policy, ``[N, F]`` float32.

    Tokens are one-hot, everything else is numbers as they are.

    Args:
        env: Environment with one batch dimension.
        context: Whether the previous action and reward, the time and starts of trials are inputs,
            as they are of Yamame's agents.

    Raises:
        ArgumentError: The environment has images, or no observation.
    """

    def __init__(self, env: EnvBase, *, context: bool = True) -> None:
        excluded: Collection[str] = {*NOT_INPUTS} - {_GOAL}
        if not context:
            excluded = {*excluded, *CONTEXT}
        self._inputs = inputs_from_spec(env.observation_spec, batch_dims=1, exclude=excluded)
        self.size = 0
        for key, value in self._inputs.items():
            is_flat = value.kind != "image"
            require("FlatObservations", str(key), value.shape, is_flat, "be no image")
            self.size += value.size * (value.num_tokens or 1)

    def __call__(self, timestep: TensorDictBase) -> npt.NDArray[np.float32]:
        """Return the observations of a timestep ``[N]``."""
        parts = []
        for key, value in self._inputs.items():
            parts.append(_flat(timestep, key, value))
        return torch.cat(parts, -1).cpu().numpy()


def _flat(timestep: TensorDictBase, key: NestedKey, value: Input) -> Tensor:
    entry: Tensor = timestep.get(key)
    if value.num_tokens is not None:
        entry = F.one_hot(entry.long(), value.num_tokens)
    return entry.reshape(len(entry), -1).float()


class Steps(NamedTuple):
    """Result of a step of all envs.

    Attributes:
        observations: ``[N, F]``, the first ones of the next episode where one has ended.
        rewards: ``[N]`` float32.
        done: ``[N]`` bool, whether an episode has ended.
        truncated: ``[N]`` bool, whether one was cut, so that later values count.
        last: ``[N, F]``, observations before any reset; None if no episode has ended.
    """

    observations: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    last: npt.NDArray[np.float32] | None


class ArrayEnv:
    """Environment that takes and returns arrays, and resets each env when its episode ends.

    Args:
        env: Environment with one batch dimension ``[N]``.
        context: As for `FlatObservations`.

    Attributes:
        observations: Reads the observations of a timestep.
        actions: Encoding of the environment's actions.

    Raises:
        ArgumentError: The environment has images, or actions without an encoding.
    """

    def __init__(self, env: EnvBase, *, context: bool = True) -> None:
        self.observations = FlatObservations(env, context=context)
        self.actions = ActionEncoding(env.full_action_spec["action"], batch_dims=1)
        condition = "be indices, bits or numbers"
        is_known = self.actions.kind != "one_hot"
        require("ArrayEnv", "actions", self.actions.kind, is_known, condition)
        self.num_envs = env.batch_size.numel()
        self._env = env
        self._timestep: TensorDictBase | None = None

    def reset(self) -> npt.NDArray[np.float32]:
        """Begin an episode in every env and return the observations ``[N, F]``."""
        self._timestep = self._env.reset()
        return self.observations(self._timestep)

    def step(self, actions: Array) -> Steps:
        """Step all envs.

        Args:
            actions: ``[N]`` or ``[N, A]``, counted from 0 where they are indices.
        """
        assert self._timestep is not None
        write_actions(self._timestep, actions, self.actions)
        stepped, self._timestep = self._env.step_and_maybe_reset(self._timestep)
        reached = stepped.get("next")
        flags = {}
        for name in ("done", "terminated", "truncated"):
            flags[name] = reached.get(name).reshape(self.num_envs).cpu().numpy()
        rewards = reached.get("reward").reshape(self.num_envs).float().cpu().numpy()
        return Steps(
            observations=self.observations(self._timestep),
            rewards=rewards,
            done=flags["done"],
            truncated=flags["truncated"] & ~flags["terminated"],
            last=self.observations(reached) if flags["done"].any() else None,
        )


def write_actions(timestep: TensorDictBase, actions: Array, encoding: ActionEncoding) -> None:
    """Write actions ``[N]`` or ``[N, A]`` into a timestep ``[N]``."""
    values = torch.as_tensor(actions, dtype=encoding.dtype, device=timestep.device)
    shape = (len(values),) if encoding.kind == "index" else (len(values), -1)
    timestep.set("action", values.reshape(shape))
