"""Front matter of model cards: the YAML block that model hubs read.

The fields are those of Hugging Face's model cards; ``model-index`` holds the task, the environment
as data set, and the metrics of the evaluation. Texts are written as JSON strings, which are YAML as
well, so that no text of a stranger can add a field.
"""

import json
import math
import re
from typing import Any

from yamame.deploy.saved import SavedAgent
from yamame.system.messages import printable

_TASK = "reinforcement-learning"
_LONGEST_TEXT = 200
_ZOO = "zoo:"
_ZOO_LICENSE = "mit"
"""License of the agents that come with the package: that of the package."""
_METRICS = {"return_mean": "mean_reward", "success_mean": "success_rate"}
"""Metrics whose types hubs know by other names."""
_REPORTED = ("return_", "success_")
"""Prefixes of the results that are listed."""


def front_matter(saved: SavedAgent, source: str) -> str:
    """Return the block, between its lines ``---``.

    Args:
        saved: The agent. Without results there is no ``model-index``.
        source: Argument of `yamame.load` in the model card, which names the agent.
    """
    name = environment_name(saved.config.get("env"))
    tags = [_TASK, "in-context-reinforcement-learning"]
    tag = _slug(name)
    if tag not in tags:
        tags.append(tag)
    lines = ["---", "library_name: yamame"]
    if source.startswith(_ZOO):
        lines.append(f"license: {_ZOO_LICENSE}")
    lines += [f"pipeline_tag: {_TASK}", "tags:", *[f"- {_text(tag)}" for tag in tags]]
    metrics = _metrics(saved.about)
    if metrics:
        evaluated_on = saved.about.get("evaluated_on")
        tasks = f"{name}, {evaluated_on}" if evaluated_on else name
        lines += [
            "model-index:",
            f"- name: {_text(source.removeprefix(_ZOO) or 'agent')}",
            "  results:",
            "  - task:",
            f"      type: {_TASK}",
            f"      name: {_TASK}",
            "    dataset:",
            f"      type: {_text(tag)}",
            f"      name: {_text(tasks)}",
            "    metrics:",
            *metrics,
        ]
    return "\n".join([*lines, "---"])


def environment_name(node: Any) -> str:
    """Return the id of an environment, or the name of its class.

    >>> environment_name({"_target_": "yamame_envs.POPGym", "id": "AutoencodeEasy"})
    'AutoencodeEasy'
    >>> environment_name({"_target_": "yamame_envs.Wind"})
    'Wind'
    """
    if not isinstance(node, dict):
        return "unknown"
    identity = node.get("id")
    if isinstance(identity, str) and identity.strip():
        return identity
    return str(node.get("_target_", "unknown")).rpartition(".")[2]


def _metrics(about: dict[str, Any]) -> list[str]:
    """Return the lines of the finite results of an evaluation."""
    lines = []
    for name, value in (about.get("results") or {}).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # An integer may be larger than all floats; it is finite.
        if not is_number or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if name.startswith(_REPORTED):
            lines += [
                f"    - type: {_text(_METRICS.get(name, name))}",
                f"      name: {_text(name)}",
                f"      value: {_number(value)}",
            ]
    return lines


def _number(value: float) -> str:
    """Format a number; readers of YAML 1.1 take ``1e-05`` for a text, and ``1.0e-05`` not."""
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    mantissa, exponent, power = text.partition("e")
    return text if "." in mantissa or not exponent else f"{mantissa}.0e{power}"


def _slug(text: str) -> str:
    """Return a text as an identifier of a hub: letters, digits, dots, underscores and dashes.

    >>> _slug("my lab: Käse/v1")
    'my-lab-K-se-v1'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:64] or "unknown"


def _text(text: object) -> str:
    """Return a text of one line as a string of YAML.

    >>> print(_text("a: 'b'\\n---"), _text("<img>"))
    "a: 'b' ---" "\\u003cimg\\u003e"
    """
    line = " ".join(printable(str(text)).split())[:_LONGEST_TEXT]
    quoted = json.dumps(line, ensure_ascii=False)
    # A hub may show texts on its page, where they must not become links, cells or HTML.
    return re.sub(r"[][()<>&|`]", lambda found: f"\\u{ord(found[0]):04x}", quoted)
