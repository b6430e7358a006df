"""Checker of the laws of environments, for custom environments as well as those of this package.

An environment that satisfies them trains, evaluates and resumes reproducibly: its episodes depend
on nothing but their task seeds and actions, and its state can be saved in the middle of an episode.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Annotated, Any, Literal, Protocol, get_args

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import step_mdp
from yamame.checks import Bounds, check_bounds, require_choice
from yamame.keys import CONTEXT

Law = Literal["specs", "rows", "seeds", "tasks", "resets", "state"]
"""Laws of `check_env`."""

_NUM_ENVS = 3
_SEED = 5
_OTHER_SEED = 6


class MakeEnv(Protocol):
    """Constructor of an environment with ``num_envs`` envs, seeded with ``seed``."""

    def __call__(self, *, num_envs: int, seed: int) -> EnvBase:
        """Build the environment."""


@check_bounds
def check_env(
    make: MakeEnv,
    *,
    num_steps: Annotated[int, Bounds(least=4)] = 64,
    skip: Collection[Law] = (),
) -> None:
    """Check that an environment satisfies the laws that training, evaluation and resume rely on.

    Random actions are played in environments of two and of three envs. Episodes should end within
    ``num_steps`` steps, or resets are not checked where they matter most.

    * ``specs``: every entry has the shape, the dtype and the bounds of its spec at every timestep;
      the context (`yamame.keys`) is present; rewards are finite; ``done`` is ``terminated`` or
      ``truncated``; ``step_index`` counts and ``is_init`` marks the first step of an episode.
    * ``rows``: an env plays the same episodes with any number of envs beside it and whatever
      actions those take.
    * ``seeds``: the same seed replays the same episodes, ``set_seed`` equals the constructor's
      ``seed``, and a different seed gives different episodes (an environment with a single task and
      without noise skips this law).
    * ``tasks``: an episode is a pure function of its ``task_seed`` and its actions: it does not
      depend on the env that plays it, nor on episodes before it.
    * ``resets``: a reset of one env leaves the others unchanged.
    * ``state``: an environment that loads a ``state_dict`` continues as the saved one, bit for bit,
      also in the middle of an episode. A ``state_dict`` is a copy: later steps do not change it.

    Args:
        make: Function that builds the environment, such as the class or a ``functools.partial`` of
            it. It is called with the keywords ``num_envs`` and ``seed``.
        num_steps: Number of steps that are played.
        skip: Laws that are not checked.

    Raises:
        ArgumentError: ``num_steps`` is below 4, or there is no such law.
        AssertionError: A law is broken. The message names the law, the entry, the step and the env
            where it was found.

    >>> from functools import partial
    >>> from yamame_envs import PassiveTMaze
    >>> check_env(partial(PassiveTMaze, length=5))
    """
    for law in skip:
        require_choice("check_env", "skip", law, get_args(Law))
    checks: Mapping[Law, Callable[[MakeEnv, Tensor], None]] = {
        "specs": _check_specs,
        "rows": _check_rows,
        "seeds": _check_seeds,
        "tasks": _check_tasks,
        "resets": _check_resets,
        "state": _check_state,
    }
    actions = _draw_actions(make, num_steps)
    for law, check in checks.items():
        if law not in skip:
            check(make, actions)


def _draw_actions(make: MakeEnv, num_steps: int) -> Tensor:
    """Draw actions ``[num_steps, 3, ...]``."""
    with closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as env, torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return torch.stack([env.action_spec.rand() for _ in range(num_steps)])


def _play(
    env: EnvBase, actions: Tensor, start: TensorDictBase | None = None
) -> list[TensorDictBase]:
    """Play actions ``[T, N, ...]`` and return copies of the steps, with ``next``."""
    steps, _ = _play_on(env, actions, env.reset() if start is None else start)
    return steps


def _play_on(
    env: EnvBase, actions: Tensor, current: TensorDictBase
) -> tuple[list[TensorDictBase], TensorDictBase]:
    """Play actions from the current timestep.

    Args:
        env: Environment with at most N envs; further actions are not played.
        actions: ``[T, N, ...]``.
        current: Current timestep.

    Returns:
        Copies of the steps, with ``next``, and the timestep after the last one.
    """
    num_envs = env.batch_size[0]
    steps = []
    for action in actions:
        current = current.copy()
        current[env.action_key] = action[:num_envs].clone()
        step, current = env.step_and_maybe_reset(current)
        # A copy, because the environment may write the next step into the same tensors.
        steps.append(step.clone())
    return steps, current


def _check_specs(make: MakeEnv, actions: Tensor) -> None:
    with closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as env:
        shape = tuple(env.batch_size)
        _require(shape == (_NUM_ENVS,), f"specs: batch_size must be ({_NUM_ENVS},), got {shape}")
        names = set(env.observation_spec.keys())
        # An environment without a visible time limit has no ``time``.
        missing = sorted(set(CONTEXT) - {"time"} - names)
        remedy = "TransformedEnv(env, yamame.transforms.ContextTransform()) adds it"
        law = "specs: observation_spec must hold the context"
        _require(not missing, f"{law}, it lacks {missing}; {remedy}")
        before: TensorDictBase | None = None
        for t, step in enumerate(_play(env, actions)):
            after = step.get("next")
            _check_entries(env, step, f"at step {t}")
            _check_entries(env, after, f"after step {t}")
            reward = after.get(env.reward_key)
            _require(bool(reward.isfinite().all()), f"specs: reward must be finite, step {t}")
            over = after["terminated"] | after["truncated"]
            law = "specs: done must be terminated or truncated"
            _require_equal(after["done"], over, law, t)
            law = "specs: step_index must grow by 1 in a step"
            _require_equal(after["step_index"], step["step_index"] + 1, law, t)
            law = "specs: is_init must be set where step_index is 0, and nowhere else"
            _require_equal(step["is_init"], step["step_index"] == 0, law, t)
            if before is not None:
                law = "specs: is_init must be set after the end of an episode, and nowhere else"
                _require_equal(step["is_init"], before["done"], law, t)
            before = after


def _check_entries(env: EnvBase, timestep: TensorDictBase, place: str) -> None:
    for name, spec in env.observation_spec.items(True, True):
        value = timestep.get(name, None)
        _require(value is not None, f"specs: {name!r} is missing {place}")
        found = f"{value.dtype} {tuple(value.shape)}"
        wanted = f"{spec.dtype} {tuple(spec.shape)}"
        _require(found == wanted, f"specs: {name!r} must be {wanted}, got {found} {place}")
        _require(spec.is_in(value), f"specs: {name!r} must be within its spec {spec} {place}")


def _check_rows(make: MakeEnv, actions: Tensor) -> None:
    changed = actions.clone()
    # Reversed in time, because a fresh draw of few actions may be equal.
    changed[:, 0] = actions.flip(0)[:, 0]
    with (
        closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as three,
        closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as other,
        closing(make(num_envs=2, seed=_SEED)) as two,
    ):
        whole = _play(three, actions)
        law = "rows: an env must not depend on the number of envs"
        _require_same_steps(_play(two, actions), whole, law, [0, 1])
        law = "rows: an env must not depend on the actions of others"
        _require_same_steps(_play(other, changed), whole, law, [1, 2])


def _check_seeds(make: MakeEnv, actions: Tensor) -> None:
    rows = list(range(_NUM_ENVS))
    with (
        closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as first,
        closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as same,
        closing(make(num_envs=_NUM_ENVS, seed=_OTHER_SEED)) as other,
    ):
        played = _play(first, actions)
        law = "seeds: the same seed must replay the same episodes"
        _require_same_steps(_play(same, actions), played, law, rows)
        different = _play(other, actions)
        is_different = _first_difference(different, played, rows) is not None
        _require(is_different, "seeds: a different seed must give different episodes")
        same.set_seed(_OTHER_SEED)
        law = "seeds: set_seed must equal the seed of the constructor"
        _require_same_steps(_play(same, actions), different, law, rows)


def _check_tasks(make: MakeEnv, actions: Tensor) -> None:
    seeds = torch.tensor([[11], [12], [13]])
    # Every env plays the same actions, so only tasks and envs differ.
    alike = actions[:, :1].expand_as(actions)
    with closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as env:
        # Transforms do not pass the task seed on.
        bare = env.base_env if isinstance(env, TransformedEnv) else env
        first = _episodes(bare, seeds, alike)
        # Afterwards envs have a history, and the tasks are in other envs.
        again = _episodes(bare, seeds.roll(1, 0), alike)
        law = "tasks: an episode must be a pure function of its task_seed and its actions"
        for row in range(_NUM_ENVS):
            moved = (row + 1) % _NUM_ENVS
            for t, (step, repeated) in enumerate(zip(first, again, strict=False)):
                _require_same_row(repeated, step, law, t, moved, row)
                if bool(step["next", "done"][row]):
                    break


def _episodes(env: EnvBase, seeds: Tensor, actions: Tensor) -> list[TensorDictBase]:
    """Play the tasks of seeds ``[N, 1]`` until all episodes are over or actions run out."""
    request = env.reset().empty()
    request["task_seed"] = seeds.to(request.device or "cpu")
    current = env.reset(request)
    steps = []
    for action in actions:
        current = current.copy()
        current[env.action_key] = action.clone()
        step = env.step(current)
        steps.append(step.clone())
        if bool(step["next", "done"].all()):
            break
        current = step_mdp(step)
    return steps


def _check_resets(make: MakeEnv, actions: Tensor) -> None:
    row = 1
    place = min(5, len(actions) // 2)
    with (
        closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as first,
        closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as second,
    ):
        whole = _play(first, actions)
        broken, current = _play_on(second, actions[:place], second.reset())
        request = current.copy()
        request["_reset"] = torch.zeros_like(current["is_init"])
        request["_reset"][row] = True
        broken += _play(second, actions[place:], second.reset(request))
        law = "resets: a reset of one env must leave the others unchanged"
        _require_same_steps(broken, whole, law, [0, 2])
        timestep = broken[place]
        for name in ("step_index", "prev_action", "prev_reward"):
            is_zero = not bool(timestep[name][row].any())
            _require(is_zero, f"resets: {name!r} must be 0 at the first timestep of an episode")
        is_init = bool(timestep["is_init"][row])
        _require(is_init, "resets: 'is_init' must be set at the first timestep of an episode")


def _check_state(make: MakeEnv, actions: Tensor) -> None:
    # In the middle of episodes, and again after some of them have ended.
    for saved_at in sorted({2, len(actions) // 2}):
        with (
            closing(make(num_envs=_NUM_ENVS, seed=_SEED)) as env,
            closing(make(num_envs=_NUM_ENVS, seed=_OTHER_SEED)) as loaded,
        ):
            _, current = _play_on(env, actions[:saved_at], env.reset())
            state = _save(env)
            _require(bool(state), "state: state_dict must hold the state, it is empty")
            saved = copy.deepcopy(state)
            current = current.clone()
            continued = _play(env, actions[saved_at:], current.clone())
            law = "state: state_dict must hold copies, which later steps do not change"
            _require(_is_equal(state, saved), law)
            _load(loaded, saved)
            law = f"state: a state_dict after {saved_at} steps must continue as the saved one"
            resumed = _play(loaded, actions[saved_at:], current)
            _require_same_steps(resumed, continued, law, list(range(_NUM_ENVS)))


def _save(env: EnvBase) -> Any:
    if isinstance(env, TransformedEnv):
        # The state of a TransformedEnv itself holds only that of its transforms.
        state = _save(env.base_env)
        return state and {"base_env": state, "transforms": env.state_dict()}
    return env.state_dict()


def _load(env: EnvBase, state: Any) -> None:
    if isinstance(env, TransformedEnv):
        _load(env.base_env, state["base_env"])
        env.load_state_dict(state["transforms"])
    else:
        env.load_state_dict(state)


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, TensorDictBase):
        return bool((first == second).all())
    if isinstance(first, Mapping):
        return all(_is_equal(value, second[name]) for name, value in first.items())
    return bool(first == second)


def _require_same_steps(
    actual: list[TensorDictBase], expected: list[TensorDictBase], law: str, rows: list[int]
) -> None:
    found = _first_difference(actual, expected, rows)
    _require(found is None, f"{law}: {found}")


def _first_difference(
    actual: list[TensorDictBase], expected: list[TensorDictBase], rows: list[int]
) -> str | None:
    """Return the first entry, step and env that differ; None if all are equal, bit for bit."""
    for t, (first, second) in enumerate(zip(actual, expected, strict=False)):
        for row in rows:
            name = _differing_entry(first, second, row, row)
            if name is not None:
                return f"{name!r} differs at step {t} of env {row}"
    return None


def _require_same_row(
    actual: TensorDictBase, expected: TensorDictBase, law: str, t: int, row: int, other: int
) -> None:
    name = _differing_entry(actual, expected, row, other)
    place = f"{name!r} differs at step {t} between env {other} and env {row}"
    _require(name is None, f"{law}: {place}")


def _differing_entry(first: TensorDictBase, second: TensorDictBase, row: int, other: int) -> Any:
    """Return an entry in which a row differs from a row of a second tensordict; None if none."""
    for name in first.keys(True, True):
        if name == "task_seed":
            continue
        value = second.get(name, None)
        if value is None or not torch.equal(first.get(name)[row], value[other]):
            return name
    return None


def _require_equal(actual: Tensor, expected: Tensor, law: str, t: int) -> None:
    is_equal = (actual == expected).flatten(1).all(1)
    rows = (~is_equal).nonzero().flatten().tolist()
    _require(not rows, f"{law}; step {t} of envs {rows}")


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise AssertionError(law)
