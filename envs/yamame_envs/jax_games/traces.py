"""Functions of a game as the operations that JAX has traced."""

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from yamame_envs.jax_games.runtime import is_key, jaxpr_as_function, load_jax

_contexts = count()


class Trace:
    """A function that was traced once: calls compute its operations, and never run it again.

    Args:
        function: Function of pytrees of arrays.
        arguments: Its arguments, or their shapes and dtypes.
        parts: Names of the entries of its result, for messages.

    Attributes:
        arguments: Shapes and dtypes of its arguments.
        program: Its operations.
        shapes: Shapes and dtypes of its result.
    """

    def __init__(
        self, function: Callable[..., Any], *arguments: Any, parts: Sequence[str] = ()
    ) -> None:
        jax = load_jax()
        self._function = function
        self.arguments = arguments
        self._parts = parts

        def traced(*given: Any) -> Any:
            # A new function, because JAX does not trace the same one again.
            return function(*given)

        with _without_caches():
            program, self.shapes = jax.make_jaxpr(traced, return_shape=True)(*arguments)
        self.program = _with_own_constants(program)
        self._compute = jaxpr_as_function(self.program)

    def __call__(self, *arguments: Any) -> Any:
        """Compute the function for arrays, of one game or of many by ``jax.vmap``.

        Numbers of other dtypes are converted to those of the trace.
        """
        jax = load_jax()
        given = []
        for array, traced in zip(jax.tree.leaves(arguments), self.program.in_avals, strict=True):
            is_same = array.dtype == traced.dtype
            given.append(array if is_same else array.astype(traced.dtype))
        shapes, structure = jax.tree.flatten(self.shapes)
        results = []
        for shape, result in zip(shapes, self._compute(*given), strict=True):
            # Constants are numbers of Python.
            is_array = hasattr(result, "dtype")
            results.append(result if is_array else jax.numpy.asarray(result, shape.dtype))
        return jax.tree.unflatten(structure, results)

    def again(self) -> "Trace":
        """Trace the function again."""
        return Trace(self._function, *self.arguments, parts=self._parts)

    def results(self) -> list[Any]:
        """Return the arrays of the result that are constants, and None for the others."""
        program = self.program.jaxpr
        constants = dict(zip(program.constvars, self.program.consts, strict=True))
        values = []
        for one in program.outvars:
            values.append(one.val if hasattr(one, "val") else constants.get(one))
        return values

    def name_of(self, index: int) -> str:
        """Return the name of an array of the result."""
        jax = load_jax()
        path, _ = jax.tree_util.tree_leaves_with_path(self.shapes)[index]
        if not self._parts:
            return f"result{jax.tree_util.keystr(path)}"
        return self._parts[path[0].idx] + str(jax.tree_util.keystr(path[1:]))

    def callbacks(self) -> list[Any]:
        """Return the operations that call Python each time, such as ``jax.pure_callback``."""
        operations = operations_of(self.program)
        return [one for one in operations if _calls_python(one.primitive.name)]


def _calls_python(name: str) -> bool:
    return "callback" in name and not name.startswith("debug")


def operations_of(program: Any) -> Iterator[Any]:
    """Yield the operations of a program, and those of the programs in them."""
    for part in _programs_of(program):
        yield from getattr(part, "jaxpr", part).eqns


def constants_of(program: Any) -> Iterator[Any]:
    """Yield the arrays that are constants of a program, and of the programs in it."""
    for part in _programs_of(program):
        yield from getattr(part, "consts", ())
        inner = getattr(part, "jaxpr", part)
        for values in (inner.outvars, *(one.invars for one in inner.eqns)):
            literals = [value.val for value in values if hasattr(value, "val")]
            yield from (value for value in literals if hasattr(value, "shape"))


def contents_of(array: Any) -> tuple[Any, ...]:
    """Return what two arrays must share to be equal; shapes without values, as of a spec."""
    if is_key(array) and isinstance(array, load_jax().Array):
        array = load_jax().random.key_data(array)
    if not hasattr(array, "__array__"):
        return str(array.dtype), tuple(array.shape)
    values = np.asarray(array)
    return str(values.dtype), values.shape, values.tobytes()


def _programs_of(program: Any) -> Iterator[Any]:
    yield program
    for operation in getattr(program, "jaxpr", program).eqns:
        for value in operation.params.values():
            for part in value if isinstance(value, list | tuple) else [value]:
                if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                    yield from _programs_of(part)


def _with_own_constants(program: Any) -> Any:
    """Return a program with copies of NumPy's arrays, which the game could change in place.

    Programs without such arrays are returned as they are: JAX compiles a program that is called
    twice once, as long as it is the same object.
    """
    if hasattr(program, "consts"):
        consts = [_copied(value) for value in program.consts]
        inner = _with_own_constants(program.jaxpr)
        is_same = inner is program.jaxpr and all(map(operator.is_, consts, program.consts))
        return program if is_same else program.replace(jaxpr=inner, consts=consts)
    if hasattr(program, "eqns"):
        operations = []
        for one in program.eqns:
            values = _with_own_constants(tuple(one.params.values()))
            is_same = all(map(operator.is_, values, one.params.values()))
            params = dict(zip(one.params, values, strict=True))
            operations.append(one if is_same else one.replace(params=params))
        is_same = all(map(operator.is_, operations, program.eqns))
        return program if is_same else program.replace(eqns=operations)
    if isinstance(program, list | tuple):
        parts = list(map(_with_own_constants, program))
        if all(map(operator.is_, parts, program)):
            return program
        is_named = hasattr(program, "_replace")
        return type(program)(*parts) if is_named else type(program)(parts)
    return program


def _copied(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    # JAX has a class of its own, which remembers weak types.
    kind: Any = type(value)
    weak = getattr(value, "aval", None)
    copy = np.array(value)
    return copy if weak is None else kind(copy, weak)


@cache
def _user_context() -> Any:
    """Return a context of JAX; one alone, because JAX keeps each of them."""
    jax = load_jax()
    return jax.make_user_context(None) if hasattr(jax, "make_user_context") else None


def _without_caches() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which nested calls of ``jax.jit`` are traced again.

    Without such a context, in earlier versions of JAX, nested functions are not traced again.
    """
    context = _user_context()
    if context is None:
        return contextlib.nullcontext()
    afresh: contextlib.AbstractContextManager[Any] = context(next(_contexts))
    return afresh
