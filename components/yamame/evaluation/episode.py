"""Single episodes: step by step, as text, or as a video."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase, unravel_key
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from yamame.checks import PositiveInt, check_bounds, require
from yamame.evaluation.bound import StepLimit
from yamame.evaluation.held_out import Policy, act, check_players, evaluation_mode, fresh_copy
from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame.keys import ENTRIES
from yamame.spaces import Spaces
from yamame.spaces.from_specs import env_attribute
from yamame.system.signals import exit_if_received
from yamame.system.user_code import user_code

Watch = Callable[[TensorDictBase], None]
_MOST_NUMBERS = 8
"""Arrays with more numbers are described by their shape."""
_NO_OBSERVATIONS = {"next", *(entry.name for entry in ENTRIES)}
_EVENTS = {
    "trial_start": "a trial begins",
    "success": "success",
    "aborted": "aborted",
    "done": "the end",
}


@check_bounds
def play_episode(
    policy: Policy,
    env: EnvBase,
    *,
    max_steps: PositiveInt | None = None,
    greedy: bool = False,
    seed: int = 0,
    watch: Watch | None = None,
) -> TensorDictBase:
    """Play one episode: the first of an evaluation of one env with the same seed.

    Args:
        policy, max_steps, greedy, seed: As for `evaluate`.
        env: Environment of one env; seeded, and left where the episode ended.
        watch: Called with the first timestep, and after every step with that step, which has
            ``next``; ``env.render()`` then draws the result of the step. Random numbers that it
            draws change the samples.

    Returns:
        ``[1, T]``: timesteps with actions and ``next``, as TorchRL's rollouts.

    Raises:
        ArgumentError: ``env`` is not TorchRL's or has several envs, the policy does not act, or
            ``max_steps`` is not positive.
    """
    check_players("play_episode", policy, env)
    shape = tuple(env.batch_size)
    require("play_episode", "env", shape, env.batch_size.numel() == 1, "have one env")
    copied = fresh_copy(policy)
    steps: list[TensorDictBase] = []
    with evaluation_mode(seed, greedy=greedy):
        env.set_seed(seed)
        timestep = env.reset()
        if watch is not None:
            watch(timestep)

        limit = StepLimit(env, max_steps)
        while not limit.is_reached(len(steps)):
            exit_if_received()
            step = env.step(act(copied, timestep, env.action_key))
            # A copy, because the environment may write the next step into the same tensors.
            steps.append(step.clone())
            if watch is not None:
                watch(step)
            if bool(step["next", "done"].all()):
                break
            timestep = step_mdp(step)
    return torch.stack(steps, -1).reshape(1, len(steps))


def render_frame(env: EnvBase) -> npt.NDArray[np.uint8]:
    """Draw the present timestep of the first env of an environment, ``[H, W, 3]`` uint8.

    Raises:
        NotImplementedError: The environment has no pictures.
        UserCodeError: Code of the environment has raised an error.
    """
    can_render = callable(env_attribute(env, "render"))
    if not can_render:
        message = "the environment has no method render(), which returns [H, W, 3] uint8"
        raise NotImplementedError(message)
    what = f"{type(env).__name__}: the environment failed while it was drawn"
    with user_code(what, passes=(NotImplementedError,)):
        frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
        found = f"{frame.shape} {frame.dtype}"
        raise NotImplementedError(f"render() must return [H, W, 3] uint8, got {found}")
    return frame


def render_video(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: int = 1,
    max_frames: int = 1000,
    enough_frames: int | None = None,
    greedy: bool = False,
    seed: int = 0,
) -> npt.NDArray[np.uint8]:
    """Play episodes of the first env of an environment and draw every timestep.

    Args:
        policy, greedy, seed: As for `evaluate`.
        env: Environment with ``render()``, which returns ``[H, W, 3]`` uint8.
        num_episodes: Number of episodes. They are complete unless ``max_frames`` cuts the last one.
        max_frames: Largest number of frames.
        enough_frames: Number of frames after which no further episode begins; None: no such number.

    Returns:
        ``[T, H, W, 3]`` uint8.

    Raises:
        NotImplementedError: The environment has no pictures.
    """
    check_players("render_video", policy, env)
    copied = fresh_copy(policy)
    frames: list[npt.NDArray[np.uint8]] = []
    with evaluation_mode(seed, greedy=greedy):
        env.set_seed(seed)
        timestep = env.reset()
        while num_episodes > 0 and len(frames) < max_frames:
            frames.append(render_frame(env))
            exit_if_received()
            acted = act(copied, timestep, env.action_key)
            step, timestep = env.step_and_maybe_reset(acted)
            # Only the first env is drawn, so only its episodes count.
            if bool(step["next", "done"].reshape(-1)[0]):
                num_episodes -= 1
                if enough_frames is not None and len(frames) >= enough_frames:
                    break
    return np.stack(frames)


def describe_timestep(timestep: TensorDictBase, spaces: Spaces | None = None) -> str:
    """Describe an observation: short vectors as numbers, others by their shape; and reached goals.

    Args:
        timestep: ``[1]``.
        spaces: Description of the environment's spaces (`yamame.spaces.from_specs.spaces_of`), to
            print values of the spaces, such as the number of a ``Discrete``; None to print the
            entries of the timestep.
    """
    observations = {}
    if spaces is not None:
        observations = {entry.key: entry for entry in spaces.observations}

    parts = []
    for key in sorted(timestep.keys(True, True), key=str):
        path = (key,) if isinstance(key, str) else key
        if path[0] in _NO_OBSERVATIONS:
            continue
        value = timestep.get(key)[0].cpu().numpy()
        entry = observations.get(unravel_key(key))
        if entry is not None:
            value = entry.value(value)
        parts.append(f"{'.'.join(path)} {_brief(value)}")

    goal = timestep.get("goal", None)
    if goal is not None:
        total = int((goal != GOAL_PAD).any(-1).sum())
        reached = int((goal == GOAL_COMPLETED).all(-1).sum())
        if total > 0:
            parts.append(f"goals reached {reached} of {total}")
    return "  ".join(parts)


def describe_step(step: TensorDictBase, spaces: Spaces | None = None) -> str:
    """Describe a step: the action, the reward and the next observation.

    Args:
        step: ``[1]``, with ``action`` and ``next``.
        spaces: As for `describe_timestep`.
    """
    following = step.get("next")
    parts = []
    number = following.get("step_index", None)
    if number is not None:
        parts.append(f"{int(number):5d}")

    actions = step.get("action").cpu().numpy()
    action = actions[0]
    if spaces is not None:
        read = spaces.action.read(actions, label="action", indices=True)
        action = spaces.action.values(read)[0]
    parts.append(f"action {_brief(action)}")
    parts.append(f"reward {float(following.get('reward')):g}")
    parts.append(describe_timestep(following, spaces))

    for key, text in _EVENTS.items():
        if key in following.keys() and following[key].any():
            parts.append(text)
    return "  ".join(parts)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_brief(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_brief, value)) + ")"

    array = np.asarray(value)
    if array.size > _MOST_NUMBERS:
        return f"[{' x '.join(map(str, array.shape))}]"
    numbers = []
    for number in array.reshape(-1):
        is_float = array.dtype.kind == "f"
        numbers.append(f"{float(number):.2f}" if is_float else str(int(number)))
    return numbers[0] if array.size == 1 else f"[{' '.join(numbers)}]"
