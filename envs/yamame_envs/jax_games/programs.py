"""Compiled programs of a game: resets, steps and tasks of many envs at once.

All that decides how an env continues is its `World`, a pytree of arrays: keys are stored as words,
so that a world can be saved. An env never reads the world of another one.
"""

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from yamame.checks import require
from yamame.system.compiling import compiling
from yamame.system.messages import OutsideError, print_once

from yamame_envs.jax_games.checks import (
    arrays,
    check_length,
    check_number,
    check_real,
    check_same,
    check_takes,
    kind_of,
)
from yamame_envs.jax_games.compiled import Compiled, compiled_of
from yamame_envs.jax_games.game import Game
from yamame_envs.jax_games.game_code import GameCode
from yamame_envs.jax_games.purity import (
    NOT_PURE,
    NOT_REPEATABLE,
    check_again,
    check_kept,
    place_of,
)
from yamame_envs.jax_games.runtime import KEY_TYPE, is_key, is_plain, load_jax
from yamame_envs.jax_games.spaces import spaces_of, stored, taken
from yamame_envs.jax_games.traces import Trace
from yamame_envs.streams import bits
from yamame_envs.tasks import Tensors

Hook = Literal["draw_task", "reset", "step"]
"""Functions of a `Game`."""
_SUCCESS = ("success", "is_success")
_FLAGS = ("terminated", "truncated")
_PARTS: dict[Hook, tuple[str, ...]] = {
    "draw_task": (),
    "reset": ("observation", "state"),
    "step": ("observation", "state", "reward", *_FLAGS, "success"),
}
_CALLS_PYTHON = (
    "{} calls Python at every step: a resumed run continues exactly only if the result depends on "
    "nothing but the arguments"
)
_TASKS_AT_ONCE = 64
"""Tasks that are drawn by one call, whose number is fixed because each is compiled anew."""


class World(NamedTuple):
    """Everything that decides how an env continues.

    Attributes:
        state: State of the game, with keys as words.
        task: Task of the game, likewise.
        word: Words of the key of this attempt, from which the keys of steps follow.
        step: Number of steps taken.
    """

    state: Any
    task: Any
    word: Any
    step: Any


class Moved(NamedTuple):
    """Result of a step of all envs, as arrays ``[N, ...]``.

    Attributes:
        seen: Entries of the observation.
        world: Worlds.
        reward: Rewards ``[N, 1]``.
        flags: ``[N, 3]`` bool: terminated, truncated and success.
        fault: ``[N]`` int32: 0, or the number of a wrong value, see `Programs.fault_text`.
    """

    seen: tuple[Any, ...]
    world: World
    reward: Any
    flags: Any
    fault: Any


class Programs:
    """Traced and compiled functions of a game, which depend on no env.

    Args:
        game: The game.
        success: Key of success in the info of a step; None: there is none; ``auto``: one of the
            usual keys, if there is one.
        owner: Name of the environment in messages.

    Attributes:
        game: The game.
        spaces: Description of observations and actions.
        success_key: Key of success that was found.

    Raises:
        ArgumentError: The game cannot be played.
        UserCodeError: One of its functions has raised an error.
    """

    def __init__(self, game: Game, *, success: str | None, owner: str) -> None:
        self.game = game
        self._owner = owner
        self._success = success
        # Generators of the keys in states and tasks, of each leaf; None where it is no key.
        self._generators: dict[str, list[Any]] = {}
        self._traces: dict[Hook, Trace] = {}
        jax = load_jax()
        word = jax.ShapeDtypeStruct((2,), np.uint32)
        with compiling(f"compiling {owner}: tracing its functions"):
            task = None
            if game.draw_task is not None:
                check_takes(owner, self._hook("draw_task"), game.draw_task, "key")
                task = self._trace("draw_task", self._draw_words, word)
                require(owner, "task", task, bool(jax.tree.leaves(task)), "hold an array")
                check_real(owner, "task", task)
            observation, state = self._trace("reset", self._raw_reset, word, task)
            self.spaces = spaces_of(game, observation, owner)
            action = self._example_action()
            result = self._trace("step", self._raw_step, word, state, action, task)
            check_same(owner, "observation", observation, result[0])
            check_same(owner, "state", state, result[1])
            for name, value in zip(("reward", *self._flags), result[2:], strict=True):
                check_number(owner, name, value)
            begin = Trace(self._begin, word, word, task)
            self.shapes, _ = begin.shapes
            move = Trace(self._move, self.shapes[1], action)
        if success == "auto" and self.success_key is None and self._unread:
            print_once(
                f"{owner}: info has {self._unread}, and no 'success': no success is reported; set "
                "env.success to the one that means it"
            )
        self._task_shapes = task
        self._compiled: Compiled = compiled_of(self._traces.get("draw_task"), begin, move)

    # Traced functions of one env.

    def _draw_words(self, word: Any) -> Any:
        assert self.game.draw_task is not None
        task = arrays(self._owner, "task", self.game.draw_task(_key(word)))
        self._generators["task"] = _generators_of(task)
        return _as_words(task)

    def _raw_reset(self, word: Any, task: Any) -> tuple[Any, Any]:
        result = self.game.reset(_key(word), self.with_keys(task, "task"))
        check_length(self._owner, "reset", result, "(observation, state)")
        observation, state = result
        state = arrays(self._owner, "state", state)
        self._generators["state"] = _generators_of(state)
        return arrays(self._owner, "observation", observation), state

    def _raw_step(self, word: Any, state: Any, action: Any, task: Any) -> tuple[Any, ...]:
        """Return observation, state, reward and flags, with success if the info reports it."""
        action = taken(self.spaces.action, action)
        result = self.game.step(_key(word), state, action, self.with_keys(task, "task"))
        form = "(observation, state, reward, terminated, truncated, info)"
        check_length(self._owner, "step", result, form)
        info = {} if result[5] is None else result[5]
        if not isinstance(info, Mapping):
            raise OutsideError(f"{self._owner}: info must be a dictionary, got {kind_of(info)}")
        self.success_key = self._find_success(info, self._success)
        self._unread = [name for name in info if name != "truncated" and _is_flag(info[name])]
        values = list(result[:5])
        if self.success_key is not None:
            # Other entries of the info need not be arrays.
            values.append(info[self.success_key])
        names = ("observation", "state", "reward", *self._flags)
        named = zip(names, values, strict=True)
        return tuple(arrays(self._owner, name, value) for name, value in named)

    @property
    def _flags(self) -> tuple[str, ...]:
        """Names of the flags of a step."""
        return _FLAGS if self.success_key is None else (*_FLAGS, self.success_key)

    def _begin(self, word: Any, attempt: Any, task: Any) -> tuple[Any, Any]:
        """Return the observation and the world of a new episode, and its fault."""
        observation, state = self._traces["reset"](word, task)
        seen, wrong = self._stored(observation)
        jnp = load_jax().numpy
        world = World(_as_words(state), task, attempt, jnp.zeros((), np.int32))
        return (seen, world), _first_fault([jnp.zeros((), bool), *wrong])

    def _move(self, world: World, action: Any) -> Moved:
        jax = load_jax()
        jnp = jax.numpy
        word = jax.random.key_data(jax.random.fold_in(_key(world.word), world.step))
        state = self.with_keys(world.state, "state")
        result = self._traces["step"](word, state, action, world.task)
        observation, after, reward, *told = result
        reward = reward.astype(jnp.float32).reshape(1)
        if self.success_key is None:
            told.append(jnp.zeros((), bool))
        seen, wrong = self._stored(observation)
        wrong.insert(0, ~jnp.isfinite(reward).all())
        flags = []
        for flag in told:
            flags.append(flag.astype(bool).reshape(1))
            wrong.append(((flag != 0) & (flag != 1)).any())
        after = World(_as_words(after), world.task, world.word, world.step + 1)
        return Moved(seen, after, reward, jnp.concatenate(flags), _first_fault(wrong))

    def _stored(self, observation: Any) -> tuple[tuple[Any, ...], list[Any]]:
        pairs = [stored(entry, observation) for entry in self.spaces.observations]
        return tuple(value for value, _ in pairs), [wrong for _, wrong in pairs]

    def with_keys(self, tree: Any, part: Literal["state", "task"]) -> Any:
        """Return a part of a `World` of one env, with words turned into the keys of the game."""
        if tree is None:
            return None
        jax = load_jax()
        leaves, structure = jax.tree.flatten(tree)
        for place, generator in enumerate(self._generators[part]):
            if generator is not None:
                leaves[place] = jax.random.wrap_key_data(leaves[place], impl=generator)
        return jax.tree.unflatten(structure, leaves)

    # Functions of a batch.

    def empty(self, num_envs: int, device: Any) -> Any:
        """Return observations and worlds ``[N, ...]`` of zeros on a device of JAX."""
        jax = load_jax()

        def zeros(shape: Any) -> Any:
            return np.zeros((num_envs, *shape.shape), shape.dtype)

        # Programs run where their arrays were put.
        return jax.device_put(jax.tree.map(zeros, self.shapes), device)

    def refill(
        self, queue: Any, words: Any, attempts: Any, tasks: Any, rows: Any, seeds: Any
    ) -> Any:
        """Begin games, and store their observations and worlds in rows of a queue.

        Args:
            queue: Observations and worlds ``[N, ...]``.
            words: ``[C, 2]`` uint32, words of the keys of resets.
            attempts: ``[C, 2]`` uint32, words of the keys of attempts.
            tasks: Tasks ``[C, ...]``, from `tasks_of`.
            rows: ``[C]`` int32. Rows that are named twice must be equal.
            seeds: ``[C]`` seeds of the tasks, for messages.

        Raises:
            OutsideError: A first observation is not finite, or not in its space.
        """
        filled, fault = self._call(
            "reset", self._compiled.refill, queue, words, attempts, tasks, rows
        )
        faults = np.asarray(fault)
        if faults.any():
            place = int(faults.nonzero()[0][0])
            text = self.fault_text(int(faults[place]))
            raise OutsideError(
                f"{self._owner}: {text}, in the reset of task_seed {int(seeds[place])}"
            )
        return filled

    def place(self, current: Any, queue: Any, begins: Any) -> Any:
        """Replace observations and worlds by those of a queue, where a mask ``[N]`` is set."""
        return self._call("reset", self._compiled.place, current, queue, begins)

    def step(self, world: World, action: Any) -> Moved:
        """Step all envs.

        Args:
            world: Worlds ``[N, ...]``.
            action: ``[N, ...]``, in bounds, counted from 0.
        """
        moved: Moved = self._call("step", self._compiled.step, world, action)
        return moved

    def draw(self, seeds: Tensor) -> Tensors:
        """Draw the tasks of seeds ``[R]`` int64: entries ``[R, ...]``, named by numbers.

        They are drawn on the CPU, so that they are the same on every device.
        """
        jax = load_jax()
        words = words_of(seeds)
        count = len(words)
        padded = np.resize(words, (-(-count // _TASKS_AT_ONCE) * _TASKS_AT_ONCE, 2))
        parts = []
        with jax.default_device(jax.devices("cpu")[0]):
            for start in range(0, len(padded), _TASKS_AT_ONCE):
                some = padded[start : start + _TASKS_AT_ONCE]
                drawn = self._call("draw_task", self._compiled.draw, some)
                parts.append([np.asarray(leaf) for leaf in jax.tree.leaves(drawn)])
        entries = {}
        for number, leaves in enumerate(zip(*parts, strict=True)):
            values = np.concatenate(leaves)[:count]
            if jax.numpy.issubdtype(values.dtype, np.integer):
                values = values.astype(np.int64)  # torch hardly computes with unsigned ones
            elif not is_plain(values.dtype):
                values = values.astype(np.float32)
            entries[_leaf_name(number)] = torch.from_numpy(values)
        return entries

    def tasks_of(self, drawn: Tensors) -> Any:
        """Return the tasks ``[R, ...]`` of entries that `draw` has returned."""
        if self._task_shapes is None:
            return None
        jax = load_jax()
        shapes, tree = jax.tree.flatten(self._task_shapes)
        leaves = []
        for number, shape in enumerate(shapes):
            leaves.append(drawn[_leaf_name(number)].numpy().astype(shape.dtype))
        return jax.tree.unflatten(tree, leaves)

    def fault_text(self, number: int) -> str:
        """Describe a number of `Moved.fault`: of the reward, an observation or a flag."""
        if number == 1:
            return "the reward must be finite"
        place = number - 2
        num_entries = len(self.spaces.observations)
        if place >= num_entries:
            return f"{self._flags[place - num_entries]} must be true or false"
        entry = self.spaces.observations[place]
        condition = "be finite"
        if entry.kind == "one_hot":
            condition = "hold choices of its space"
        elif entry.kind == "token":
            condition = f"hold whole numbers in 0..{entry.sizes[0] - 1}"
        elif entry.kind == "byte":
            condition = "hold pixels in 0..255, or in 0..1 if they are real numbers"
        return f"{entry} must {condition}"

    def _call(self, name: Hook, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a compiled function, and announce the first call, which compiles it."""
        jax = load_jax()
        leaves = jax.tree.leaves(arguments)
        shape = (function, leaves[-1].shape, leaves[0].shape)
        with self._running(name):
            if shape in self._compiled.called:
                return jax.block_until_ready(function(*arguments))
            line = f"compiling {self._owner} ({name})"
            if name != "draw_task":
                line += f" for {leaves[0].shape[0]} envs, once for each number of them"
            with compiling(line):
                result = jax.block_until_ready(function(*arguments))
            self._compiled.called.add(shape)
            return result

    # Checks of the functions of a game.

    def _hook(self, name: Hook) -> str:
        """Return the name by which the user knows a function of the game."""
        known = getattr(getattr(self.game, name), "__name__", name)
        return name if known == "<lambda>" else known

    def _what(self, name: Hook) -> str:
        return f"{self._owner}: the game failed in {self._hook(name)}"

    def _trace(self, name: Hook, function: Callable[..., Any], *arguments: Any) -> Any:
        """Trace a function of the game; return the shapes of its result."""
        with self._running(name):
            trace = Trace(function, *arguments, parts=_PARTS[name])
        check_kept(self._what(name), trace)
        self._traces[name] = trace
        return trace.shapes

    def _running(self, name: Hook) -> "GameCode":
        return GameCode(self._what(name))

    def check_pure(self, names: Iterable[Hook], make: Callable[[], Game] | None) -> None:
        """Check that functions of users have the same programs when they are traced again.

        Args:
            names: Functions of the game to check.
            make: Makes the game again. None: that would be the same object.

        Raises:
            UserCodeError: One has another program.
        """
        known = {name: self._traces[name] for name in names if name in self._traces}
        traces = {self._what(name): trace for name, trace in known.items()}

        def trace_again() -> dict[str, Trace]:
            again = {}
            for name, trace in known.items():
                what = self._what(name)
                with self._running(name):
                    again[what] = trace.again()
                check_kept(what, again[what])
            return again

        def make_and_trace() -> dict[str, Trace]:
            assert make is not None
            # What a constructor prints was printed when the game was made first.
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                self.game = make()
            return trace_again()

        game = self.game
        with compiling(f"compiling {self._owner}: tracing its functions"):
            check_again(traces, trace_again, NOT_PURE)
            if make is not None:
                try:
                    check_again(traces, make_and_trace, NOT_REPEATABLE)
                finally:
                    self.game = game
        for trace in traces.values():
            for call in trace.callbacks()[:1]:
                file, line = place_of([call])
                place = f" ({file}:{line})" if file else ""
                print_once(f"{self._owner}: {_CALLS_PYTHON.format(call.primitive.name)}{place}")

    def _example_action(self) -> Any:
        action = self.spaces.action
        jax = load_jax()
        shape = () if action.kind == "discrete" else (len(action.bounds[0]),)
        dtype = np.float32 if action.kind == "box" else np.int32
        return jax.ShapeDtypeStruct(shape, dtype)

    def _find_success(self, info: Mapping[str, Any], key: str | None) -> str | None:
        if key == "auto":
            return next((name for name in _SUCCESS if name in info), None)
        if key is not None:
            found = sorted(map(str, info))
            condition = f"be auto, null or a key of the info of a step: {found}"
            require(self._owner, "success", key, key in info, condition)
        return key


def _is_flag(value: Any) -> bool:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", ())
    return isinstance(value, bool) or (str(dtype) == "bool" and shape == ())


def words_of(keys: Tensor) -> Any:
    """Return the words ``[R, 2]`` uint32 of random numbers that keys ``[R]`` int64 draw."""
    return bits(keys.cpu(), 1).numpy().view(np.uint32)


def _leaf_name(number: int) -> str:
    """Return the name of an array of a task."""
    return f"{number:03}"


def _first_fault(wrong: list[Any]) -> Any:
    """Return the number, from 1, of the first flag that is set; 0 if none is."""
    jnp = load_jax().numpy
    fault = jnp.zeros((), jnp.int32)
    for number, is_wrong in reversed(list(enumerate(wrong, 1))):
        fault = jnp.where(is_wrong, number, fault)
    return fault


def _key(word: Any) -> Any:
    return load_jax().random.wrap_key_data(word, impl=KEY_TYPE)


def _generators_of(tree: Any) -> list[Any]:
    """Return the generator of each leaf that is a key, and None for each other leaf."""
    jax = load_jax()
    return [jax.random.key_impl(leaf) if is_key(leaf) else None for leaf in jax.tree.leaves(tree)]


def _as_words(tree: Any) -> Any:
    """Return a pytree of arrays with the words of keys in their place."""
    jax = load_jax()

    def leaf(value: Any) -> Any:
        array = jax.numpy.asarray(value)
        return jax.random.key_data(array) if is_key(array) else array

    return jax.tree.map(leaf, tree)
