"""When the goals of an instruction are completed along whole trajectories.

There is little to compute, in many small steps, each of which takes torch several times as long as NumPy: so it
is done on the CPU, wherever the trajectories are, in NumPy, or in a quarter of that by a function in C, where it can
be compiled: ``completion.c``. Both find the same.
"""

import ctypes
import functools

import numpy as np
import torch
from torch import Tensor

from yamame.goals.instruction import GOAL_PAD, GOAL_TOLERANCE
from yamame.native import compile_c_if_possible


def completion_times(instruction: Tensor, achieved: Tensor, achieved_mask: Tensor, mask: Tensor) -> Tensor:
    """When each goal of an instruction is completed along whole trajectories.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``, goals that hold at each timestep.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool, real timesteps.

    Returns:
        ``[B, K]`` int64: the timestep (1 or later) at which each goal was completed, L where it never was.
        Timesteps increase strictly over completed goals.
    """
    valid = host(achieved_mask) & host(mask)[:, :, None]
    return torch.from_numpy(completed(host(instruction), host(achieved), valid)).to(mask.device)


def completed(instruction: np.ndarray, achieved: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """When each goal is completed: `completion_times` of arrays.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``.
        valid: ``[B, L, M]`` bool, which goals are achieved at real timesteps.

    Returns:
        ``[B, K]`` int64, L where never.
    """
    kernel = completion_kernel()
    if kernel is None or not instruction.dtype == achieved.dtype == np.float32:
        return _completed(instruction, achieved, valid)
    given = [np.ascontiguousarray(part) for part in (instruction, achieved, valid)]
    times = np.empty(instruction.shape[:2], np.int64)
    sizes = *times.shape, *achieved.shape[1:]
    kernel.completed(*(part.ctypes.data for part in (*given, times)), *sizes, GOAL_TOLERANCE, GOAL_PAD)
    return times


@functools.cache
def completion_kernel() -> ctypes.CDLL | None:
    """The function in C, compiled when it is first asked for; None if it cannot be."""
    kernel = compile_c_if_possible(__file__)
    if kernel is not None:
        number = ctypes.c_float
        kernel.completed.argtypes = [*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 5, number, number]
        kernel.completed.restype = None
    return kernel


def _completed(instruction: np.ndarray, achieved: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The same in NumPy, for all trajectories at once."""
    (batch, num_steps), slots = valid.shape[:2], instruction.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are far away
        distance = _difference(instruction, achieved, 0)
        for i in range(1, instruction.shape[2]):
            np.maximum(distance, _difference(instruction, achieved, i), out=distance)
        near = distance < GOAL_TOLERANCE
    near &= valid
    # Places in [K, B, L], and one after the last. Of each goal, the first after the goal before it was completed.
    places = (near if near.shape[3] == 1 else near.any(3)).ravel().nonzero()[0]
    places = np.concatenate([places, [(slots * batch + 1) * num_steps]])
    times = np.empty((slots, batch), np.int64)
    time = np.zeros(batch, np.int64)
    for slot, first in enumerate(num_steps * np.arange(slots * batch).reshape(slots, batch)):
        time = np.minimum(places[places.searchsorted(first + time + 1)] - first, num_steps)
        times[slot] = time
    return np.where(used(instruction), times.T, num_steps)


def _difference(instruction: np.ndarray, achieved: np.ndarray, i: int) -> np.ndarray:
    """Between the goals and what is achieved, in one coordinate: ``[K, B, L, M]``."""
    difference = achieved[..., i] - instruction[:, :, i].T[:, :, None, None]
    return np.abs(difference, out=difference)


def used(instruction: np.ndarray) -> np.ndarray:
    """Which slots of an instruction ``[*, K, d]`` hold a goal: ``[*, K]`` bool."""
    number = (instruction != GOAL_PAD).any(-1).sum(-1, keepdims=True)
    return np.arange(instruction.shape[-2]) < number


def host(value: Tensor) -> np.ndarray:
    """A tensor as a NumPy array: the same memory on a CPU."""
    return (value if value.dtype != torch.bfloat16 else value.float()).numpy(force=True)
