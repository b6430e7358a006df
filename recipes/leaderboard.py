"""Trains on every task of a suite, all with one setting, and puts what comes out beside published
numbers.

    python recipes/leaderboard.py popgym tier=cpu                   # --help lists the keys
    python recipes/leaderboard.py popgym tier=gpu only_check=true   # what would be run
    python recipes/leaderboard.py popgym tier=cpu seeds=[0,1,2] overrides=[encoder=gru]
    page=table.md

The suite's file in conf/suite has the tasks and the published numbers with their sources. Runs are
those of `python recipes/train.py`: a task that is finished is not run again, one that was
interrupted goes on, and one that fails leaves the others alone. The table is a marked one
(`yamame.report.tables`): a verdict tells whether the best evaluation is above, within or below the
published number.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    answer("leaderboard", resumable=True)  # prints help and usage errors before torch is imported

# isort: split
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yamame
from omegaconf import DictConfig
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.nodes import instantiate, plain
from yamame.report import RunReader, make_sections, place_table, write_tables
from yamame.runs.several import train_or_resume
from yamame.system.installed import recipe_command
from yamame.system.messages import print_stderr

WRITTEN = ("at the end", "best", "verdict", "CPU-s", "steps")


def leaderboard(cfg: DictConfig) -> Path | None:
    """The recipe: checks all runs, does what is missing of them, and writes the table, whose page
    it returns.
    """
    suite, tier = plain(cfg.suite), tier_of(cfg)
    experiment, key = f"experiment={tier['experiment']}", suite["key"]
    commands = {str(task): [experiment, f"{key}={task}", *cfg.overrides] for task in tier["tasks"]}
    for command in commands.values():
        yamame.compose(*command)
    if cfg.only_check:
        for command in commands.values():
            print(recipe_command("train"), *command, f"seed={','.join(map(str, cfg.seeds))}")
        return None
    failed = [
        task
        for task, command in commands.items()
        for seed in cfg.seeds
        if not trained(cfg, command, seed)
    ]
    if len(failed) == len(commands) * len(cfg.seeds):
        raise SystemExit(1)
    name = f"{suite['title']} ({cfg.tier})"
    page = Path(cfg.page or f"leaderboard/{suite['title'].lower()}-{cfg.tier}.md")
    place_table(page, name, table_of(suite, commands, list(cfg.seeds)), notes_of(suite))
    sections, _ = make_sections(RunReader.open(cfg.store.tracking_uri, cfg.store.experiment).read())
    not_run = write_tables([page], sections, instantiate(cfg.resampling))
    print(*not_run, page, sep="\n")
    if failed:
        raise SystemExit(1)
    return page


def tier_of(cfg: DictConfig) -> dict[str, Any]:
    """The tasks that are asked for, and their experiment."""
    tiers = plain(cfg.suite.tiers)
    if cfg.tier not in tiers:
        raise UsageError(f"tier: must be one of {', '.join(tiers)}, got {cfg.tier}")
    return tiers[cfg.tier]


def trained(cfg: DictConfig, command: list[str], seed: int) -> bool:
    """Does what is left of a run; whether it is done. What it fails by is told."""
    store = [f"logger.{key}='{value}'" for key, value in plain(cfg.store).items()]
    try:
        train_or_resume(*command, f"seed={seed}", *store)
    except Exception as error:
        print_stderr(
            f"leaderboard: {' '.join(command)} seed={seed}: {type(error).__name__}: {error}"
        )
        if not isinstance(error, UsageError):
            print_stderr(traceback.format_exc())
        return False
    return True


def table_of(suite: Mapping[str, Any], commands: Mapping[str, list[str]], seeds: list[int]) -> str:
    """The marked table, without the numbers of runs."""
    published, against = suite["published"], suite["against"]
    first, last = WRITTEN[:3], WRITTEN[3:]
    head = ["task", "`python recipes/train.py ...`", *first, *published, *last]
    rows = [
        [
            task,
            f"`{' '.join(command)}`",
            *[""] * len(first),
            *(cell(column, task) for column in published.values()),
            *[""] * len(last),
        ]
        for task, command in commands.items()
    ]
    lines = [head, ["---"] * len(head), *rows]
    marker = f"seeds={','.join(map(str, seeds))}; typed={','.join(published)}; against={against}"
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"<!-- runs: {marker} -->\n\n{table}\n\n<!-- end of runs -->"


def cell(column: Mapping[str, Any], task: str) -> str:
    """A published number; in parentheses where it is of other rules; nothing where there is
    none.
    """
    value = column["values"].get(task)
    if value is None:
        return ""
    text = f"{value[0]:.3f} ± {value[1]:.3f}" if isinstance(value, list) else f"{value:.3f}"
    return f"({text})" if task.startswith(tuple(column["changed"])) else text


def notes_of(suite: Mapping[str, Any]) -> str:
    """Where the published numbers stand."""
    return "\n".join(
        f"- *{name}*: {column['source']}" for name, column in suite["published"].items()
    )


if __name__ == "__main__":
    main(leaderboard, config_name="leaderboard", resumable=True)
