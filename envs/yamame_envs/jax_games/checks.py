"""Checks of what the functions of a game take and return, made once, while they are traced.

The errors name the function or the entry. Without them, JAX or Python would name code of this
package, in which the user can change nothing.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from yamame.system.messages import OutsideError, one_line

from yamame_envs.jax_games.runtime import is_key, load_jax


def check_takes(owner: str, hook: str, function: Callable[..., Any], *names: str) -> None:
    """Raise unless a function can be called with these positional arguments.

    Raises:
        OutsideError: It takes fewer arguments, or needs more.

    >>> check_takes("Example", "reset", lambda key: None, "key", "task")
    Traceback (most recent call last):
    yamame.system.messages.OutsideError: Example: reset must take (key, task), it is reset(key)
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a compiled function has no signature
    try:
        signature.bind(*names)
    except TypeError as error:
        wanted = ", ".join(names)
        raise OutsideError(
            f"{owner}: {hook} must take ({wanted}), it is {hook}{signature}"
        ) from error


def check_length(owner: str, hook: str, result: Any, *forms: str) -> None:
    """Raise unless a function has returned as many values as one of these forms shows.

    Raises:
        OutsideError: It has returned another number of values, or a single one.
    """
    lengths = [form.count(",") + 1 for form in forms]
    is_sequence = isinstance(result, tuple | list)
    if is_sequence and len(result) in lengths:
        return
    got = kind_of(result)
    if is_sequence:
        got = f"{got} of {len(result)}"
    raise OutsideError(f"{owner}: the result of {hook} must be {' or '.join(forms)}, got {got}")


def arrays(owner: str, place: str, tree: Any) -> Any:
    """Return a pytree of arrays with dtypes of their own, as a number of Python has none.

    Args:
        owner: Name of the environment in messages.
        place: Name of the tree in messages.
        tree: Pytree of arrays and numbers.

    Raises:
        OutsideError: It holds something else, such as a text.
    """
    jax = load_jax()

    def leaf(path: Any, value: Any) -> Any:
        try:
            array = jax.numpy.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:
            name = place + jax.tree_util.keystr(path)
            condition = "be an array, or a number that JAX can hold"
            message = f"{owner}: {name} must {condition}, got {kind_of(value)}"
            raise OutsideError(message) from error
        return array if is_key(array) else jax.lax.convert_element_type(array, array.dtype)

    try:
        return jax.tree_util.tree_map_with_path(leaf, tree)
    except ValueError as error:
        # As for a dictionary with texts and numbers as keys, which have no order.
        condition = "be made of arrays, dictionaries with keys of one type, and tuples"
        raise OutsideError(f"{owner}: {place} must {condition}: {one_line(error)}") from error


def check_number(owner: str, name: str, value: Any) -> None:
    """Raise unless a value, or the shape and dtype of one, is one real number or flag.

    Raises:
        OutsideError: It is nothing of the kind.
    """
    shape = getattr(value, "shape", None)
    got = ""
    if shape is None:
        got = kind_of(value)
    elif int(np.prod(shape)) != 1:
        got = f"shape {list(shape)}"
    elif not is_real(value.dtype):
        got = str(value.dtype)
    if got:
        raise OutsideError(f"{owner}: {name} must be one number, got {got}")


def check_real(owner: str, place: str, tree: Any) -> None:
    """Raise unless all arrays of a pytree hold real numbers or flags.

    Raises:
        OutsideError: One holds complex numbers.
    """
    jax = load_jax()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_real(leaf.dtype):
            name = place + jax.tree_util.keystr(path)
            raise OutsideError(f"{owner}: {name} must hold real numbers, got {leaf.dtype}")


def check_same(owner: str, name: str, first: Any, second: Any) -> None:
    """Raise unless a step returns the arrays of a reset: names, shapes and dtypes.

    Args:
        owner: Name of the environment in messages.
        name: Name of the pytree in messages.
        first: Pytree of the reset.
        second: Pytree of the step.

    Raises:
        OutsideError: They differ.
    """
    jax = load_jax()
    paths = jax.tree_util.tree_leaves_with_path(first)
    others = jax.tree_util.tree_leaves_with_path(second)
    if jax.tree.structure(first) != jax.tree.structure(second):
        places = {name + jax.tree_util.keystr(path) for path, _ in paths}
        new = {name + jax.tree_util.keystr(path) for path, _ in others}
        lacks = f"; it lacks {sorted(places - new)}" if places - new else ""
        adds = f"; it adds {sorted(new - places)}" if new - places else ""
        condition = f"the {name} of step must have the structure of that of reset"
        raise OutsideError(f"{owner}: {condition}{lacks}{adds}")
    for (path, one), (_, other) in zip(paths, others, strict=True):
        place = name + jax.tree_util.keystr(path)
        wanted = f"{one.dtype}{list(one.shape)}"
        got = f"{other.dtype}{list(other.shape)}"
        if wanted != got:
            message = f"{place} must be {wanted} as in reset, got {got} in step"
            raise OutsideError(f"{owner}: {message}")


def kind_of(value: Any) -> str:
    """Return the name of a value's type for messages, as a traced array has one of JAX's own."""
    return "an array" if hasattr(value, "dtype") else type(value).__name__


def is_real(dtype: Any) -> bool:
    """Return whether a dtype is one of real numbers or flags, also of those that NumPy lacks."""
    jnp = load_jax().numpy
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
