"""Tables of a probe of needed memory (recipes/probe.py)."""

from collections.abc import Sequence
from typing import Any

from yamame.evaluation import NeededMemory
from yamame.report.terminal import print_columns


def print_needed_memory(title: str, found: NeededMemory, cpu_s: Sequence[float]) -> None:
    """Print the scores of all windows, the verdict, and what the intervals mean.

    Args:
        title: Title of the table.
        found: The verdict.
        cpu_s: CPU-seconds that training took, per window.
    """
    num_seeds = len(found.reached[0].seeds)
    best = max(found.reached, key=lambda one: one.score.value)  # the shortest of equals
    rows = []
    for one, seconds in zip(found.reached, cpu_s, strict=True):
        row: dict[str, Any] = {"timesteps seen": "all" if one.window is None else one.window}
        row["score"] = str(one.score)
        row["behind the best"] = "-" if one is best else str(one.behind)
        if num_seeds > 1:
            row["standing"] = one.standing
            row["by seed"] = ", ".join(f"{value:.3g}" for value in one.seeds)
        row["CPU-s"] = round(seconds)
        rows.append(row)
    rows.append({"timesteps seen": "random", "score": str(found.random)})
    print_columns(title, rows)

    print(found)
    if num_seeds > 1:
        print(
            f"intervals: over {num_seeds} seeds (Student), over tasks where seeds do not differ; "
            "between windows all at once (Tukey)"
        )
    else:
        print(
            "intervals: over tasks, of these agents alone; for a verdict train more, "
            "as probe.seeds=[0,1,2]"
        )
    if found.outcome != "needed":
        # An agent that has not learnt to use its memory looks like one that does not need it.
        print(
            "memory that no agent has learnt to use yet shows no difference: see budget.env_steps"
        )
