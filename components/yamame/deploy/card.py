"""The model card of an agent: what it was trained for, how well it did there, how it is used."""

from collections.abc import Iterator
from typing import Any

from torchrl.data import Composite, TensorSpec

from yamame.agent.assembly import learned_gammas
from yamame.deploy.saved import SavedAgent
from yamame.keys import CONTEXT, RELABELLING
from yamame.system.messages import format_value

_USE = """```python
import yamame

# Add trust=["mylab."] if a class of yours is part of the agent.
agent = yamame.load("{source}")
action = agent.act(observation)
action = agent.act(observation, reward=reward, done=done)
```"""


def model_card(saved: SavedAgent, source: str) -> str:
    """Markdown, with the front matter that model hubs read; ``source`` is what `yamame.load`
    takes.
    """
    config, about = saved.config, saved.about
    facts = {
        "environment": described(config.get("env")),
        "trials": described(config["trials"]) if config.get("trials") else "one an episode",
        "memory": described(config["encoder"]),
        "discount factors": ", ".join(map(str, learned_gammas(config))),
        "horizon": format_value(saved.interface.horizon),
        "seed of training": format_value(config.get("seed")),
        "steps of training": format_value(about.get("step")),
        **_costs(about),
        "parameters": f"{sum(value.numel() for value in saved.weights.values()):,}",
    }
    results = about.get("results") or {}
    parts = [
        "---\nlibrary_name: yamame\ntags: [reinforcement-learning, in-context-learning]\n---",
        f"# An in-context agent for {_name(config.get('env'))}",
        "It acts from its whole history. Trained by Yamame, after AMAGO (arXiv 2310.09971).",
        _table(("what", "value"), facts),
        "## Evaluation",
        *_evaluated(about),
        *_num_tasks(results),
        _table(("metric", "value"), {name: _number(value) for name, value in results.items()})
        if results
        else "No evaluation is known of these weights.",
        "## What it sees and does",
        _table(("entry", "spec"), dict(_entries(saved.interface.observation_spec))),
        f"It answers with {_spec(saved.interface.action_spec)}.",
        "## Use",
        _USE.format(source=source),
    ]
    return "\n\n".join(parts) + "\n"


def described(value: Any) -> str:
    """A node of a configuration in one line.

    >>> described({"_target_": "yamame_envs.Wind", "time_limit": 30, "workers": None})
    'Wind(time_limit=30)'
    """
    if not isinstance(value, dict) or "_target_" not in value:
        return format_value(value)
    names = [name for name in value if not name.startswith("_") and name != "workers"]
    return f"{_name(value)}({', '.join(f'{name}={described(value[name])}' for name in names)})"


def _num_tasks(results: dict[str, Any]) -> list[str]:
    """A sentence with the numbers of episodes and of different tasks, where the evaluation knows
    both.
    """
    if not {"num_episodes", "num_tasks"} <= results.keys():
        return []
    unit = "tasks" if "intervals_over_tasks" in results else "episodes"
    episodes, tasks = int(results["num_episodes"]), int(results["num_tasks"])
    return [f"Episodes: {episodes}, different tasks: {tasks}. The intervals are over {unit}."]


def _costs(about: dict[str, Any]) -> dict[str, str]:
    """What is known of the run that trained it."""
    costs = {"revision": about.get("revision"), "CPU-seconds of its run": about.get("cpu_s")}
    return {name: _number(value).strip("\"'") for name, value in costs.items() if value is not None}


def _evaluated(about: dict[str, Any]) -> list[str]:
    """Returns a sentence on the tasks of the evaluation, if there was one."""
    if about.get("evaluated_on"):
        return [f"Evaluated on {about['evaluated_on']}."]
    if about.get("results"):  # saved before runs noted it
        return ["It is not known whether training met the evaluated tasks."]
    return []


def _name(node: Any) -> str:
    return (
        str(node["_target_"]).rpartition(".")[2]
        if isinstance(node, dict) and "_target_" in node
        else "?"
    )


def _table(head: tuple[str, str], rows: dict[str, str]) -> str:
    lines = [head, ("---", "---"), *rows.items()]
    return "\n".join(f"| {name} | {str(value).replace('|', ' ')} |" for name, value in lines)


def _entries(spec: Composite) -> Iterator[tuple[str, str]]:
    hidden = {*CONTEXT, *RELABELLING, "success", "task_seed", "aborted"}
    for key in spec.keys(True, True):
        if key not in hidden:
            yield key if isinstance(key, str) else ".".join(key), _spec(spec[key])


def _spec(spec: TensorSpec) -> str:
    number = f" below {int(spec.space.n)}" if hasattr(getattr(spec, "space", None), "n") else ""
    return f"{str(spec.dtype).removeprefix('torch.')} {tuple(spec.shape)}{number}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)
