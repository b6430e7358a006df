"""Games of a single env as pure functions, and the games of Gymnax's interface as such."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from yamame.checks import ArgumentError, require
from yamame.system.messages import OutsideError, print_once
from yamame.system.user_code import UserCodeError

from yamame_envs.jax_games.checks import arrays, check_length, check_number, check_takes, kind_of
from yamame_envs.jax_games.runtime import load_numpy

LIMITS = ("max_steps_in_episode", "max_timesteps", "max_steps", "max_episode_length")
"""Names of the time limit in the parameters of a game, or in the game itself."""
_GYMNAX_BASE = "gymnax.environments.environment"
_NO_TASK = "params are None, as sample_task draws them only with tasks=own: set env.tasks=own"


@dataclass(frozen=True, eq=False)
class Game:
    """Game of one env, written in JAX. `yamame_envs.JaxEnv` plays it in many envs at once.

    All functions are pure, and are traced by ``jax.jit`` and ``jax.vmap``. States and tasks are
    pytrees of arrays, and may hold keys of ``jax.random``. A key is used for nothing else.

    Attributes:
        reset: Function ``(key, task) -> (observation, state)``.
        step: Function ``(key, state, action, task) -> (observation, state, reward, terminated,
            truncated, info)``. An episode that is both is terminated. ``info`` is a dictionary, in
            which success may be reported, or None.
        action_space: Space of an action: of Gymnax or Gymnasium, or any object with ``n``, with
            ``nvec``, or with ``low``, ``high`` and ``shape``.
        observation_space: Space of an observation. None: inferred from dtypes and shapes.
        time_limit: Steps after which an episode is over; None without a limit.
        draw_task: Function ``key -> task``, a pytree of arrays. None: there are no tasks apart from
            keys; functions get None, and the key of ``reset`` decides which task it is.
        tokens: True if whole numbers from 0 to a common bound name things, so that encoders embed
            them. Otherwise they are plain numbers.
        pixels_as_bytes: Store images ``[H, W, 3]`` of real numbers in 0..1 as bytes.
        draw_picture: Function ``(state, task) -> picture`` ``[H, W, 3]`` uint8 of one env, which is
            not traced. None: an observed image is the picture.
    """

    reset: Callable[[Any, Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any, Any], tuple[Any, Any, Any, Any, Any, Mapping[str, Any]]]
    action_space: Any
    observation_space: Any = None
    time_limit: int | None = None
    draw_task: Callable[[Any], Any] | None = None
    tokens: bool = False
    pixels_as_bytes: bool = False
    draw_picture: Callable[[Any, Any], Any] | None = None


def game_of(made: Any, owner: str, *, draw_task: Callable[[Any], Any] | str | None = None) -> Game:
    """Return the game that an object describes.

    Args:
        made: A `Game`; an environment with Gymnax's interface; or a tuple of one and its
            parameters, as ``gymnax.make`` returns.
        owner: Name of the environment in messages.
        draw_task: Function that draws tasks; ``"own"``: the object's ``sample_task(key)``; None: a
            `Game` has its own, and others have no tasks.

    Raises:
        ArgumentError: It is none of these, or has no such method.
    """
    if isinstance(made, Game):
        if draw_task == "own":
            has_own = made.draw_task is not None
            require(owner, "tasks", draw_task, has_own, "be null where draw_task is None")
        elif callable(draw_task):
            made = dataclasses.replace(made, draw_task=draw_task)
        check_takes(owner, "reset", made.reset, "key", "task")
        check_takes(owner, "step", made.step, "key", "state", "action", "task")
        return made

    is_pair = isinstance(made, tuple) and len(made) == 2
    env, params = made if is_pair else (made, None)
    for name in ("reset_env", "step_env"):
        condition = "describe a game: a Game, or an object with reset_env and step_env"
        remedy = (
            "reset_env(key, params) returns (observation, state), and step_env(key, state, action, "
            "params) returns (observation, state, reward, done, info) and begins no new episode"
        )
        has_method = callable(getattr(env, name, None))
        require(owner, "id", type(env).__name__, has_method, condition, remedy=remedy)
    return gymnax_game(env, default_params(env) if params is None else params, owner, draw_task)


def gymnax_game(
    env: Any, params: Any, owner: str, draw_task: Callable[[Any], Any] | str | None = None
) -> Game:
    """Return the game of an environment with Gymnax's interface.

    A task replaces the parameters: all of them, or the fields that a dictionary names. Where the
    info of a step has ``truncated``, an episode that is done by it is cut off, and not terminated.

    Args:
        env: Environment with ``reset_env``, ``step_env``, and ``action_space(params)`` or
            ``num_actions``.
        params: Its parameters.
        owner: Name of the environment in messages.
        draw_task: Function that draws tasks, or ``"own"`` for ``env.sample_task(key)``.
    """
    if draw_task == "own":
        draw_task = getattr(env, "sample_task", None)
        condition = "be null or a function, or the game must have a method sample_task(key)"
        require(owner, "tasks", "own", callable(draw_task), condition)
    lacks_task = draw_task is None and params is None
    lacks_task = lacks_task and callable(getattr(env, "sample_task", None))
    if lacks_task:
        print_once(f"{owner}: {_NO_TASK}")
    _check_methods(env, owner)

    def reset(key: Any, task: Any) -> tuple[Any, Any]:
        with _advice(f"{owner}: the game failed in reset_env", lacks_task):
            result = env.reset_env(key, replaced(params, task, owner))
        check_length(owner, "reset_env", result, "(observation, state)")
        return result

    def step(key: Any, state: Any, action: Any, task: Any) -> Any:
        played = replaced(params, task, owner)
        with _advice(f"{owner}: the game failed in step_env", lacks_task):
            result = env.step_env(key, state, action, played)
        forms = (
            "(observation, state, reward, done, info)",
            "(observation, state, reward, terminated, truncated, info)",
        )
        check_length(owner, "step_env", result, *forms)
        if len(result) == 6:
            return result
        observation, after, reward, done, info = result
        terminated, truncated = done, _truncated(env, after, played)
        if truncated is None:
            terminated, truncated = _ends(done, info, owner)
        return observation, after, reward, terminated, truncated, info

    # Messages name the methods of the environment.
    reset.__name__, step.__name__ = "reset_env", "step_env"
    return Game(
        reset=reset,
        step=step,
        action_space=_action_space(env, params, owner),
        observation_space=_space(env, "observation_space", params, owner),
        time_limit=time_limit_of(params, env, owner=owner),
        draw_task=draw_task if callable(draw_task) else None,
    )


def _check_methods(env: Any, owner: str) -> None:
    """Raise unless the methods of an environment take the arguments of Gymnax."""
    check_takes(owner, "reset_env", env.reset_env, "key", "params")
    check_takes(owner, "step_env", env.step_env, "key", "state", "action", "params")
    is_truncated = getattr(env, "is_truncated", None)
    if is_truncated is not None:
        condition = "be a method is_truncated(state, params)"
        require(owner, "is_truncated", is_truncated, callable(is_truncated), condition)
        check_takes(owner, "is_truncated", is_truncated, "state", "params")


@contextmanager
def _advice(what: str, lacks_task: bool) -> Iterator[None]:
    """Add to an error of a game without parameters that its tasks would be the parameters."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        if not lacks_task or "NoneType" not in str(error):
            raise
        found = UserCodeError.of(what, error)
        reason = f"{found.reason}; {_NO_TASK}"
        raise UserCodeError(what, reason, found.file, found.line) from error


def default_params(env: Any) -> Any:
    """Return the default parameters of an environment; None if it has none."""
    params = getattr(env, "default_params", None)
    return params() if callable(params) and not isinstance(params, Mapping) else params


def field_names(params: Any) -> frozenset[str]:
    """Return the names of the fields of parameters."""
    if isinstance(params, Mapping):
        return frozenset(params)
    if dataclasses.is_dataclass(params):
        return frozenset(field.name for field in dataclasses.fields(params))
    return frozenset(getattr(params, "_fields", ()))


def replaced(params: Any, task: Any, owner: str) -> Any:
    """Return parameters with those that a task sets.

    Raises:
        ArgumentError: A task is neither of the kind of the parameters, nor a dictionary of some of
            their fields.
    """
    if task is None or params is None:
        return params if task is None else task
    if not isinstance(task, Mapping):
        fields = field_names(params)
        is_alike = isinstance(task, type(params)) or fields <= field_names(task)
        kind = type(params).__name__
        condition = (
            f"draw a dictionary of some of the fields {sorted(fields)}, or an object of {kind}"
        )
        require(owner, "tasks", kind_of(task), is_alike, condition)
        return task
    unknown = sorted(set(task) - field_names(params))
    if unknown:
        condition = f"draw fields of {sorted(field_names(params))}"
        raise ArgumentError(owner, "tasks", unknown, condition)
    if isinstance(params, Mapping):
        return {**params, **task}
    if hasattr(params, "_replace"):
        return params._replace(**task)
    return dataclasses.replace(params, **task)


def time_limit_of(*places: Any, owner: str = "JaxEnv") -> int | None:
    """Return the time limit that parameters, or an environment, have; None if there is none.

    Raises:
        OutsideError: It is no whole number.

    >>> time_limit_of({"max_steps": 20}, None), time_limit_of(None)
    (20, None)
    """
    found = []
    for place in places:
        for name in LIMITS:
            value = place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
            if value is None:
                continue
            limit = _whole_number(value)
            if limit is None:
                condition = "be a whole number of steps, or None without a limit"
                raise OutsideError(f"{owner}: {name} must {condition}, got {value!r}")
            found.append(limit)
    # Parameters of Gymnax have a limit of 1 where the game keeps its own elsewhere.
    return next((limit for limit in found if limit != 1), found[0] if found else None)


def _truncated(env: Any, state: Any, params: Any) -> Any:
    """Return what a game's own method tells; None if it has no such method."""
    method = getattr(env, "is_truncated", None)
    if method is None:
        return None
    home = getattr(getattr(method, "__func__", method), "__module__", "")
    # The method of Gymnax's base class reads a field that not all games have.
    if home == _GYMNAX_BASE and not hasattr(state, "time"):
        return None
    return method(state, params)


def _ends(done: Any, info: Any, owner: str) -> tuple[Any, Any]:
    """Return whether an episode is over for good, and whether it was cut off, by its info."""
    jnp = load_numpy()
    if isinstance(info, Mapping) and "truncated" in info:
        # The info holds the reason why an episode is done, so `done` is true there, too.
        truncated = arrays(owner, "info['truncated']", info["truncated"])
        check_number(owner, "info['truncated']", truncated)
        return jnp.logical_and(done, jnp.logical_not(truncated)), truncated
    return done, jnp.zeros((), bool)


def _action_space(env: Any, params: Any, owner: str) -> Any:
    space = _space(env, "action_space", params, owner)
    count, choices = getattr(env, "num_actions", None), getattr(space, "n", None)
    if choices is not None and isinstance(count, Integral) and count != choices:
        print_once(
            f"{owner}: action_space has {choices} choices, and num_actions is {count}: "
            "action_space is used"
        )
    return space


def _space(env: Any, name: str, params: Any, owner: str) -> Any:
    """Return a space of an environment; None for an observation space that it does not have."""
    space = getattr(env, name, None)
    if callable(space):
        check_takes(owner, name, space, "params")
        return space(params)
    if space is not None:
        return space
    if name == "observation_space":
        return None
    count = getattr(env, "num_actions", None)
    if count is None:
        condition = "name a game with action_space(params), or with num_actions"
        raise ArgumentError(owner, "id", type(env).__name__, condition)
    is_number = isinstance(count, Integral) and not isinstance(count, bool)
    if not is_number or count < 1:
        raise OutsideError(f"{owner}: num_actions must be a positive integer, got {count!r}")
    return Choices(int(count))


def _whole_number(value: Any) -> int | None:
    """Return a number without a fraction, as one of Python; None for anything else."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == value else None


class Choices:
    """Space of the whole numbers below ``n``."""

    def __init__(self, n: int) -> None:
        self.n = n
