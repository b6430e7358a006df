"""A timestep in one line, for people who watch."""

from tensordict import TensorDictBase
from torch import Tensor

from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame.keys import ENTRIES

_MOST_NUMBERS = 8
_NO_OBSERVATIONS = {"next", *(entry.name for entry in ENTRIES)}
_EVENTS = {"trial_start": "a trial begins", "success": "success", "aborted": "aborted", "done": "the end"}


def describe_timestep(timestep: TensorDictBase) -> str:
    """What is seen: short vectors as numbers, anything else by its shape; and how many goals are reached.

    Args:
        timestep: ``[1]``.
    """
    parts = []
    for key in sorted(timestep.keys(True, True), key=str):
        if (key if isinstance(key, str) else key[0]) not in _NO_OBSERVATIONS:
            name = key if isinstance(key, str) else ".".join(key)
            parts.append(f"{name} {_brief(timestep.get(key)[0])}")
    goal = timestep.get("goal", None)
    if goal is not None and int(total := (goal != GOAL_PAD).any(-1).sum()) > 0:
        parts.append(f"goals reached {int((goal == GOAL_COMPLETED).all(-1).sum())} of {int(total)}")
    return "  ".join(parts)


def describe_step(step: TensorDictBase) -> str:
    """What was done, what it brought and where it led.

    Args:
        step: ``[1]``, with ``action`` and ``next``.
    """
    following = step.get("next")
    number = following.get("step_index", None)
    parts = [] if number is None else [f"{int(number):5d}"]
    parts += [f"action {_brief(step.get('action')[0])}", f"reward {float(following.get('reward')):g}"]
    events = [text for key, text in _EVENTS.items() if key in following.keys() and following[key].any()]
    return "  ".join([*parts, describe_timestep(following), *events])


def _brief(value: Tensor) -> str:
    if value.numel() > _MOST_NUMBERS:
        return f"[{' x '.join(map(str, value.shape))}]"
    whole = not value.is_floating_point()
    numbers = [str(int(number)) if whole else f"{float(number):.2f}" for number in value.reshape(-1)]
    return numbers[0] if value.numel() == 1 else f"[{' '.join(numbers)}]"
