"""Compiled functions of games, which a process keeps, so that it compiles a game once."""

from collections.abc import Callable
from typing import Any

from yamame_envs.jax_games.purity import is_same
from yamame_envs.jax_games.runtime import load_jax
from yamame_envs.jax_games.traces import Trace

_MOST_GAMES = 16
"""Games whose functions a process keeps; the oldest are compiled again."""
_kept: list["Compiled"] = []


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

        self.traces = (draw, begin, move)
        self.draw: Callable[..., Any] = jax.jit(jax.vmap(draw)) if draw is not None else _no_tasks
        self.refill: Callable[..., Any] = jax.jit(refill)
        self.place: Callable[..., Any] = jax.jit(_place)
        self.step: Callable[..., Any] = jax.jit(jax.vmap(move))
        self.called: set[Any] = set()


def compiled_of(draw: Trace | None, begin: Trace, move: Trace) -> Compiled:
    """Return the functions of a game, those of an earlier game if its programs are the same."""
    new = Compiled(draw, begin, move)
    for old in _kept:
        pairs = zip(old.traces, new.traces, strict=True)
        if all(is_same(*pair) for pair in pairs):
            return old
    _kept.append(new)
    del _kept[:-_MOST_GAMES]
    return new


def _no_tasks(*_: Any) -> Any:
    raise AssertionError("the game has no tasks")


def _place(current: Any, queue: Any, begins: Any) -> Any:
    jax = load_jax()

    def leaf(old: Any, new: Any) -> Any:
        mask = begins.reshape(len(begins), *[1] * (old.ndim - 1))
        return jax.numpy.where(mask, new, old)

    return jax.tree.map(leaf, current, queue)
