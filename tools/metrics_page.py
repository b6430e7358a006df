"""Write docs/metrics.md, the meaning of all logged metrics, from `yamame.tracking.metrics`.

    python tools/metrics_page.py

A test fails if the page is not up to date.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from yamame.tracking.metrics import METRICS
from yamame.tracking.metrics.entry import Metric

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
INTRODUCTION = """\
# Metrics

<!-- written by tools/metrics_page.py -->

Look up the definition, the unit and the expected values of a logged metric.

```sh
mlflow ui       # all curves of all runs, in the browser
yamame report   # pictures and tables of runs side by side
```

`yamame.tracking.read_metrics("runs/mine")` returns the same numbers in Python.

Look at these curves first:

"""
CURVES = (
    (
        "`eval/success_mean`, or `eval/return_mean`",
        "rises",
        "[When an agent does not learn](howto/does_not_learn.md)",
    ),
    (
        "`train/outcome`",
        "rises before the evaluations do",
        "no reward is found: try an easier version first, or "
        "[relabelling](tutorials/4_relabelling.md)",
    ),
    (
        "`train/td_error` relative to `train/return_std`",
        "well below 1",
        "the critics have not learned: more updates, or a smaller `optimizer.lr`",
    ),
    (
        "`train/entropy`",
        "falls slowly from `ln(number of actions)`",
        "at that value, the policy acts at random",
    ),
    (
        "`train/overfitting`",
        "about 1",
        "above 2: fewer updates, or more episodes",
    ),
    (
        "`eval/return_mean_trial_<i>`",
        "rises with the trial i",
        "equal for all i: the agent does not use its memory ([diagnose](howto/diagnose.md))",
    ),
)
"""Curves to look at first: name, values of a run in order, and the cause or cure otherwise."""
TERMS = """\
Multiplied rewards are the environment's rewards times `agent.loss.reward_multiplier`. The acting
discount factor is the last of `agent.gammas`.

Entries returned by a custom loss, collector or curriculum are logged under the same prefixes.
"""
SECTIONS = {
    "eval/": (
        "Evaluations",
        "Logged at each evaluation, over complete episodes of held-out tasks. `evaluation.json` "
        "and the report use the same names without the prefix.",
    ),
    "train/": (
        "Training",
        "Logged after each iteration, as means over the updates since the previous entry and over "
        "all processes. In the formulas, Q is a critic's value of the taken action, y its target, "
        "pi the policy and E_pi the mean over its actions. Means over transitions exclude padding. "
        "A term of the loss is absent if its coefficient is 0. `yamame ppo` logs the metrics from "
        "`train/loss_objective` on.",
    ),
    "collector/": (
        "Collecting",
        "Logged after each iteration. All except the first two are logged only with "
        "`collector=ray` ([several machines](scale.md)).",
    ),
    "curriculum/": (
        "Tasks",
        "Logged after each iteration with [`curriculum=plr`](howto/curriculum.md).",
    ),
    "objective": (
        "Sweeps",
        "Logged by the parent run of a sweep. It also logs `eval/success_mean`, "
        "`eval/return_mean`, `cost/env_steps` and `cost/cpu_s`, averaged over the last values of "
        "the jobs that ended.",
    ),
    "cost/": ("Costs", "Logged at each evaluation."),
    "system/": (
        "Machine",
        "Sampled at most every five seconds while metrics are logged.",
    ),
    "offline/": (
        "Before the first step",
        "Logged every 100 updates with `schedule.offline_updates` ([data](data.md)).",
    ),
    "source/": (
        "Distillation",
        "Logged by `yamame distill` after each round of collecting, by environment steps.",
    ),
}
"""Heading and introduction of every prefix, in the order of the page."""
BEGIN = "<!-- constants: components/yamame/tracking/metrics/__init__.py -->"
END = "<!-- end of constants -->"
"""Marks of a table whose numbers are those of definitions, and not results."""
FURTHER = {"objective": ("mean/", "best/")}
"""Further prefixes of a section."""


def page() -> str:
    """Return the text of the page."""
    curves = table(("curve", "healthy", "otherwise"), CURVES)
    parts = [f"{INTRODUCTION}{curves}", TERMS]
    for prefix, (heading, introduction) in SECTIONS.items():
        prefixes = (prefix, *FURTHER.get(prefix, ()))
        rows = [row(metric) for metric in METRICS if metric.name.startswith(prefixes)]
        metrics = table(("metric", "meaning", "unit", "values"), rows)
        parts.append(f"## {heading}\n\n{introduction}\n\n{BEGIN}\n\n{metrics}\n{END}\n")
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cells in rows:
        # A bar would end the cell.
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join([*lines, ""])


def row(metric: Metric) -> list[str]:
    """Return the cells of a metric."""
    names = "<br>".join(f"`{name}`" for name in metric.names)
    meaning = metric.meaning[0].upper() + metric.meaning[1:]
    return [names, f"*{meaning}.* {metric.definition}", metric.unit, metric.reading]


if __name__ == "__main__":
    PAGE.write_text(page())
