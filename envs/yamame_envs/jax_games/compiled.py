"""Compiled functions of games, which a process keeps, so that it compiles a game once."""

import hashlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from yamame_envs.jax_games.runtime import load_jax
from yamame_envs.jax_games.traces import Trace, constants_of, contents_of, operations_of

_MOST_GAMES = 16
"""Games whose functions a process keeps; the oldest are compiled again."""
_kept: dict[Hashable, "Compiled"] = {}


class Compiled:
    """Compiled functions of many envs.

    Args:
        draw: Draws the task of a key; None: there are no tasks.
        begin: Begins an episode.
        move: Steps.

    Attributes:
        called: Functions that were called, with the shapes of their arguments.
    """

    def __init__(self, draw: Trace | None, begin: Trace, move: Trace) -> None:
        jax = load_jax()

        def refill(queue: Any, words: Any, attempts: Any, tasks: Any, rows: Any) -> tuple[Any, Any]:
            begun, fault = jax.vmap(begin)(words, attempts, tasks)
            return jax.tree.map(lambda old, new: old.at[rows].set(new), queue, begun), fault

        self.draw: Callable[..., Any] = jax.jit(jax.vmap(draw)) if draw is not None else _no_tasks
        self.refill: Callable[..., Any] = jax.jit(refill)
        self.place: Callable[..., Any] = jax.jit(_place)
        self.step: Callable[..., Any] = jax.jit(jax.vmap(move))
        self.called: set[Any] = set()


def compiled_of(draw: Trace | None, begin: Trace, move: Trace) -> Compiled:
    """Return the functions of a game, those of an earlier game if its programs are the same."""
    key = tuple(None if trace is None else _key_of(trace) for trace in (draw, begin, move))
    if key not in _kept:
        if len(_kept) >= _MOST_GAMES:
            del _kept[next(iter(_kept))]
        _kept[key] = Compiled(draw, begin, move)
    return _kept[key]


def _key_of(trace: Trace) -> Hashable:
    """Return what decides a function: what the compiler gets for two envs, and its structures.

    Functions that call Python have keys of their own: the compiler does not get what they call.
    """
    if any("callback" in one.primitive.name for one in operations_of(trace.program)):
        return object()
    jax = load_jax()

    def of_two(shape: Any) -> Any:
        return jax.ShapeDtypeStruct((2, *shape.shape), shape.dtype)

    arguments = jax.tree.map(of_two, trace.arguments)
    lowered = jax.jit(jax.vmap(trace)).lower(*arguments)
    # Structures hold classes, and values such as static fields of dataclasses.
    structure = jax.tree.structure((trace.arguments, trace.shapes))
    found = hashlib.sha256(f"{structure}{lowered.as_text()}".encode())
    # Depending on its settings, JAX passes arrays to a compiled function as arguments.
    for constant in constants_of(trace.program):
        dtype, shape, *values = contents_of(constant)
        found.update(f"{dtype}{shape}".encode())
        for each in values:
            found.update(each)
    return structure, found.hexdigest()


def text_of(settings: Any) -> str | None:
    """Return a text of the settings of a game, and of those of JAX; None if objects are in them."""
    known = sorted(load_jax().config.values.items())
    return f"{settings!r} {known!r}" if _is_plain(settings) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_plain([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _no_tasks(*_: Any) -> Any:
    raise AssertionError("the game has no tasks")


def _place(current: Any, queue: Any, begins: Any) -> Any:
    jax = load_jax()

    def leaf(old: Any, new: Any) -> Any:
        mask = begins.reshape(len(begins), *[1] * (old.ndim - 1))
        return jax.numpy.where(mask, new, old)

    return jax.tree.map(leaf, current, queue)
