"""Episodes step by step: to watch one or read it as text while it is played, to have all of it, or
a video of some.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase, unravel_key
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from yamame.checks import require, require_at_least
from yamame.evaluation.held_out import Policy, act, acting, fresh_copy
from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame.keys import ENTRIES
from yamame.spaces import Spaces

Watch = Callable[[TensorDictBase], None]
_MOST_NUMBERS = 8
_NO_OBSERVATIONS = {"next", *(entry.name for entry in ENTRIES)}
_EVENTS = {
    "trial_start": "a trial begins",
    "success": "success",
    "aborted": "aborted",
    "done": "the end",
}


def play_episode(
    policy: Policy,
    env: EnvBase,
    *,
    max_steps: int | None = None,
    greedy: bool = False,
    seed: int = 0,
    watch: Watch | None = None,
) -> TensorDictBase:
    """Plays one episode: the first that an evaluation of one env with the same seed plays.

    Args:
        policy, max_steps, greedy, seed: As for `evaluate`.
        env: Environment of one env; seeded, and left where the episode ended.
        watch: Called when the episode has begun, with its first timestep, and after every step with
            that step, which has ``next``; ``env.render()`` then draws where the step led. Random
            numbers that it draws change the samples.

    Returns:
        ``[1, T]``: timesteps with actions and what followed, as TorchRL's rollouts.

    Raises:
        ValueError: If ``env`` has several envs or ``max_steps`` is not positive.
    """
    require(
        "play_episode", "env", tuple(env.batch_size), env.batch_size.numel() == 1, "have one env"
    )
    require_at_least("play_episode", 1, max_steps=1 if max_steps is None else max_steps)
    copied = fresh_copy(policy)
    steps: list[TensorDictBase] = []
    with acting(seed, greedy=greedy):
        env.set_seed(seed)
        timestep = env.reset()
        if watch is not None:
            watch(timestep)
        while max_steps is None or len(steps) < max_steps:
            step = env.step(act(copied, timestep, env.action_key))
            steps.append(step.clone())
            if watch is not None:
                watch(step)
            if bool(step["next", "done"].all()):
                break
            timestep = step_mdp(step)
    return torch.stack(steps, -1).reshape(1, len(steps))


def render_video(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: int = 1,
    max_frames: int = 1000,
    greedy: bool = False,
    seed: int = 0,
) -> npt.NDArray[np.uint8]:
    """Plays the first env of an environment and draws every timestep.

    Args:
        policy, greedy, seed: As for `evaluate`.
        env: Environment with ``render()``, which gives ``[H, W, 3]`` uint8.
        num_episodes: Episodes to play, complete unless ``max_frames`` cuts the last one.
        max_frames: Timesteps to draw at most.

    Returns:
        ``[T, H, W, 3]`` uint8.

    Raises:
        NotImplementedError: If the environment has no picture.
    """
    try:
        has_pictures = callable(getattr(env, "render", None))
    except RecursionError:  # so TorchRL's batched environments look for what none of theirs has
        has_pictures = False
    if not has_pictures:
        raise NotImplementedError("the environment has no method render()")
    copied = fresh_copy(policy)
    frames: list[npt.NDArray[np.uint8]] = []
    with acting(seed, greedy=greedy):
        env.set_seed(seed)
        timestep = env.reset()
        while num_episodes > 0 and len(frames) < max_frames:
            frame = np.asarray(env.render())
            if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
                raise NotImplementedError(
                    f"render() must give [H, W, 3] uint8, got {frame.shape} {frame.dtype}"
                )
            frames.append(frame)
            step, timestep = env.step_and_maybe_reset(act(copied, timestep, env.action_key))
            num_episodes -= int(step["next", "done"].reshape(-1)[0])
    return np.stack(frames)


def describe_timestep(timestep: TensorDictBase, spaces: Spaces | None = None) -> str:
    """Describes an observation: short vectors as numbers, others by their shape; and how many goals
    are reached.

    Args:
        timestep: ``[1]``.
        spaces: Description of the environment's spaces (`yamame.spaces.from_specs.spaces_of`), to
            print values of the spaces, such as the number of a ``Discrete``; None to print the
            entries of the timestep.
    """
    entries = {} if spaces is None else {entry.key: entry for entry in spaces.observations}
    parts = []
    for key in sorted(timestep.keys(True, True), key=str):
        if (key if isinstance(key, str) else key[0]) not in _NO_OBSERVATIONS:
            name = key if isinstance(key, str) else ".".join(key)
            value = timestep.get(key)[0].cpu().numpy()
            if unravel_key(key) in entries:
                value = entries[unravel_key(key)].value(value)
            parts.append(f"{name} {_brief(value)}")
    goal = timestep.get("goal", None)
    if goal is not None and int(total := (goal != GOAL_PAD).any(-1).sum()) > 0:
        parts.append(f"goals reached {int((goal == GOAL_COMPLETED).all(-1).sum())} of {int(total)}")
    return "  ".join(parts)


def describe_step(step: TensorDictBase, spaces: Spaces | None = None) -> str:
    """Describes a step: the action, the reward and the following observation.

    Args:
        step: ``[1]``, with ``action`` and ``next``.
        spaces: As for `describe_timestep`.
    """
    following = step.get("next")
    number = following.get("step_index", None)
    parts = [] if number is None else [f"{int(number):5d}"]
    action = step.get("action").cpu().numpy()
    value = action[0]
    if spaces is not None:
        value = spaces.action.values(spaces.action.read(action, label="action", indices=True))[0]
    parts += [f"action {_brief(value)}", f"reward {float(following.get('reward')):g}"]
    events = [
        text for key, text in _EVENTS.items() if key in following.keys() and following[key].any()
    ]
    return "  ".join([*parts, describe_timestep(following, spaces), *events])


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_brief(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_brief, value)) + ")"
    array = np.asarray(value)
    if array.size > _MOST_NUMBERS:
        return f"[{' x '.join(map(str, array.shape))}]"
    whole = array.dtype.kind != "f"
    numbers = [
        str(int(number)) if whole else f"{float(number):.2f}" for number in array.reshape(-1)
    ]
    return numbers[0] if array.size == 1 else f"[{' '.join(numbers)}]"
