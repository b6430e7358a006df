"""One env of a batched environment as a Gymnasium environment."""

import inspect
from importlib import import_module
from numbers import Integral
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase
from yamame.checks import require, require_choice
from yamame.keys import CONTEXT, RELABELLING

from yamame_envs.base import BatchedEnv

# Entries that Gymnasium's loop returns in another way, or not at all.
_NOT_OBSERVED = frozenset({*CONTEXT, *RELABELLING, "success"})

Observation = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]


def _space(spec: TensorSpec) -> spaces.Space[Any]:
    """Return the space of one env of a batched spec."""
    shape = tuple(spec.shape[1:])
    if isinstance(spec, Binary):  # before Categorical, of which it is a subclass
        return spaces.MultiBinary(shape)
    if isinstance(spec, Categorical) and not shape:
        return spaces.Discrete(int(spec.space.n))
    dtype = torch.empty((), dtype=spec.dtype).numpy().dtype.type
    if isinstance(spec, Categorical):
        return spaces.Box(0, int(spec.space.n) - 1, shape, dtype)
    if isinstance(spec, Bounded):
        low, high = (bound[0].cpu().numpy() for bound in (spec.space.low, spec.space.high))
        return spaces.Box(low, high, dtype=dtype)
    if isinstance(spec, Unbounded):
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    kind = type(spec).__name__
    condition = "be Binary, Bounded, Categorical or Unbounded"
    raise TypeError(f"GymnasiumEnv: spec must {condition}, got {kind}")


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """Gymnasium environment that plays a batched environment of one env.

    The observation is a dict of the environment's own entries, such as ``observation``, the
    instruction ``goal`` and, with ``observable=True``, ``hidden``; a single entry is an array. The
    info holds ``success`` and the goals that hold (``achieved``, ``achieved_mask``). A seed given
    to ``reset`` starts its sequence of tasks; ``options={"task_seed": n}`` plays one task.

    Args:
        env: A batched environment with ``num_envs=1``.
        render_mode: ``"rgb_array"`` or ``None``.

    Raises:
        ValueError: If ``env`` has more envs than one or ``render_mode`` is unknown.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, env: BatchedEnv, *, render_mode: str | None = None) -> None:
        require("GymnasiumEnv", "num_envs", env.batch_size[0], env.batch_size == (1,), "be 1")
        require_choice("GymnasiumEnv", "render_mode", render_mode, (None, "rgb_array"))
        self.batched = env
        self.render_mode = render_mode
        names = [name for name in env.observation_spec if name not in _NOT_OBSERVED]
        observed = {name: _space(env.observation_spec[name]) for name in names}
        self._is_dict = len(observed) > 1
        self.observation_space = spaces.Dict(observed) if self._is_dict else observed[names[0]]
        self._observed = tuple(names)
        self.action_space = _space(env.action_spec)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.batched.set_seed(_whole("seed", seed, least=0))
        request = TensorDict({}, [1], device=self.batched.device)
        if options is not None and "task_seed" in options:
            task_seed = _whole("options['task_seed']", options["task_seed"], least=-(2**63))
            request["task_seed"] = torch.tensor([[task_seed]], device=self.batched.device)
        return self._seen(self.batched.reset(request))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        spec = self.batched.action_spec
        array = self._checked_action(action)
        batch = torch.as_tensor(array).to(spec.device, spec.dtype).view(spec.shape)
        request = TensorDict({"action": batch}, [1], device=self.batched.device)
        played = self.batched.step(request)["next"]
        observation, info = self._seen(played)
        reward = float(played["reward"])
        terminated = bool(played["terminated"])
        truncated = bool(played["truncated"])
        return observation, reward, terminated, truncated, info

    def _checked_action(self, action: Any) -> npt.NDArray[Any]:
        space = self.action_space
        array = np.asarray(action)
        if array.dtype.kind == "f" and isinstance(space, spaces.Box):
            array = array.astype(space.dtype)
        shape = space.shape or ()
        is_valid = array.size == np.prod(shape) and space.contains(array.reshape(shape))
        require("GymnasiumEnv", "action", action, is_valid, f"be in {space}")
        return array

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return the picture of the environment; None without a render mode."""
        return None if self.render_mode is None else self.batched.render()

    def _seen(self, timestep: TensorDictBase) -> tuple[Observation, dict[str, Any]]:
        info: dict[str, Any] = {"success": bool(timestep["success"])}
        info |= {name: _array(timestep, name) for name in RELABELLING if name in timestep}
        observed = {name: _array(timestep, name) for name in self._observed}
        return observed if self._is_dict else observed[self._observed[0]], info


def _whole(name: str, value: Any, *, least: int) -> int:
    is_whole = isinstance(value, Integral) and least <= int(value) < 2**63
    require("GymnasiumEnv", name, value, is_whole, f"be an integer from {least} to 2**63 - 1")
    return int(value)


def _array(timestep: TensorDictBase, name: str) -> npt.NDArray[Any]:
    array = timestep[name][0].cpu().numpy().copy()
    # The dtype of MultiBinary.
    return array.astype(np.int8) if array.dtype == bool and name not in RELABELLING else array


def make_single(*, target: str, render_mode: str | None = None, **settings: Any) -> GymnasiumEnv:
    """Make the Gymnasium form of a batched environment.

    Args:
        target: ``"module:Class"`` of the batched environment.
        render_mode: ``"rgb_array"`` or ``None``.
        settings: Constructor arguments of the batched environment except ``num_envs``.
    """
    module, _, name = target.partition(":")
    # A checkpoint may contain a target, which must not import other code.
    ours = module.partition(".")[0] == "yamame_envs"
    made: Any = getattr(import_module(module), name, None) if ours else None
    is_env = inspect.isclass(made) and issubclass(made, EnvBase)
    require("make_single", "target", target, is_env, "be an environment of yamame_envs")
    return GymnasiumEnv(made(num_envs=1, **settings), render_mode=render_mode)
