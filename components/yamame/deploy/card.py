"""Model card of an agent: its training, its evaluation, its observations and actions, its use.

The configuration and the results may be a stranger's: their texts stay texts, and become no HTML,
link or picture on the page that a hub makes of the card.
"""

import html
import re
from typing import Any

from torchrl.data import Composite, TensorSpec

from yamame.agent.assembly import learned_gammas
from yamame.agent.discounts import discount_horizon
from yamame.deploy.front_matter import environment_name, front_matter
from yamame.deploy.interface import dotted, dtype_name
from yamame.deploy.saved import SavedAgent
from yamame.keys import CONTEXT, RELABELLING
from yamame.system.messages import format_value, printable

_USE = """```python
import yamame

# Add trust=["mylab."] if a class of yours is part of the agent.
agent = yamame.load("{source}")
action = agent.act(observation)
action = agent.act(observation, reward=reward, done=done)
```"""
_HIDDEN = {*CONTEXT, *RELABELLING, "success", "task_seed", "played_seed", "aborted"}
"""Entries of an environment that `DeployedAgent.act` does not take."""


def model_card(saved: SavedAgent, source: str) -> str:
    """Return a model card in Markdown, with the front matter that model hubs read.

    Args:
        saved: The agent.
        source: Argument of `yamame.load` in the example of its use.
    """
    interface = saved.interface
    parts = [
        front_matter(saved, source),
        f"# An in-context agent for {as_text(environment_name(saved.config.get('env')))}",
        f"The agent acts from its whole history. It was trained by {_origin(saved)}.",
        _table(("setting", "value"), _facts(saved)),
        "## Evaluation",
        *_evaluation(saved.about),
        "## Observations and actions",
        _table(("entry", "spec"), _entries(interface.observation_spec)),
        f"The action is {as_text(_describe_spec(interface.action_spec))}.",
        "## Use",
        _USE.format(source=source),
    ]
    return "\n\n".join(parts) + "\n"


def _origin(saved: SavedAgent) -> str:
    """Return what trained the agent."""
    origin = saved.about.get("origin")
    if origin is None:
        return "Yamame, an implementation of AMAGO (arXiv 2310.09971)"
    return f"{as_text(origin)} (arXiv 2310.09971), and imported by Yamame"


def described(value: Any) -> str:
    """Return a node of a configuration in one line.

    >>> described({"_target_": "yamame_envs.Wind", "time_limit": 30, "workers": None})
    'Wind(time_limit=30)'
    """
    if not isinstance(value, dict) or "_target_" not in value:
        return format_value(value)
    settings = []
    for name, setting in value.items():
        # The number of worker processes changes the speed alone.
        if not name.startswith("_") and name != "workers":
            settings.append(f"{name}={described(setting)}")
    return f"{_class_name(value)}({', '.join(settings)})"


def _facts(saved: SavedAgent) -> dict[str, str]:
    """Return the rows of the table on the agent and its training."""
    config = saved.config
    about = saved.about
    horizon = discount_horizon(saved.interface.observation_spec)
    gammas = learned_gammas(config, horizon)
    num_parameters = sum(value.numel() for value in saved.weights.values())
    facts = {
        "environment": described(config.get("env")),
        "memory": described(config["encoder"]),
        "discount factors": ", ".join(map(str, gammas)),
        "horizon": format_value(saved.interface.horizon),
        "seed of training": format_value(config.get("seed")),
        "steps of training": format_value(about.get("step")),
    }
    if config.get("trials"):
        facts["trials"] = described(config["trials"])
    # Only the summary of a run has it, and early runs did not write it.
    if about.get("cpu_s") is not None:
        facts["CPU-seconds of its run"] = _format_number(about["cpu_s"])
    versions = about.get("versions")
    if isinstance(versions, dict):
        names = {"processor": "cpu", "PyTorch": "torch", "Yamame": "yamame"}
        facts |= {row: str(versions[name]) for row, name in names.items() if name in versions}
    facts["parameters"] = f"{num_parameters:,}"
    return facts


def _evaluation(about: dict[str, Any]) -> list[str]:
    """Return the paragraphs on the evaluation of the weights."""
    results = about.get("results")
    paragraphs = []
    if about.get("evaluated_on"):
        paragraphs.append(f"Evaluated on {as_text(about['evaluated_on'])}.")
    elif results:
        # Early runs did not save a description of the evaluated tasks.
        paragraphs.append("It is not recorded whether training included the evaluated tasks.")
    if not results:
        paragraphs.append("The file holds no evaluation of these weights.")
        return paragraphs

    if "num_episodes" in results and "num_tasks" in results:
        episodes = int(results["num_episodes"])
        tasks = int(results["num_tasks"])
        unit = "tasks" if "intervals_over_tasks" in results else "episodes"
        paragraphs.append(
            f"Episodes: {episodes}, different tasks: {tasks}. The intervals are over {unit}."
        )
    rows = {name: _format_number(value) for name, value in results.items()}
    paragraphs.append(_table(("metric", "value"), rows))
    return paragraphs


def _class_name(node: Any) -> str:
    """Return the name of the class of a configuration node."""
    if not isinstance(node, dict) or "_target_" not in node:
        return "?"
    return str(node["_target_"]).rpartition(".")[2]


def _table(head: tuple[str, str], rows: dict[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "| --- | --- |"]
    for name, value in rows.items():
        lines.append(f"| {as_text(name)} | {as_text(value)} |")
    return "\n".join(lines)


def as_text(value: object) -> str:
    """Return Markdown that shows a value as it is, in one line.

    >>> print(as_text("a|b <img> [link](http://x)"))
    a\\|b &lt;img&gt; [link\\](http://x)
    """
    line = " ".join(printable(str(value)).split())
    # A bar would end the cell of a table, backticks make code, and brackets links and pictures.
    return re.sub(r"([\\`|]|\](?=[(\[:]))", r"\\\1", html.escape(line, quote=False))


def _entries(spec: Composite) -> dict[str, str]:
    """Return the specs of the entries that `DeployedAgent.act` takes, by name."""
    entries = {}
    for key in spec.keys(True, True):
        if key not in _HIDDEN:
            entries[dotted(key)] = _describe_spec(spec[key])
    return entries


def _describe_spec(spec: TensorSpec) -> str:
    text = f"{dtype_name(spec)} {tuple(spec.shape)}"
    space: Any = getattr(spec, "space", None)
    return f"{text} below {int(space.n)}" if hasattr(space, "n") else text


def _format_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)
