"""Calls of the hooks of `yamame_envs.BatchedEnv`; a wrong result is an error that names them."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data.tensor_specs import TensorSpec
from yamame.system.messages import OutsideError

Tensors = dict[str, Tensor]


def drawn_tasks(env: Any, task_seed: Tensor) -> Tensors:
    """Return the result of ``draw_tasks``, checked."""
    return _entries(env, "draw_tasks", env.draw_tasks(task_seed), len(task_seed))


def begun(env: Any, task: Tensors, num_envs: int) -> Tensors:
    """Return the result of ``begin``, checked."""
    return _entries(env, "begin", env.begin(task), num_envs)


def moved(env: Any, task: Tensors, state: Tensors, action: Tensor) -> tuple[Any, Tensor, Tensor]:
    """Return the result of ``transition``: state, reward and success, the latter two checked."""
    result = env.transition(task, state, action)
    if not isinstance(result, tuple | list) or len(result) != 3:
        kind = type(result).__name__
        got = f"{kind} of {len(result)}" if isinstance(result, tuple | list) else kind
        raise _wrong(env, "transition", "be (state, reward, success)", got)
    after, reward, success = result
    shape = (len(action), 1)
    for name, value, dtype in (("reward", reward, torch.float32), ("success", success, torch.bool)):
        is_tensor = isinstance(value, Tensor)
        if not is_tensor or value.shape != shape or value.dtype != dtype:
            got = f"{value.dtype} {list(value.shape)}" if is_tensor else type(value).__name__
            raise _wrong(env, "transition", f"hold a {name} {dtype} {list(shape)}", got)
    return after, reward, success


def check_observed(env: Any, timestep: Mapping[str, Any]) -> None:
    """Raise if an entry of ``observe`` in a first timestep is missing, or is not as its spec."""
    for name, expected in env.observation_spec.items():
        value = timestep.get(name)
        if value is None:
            raise _wrong(env, "observe", f"hold {name!r}", str(sorted(timestep)))
        is_leaf = isinstance(value, Tensor) and isinstance(expected, TensorSpec)
        if is_leaf and (value.shape, value.dtype) != (expected.shape, expected.dtype):
            wanted = f"{expected.dtype} {list(expected.shape)}"
            got = f"{value.dtype} {list(value.shape)}"
            raise _wrong(env, "observe", f"hold {wanted} at {name!r}", got)


def _entries(env: Any, hook: str, entries: Any, num_rows: int) -> Tensors:
    """Return the entries ``[R, ...]`` that a hook has returned, checked."""
    if not isinstance(entries, Mapping | TensorDictBase):
        raise _wrong(env, hook, "be a dictionary of tensors", type(entries).__name__)
    for name, value in entries.items():
        if not isinstance(value, Tensor | TensorDictBase):
            raise _wrong(env, hook, f"hold tensors, also at {name!r}", type(value).__name__)
        if value.shape[:1] != (num_rows,):
            rows = f"hold {num_rows} rows, also at {name!r}"
            raise _wrong(env, hook, rows, str(list(value.shape)))
    return entries  # type: ignore[return-value]


def _wrong(env: Any, hook: str, condition: str, got: str) -> OutsideError:
    return OutsideError(f"{env.label}: the result of {hook}() must {condition}, got {got}")
