"""Train on every task of a suite with the same settings, and compare with published numbers.

    python recipes/leaderboard.py popgym tier=cpu                   # --help lists the keys
    python recipes/leaderboard.py popgym tier=gpu only_check=true   # print the commands
    python recipes/leaderboard.py popgym tier=cpu overrides=[encoder=gru] page=table.md

The suite's file in conf/suite has the tasks and the published numbers with their sources. Runs are
those of `python recipes/train.py`: a finished task is not run again, an interrupted one is resumed,
and a task that fails does not stop the others. The table is a marked one (`yamame.report.tables`):
the verdict is the position of the best evaluation above, within or below the published number.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("leaderboard", resumable=True)

# isort: split
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yamame
from yamame.checks import require_setting
from yamame.cli.app import main
from yamame.cli.failures import is_reported, report
from yamame.cli.nodes import instantiate, plain
from yamame.cli.settings import LeaderboardConfig
from yamame.report import RunReader, make_sections, place_table, write_tables
from yamame.runs.several import train_or_resume
from yamame.system.installed import recipe_command
from yamame.system.messages import described, print_stderr, print_stdout
from yamame.system.user_code import formatted

# Columns that are computed, left and right of the published numbers.
RESULTS = ("at the end", "best", "verdict")
COSTS = ("CPU-s", "steps")


def leaderboard(cfg: LeaderboardConfig) -> Path | None:
    """Check all runs, train those that are missing, write the table and return its page.

    With ``only_check`` the commands are printed instead.
    """
    suite = plain(cfg.suite)
    tier = tier_of(cfg)
    commands = {}
    for task in tier["tasks"]:
        arguments = [f"experiment={tier['experiment']}", f"{suite['key']}={task}", *cfg.overrides]
        yamame.compose(*arguments)  # a mistake is found before hours of training
        commands[str(task)] = arguments
    if cfg.only_check:
        for command in commands.values():
            seeds = f"seed={','.join(map(str, cfg.seeds))}"
            print_stdout(" ".join([recipe_command("train"), *command, seeds]))
        return None

    num_failed, reported = 0, set[str]()
    for command in commands.values():
        for seed in cfg.seeds:
            num_failed += not trained(cfg, command, seed, reported)
    if num_failed > len(reported):
        print_stderr(f"leaderboard: {num_failed} runs failed, for the reasons above")
    if num_failed == len(commands) * len(cfg.seeds):
        raise SystemExit(1)

    page = Path(cfg.page or f"leaderboard/{suite['title'].lower()}-{cfg.tier}.md")
    table = table_of(suite, commands, list(cfg.seeds))
    place_table(page, f"{suite['title']} ({cfg.tier})", table, notes_of(suite))
    reader = RunReader.open(cfg.store.tracking_uri, cfg.store.experiment)
    sections, _ = make_sections(reader.read())
    not_run = write_tables([page], sections, instantiate(cfg.resampling))
    print_stdout(*not_run, page)
    if num_failed:
        raise SystemExit(1)
    return page


def tier_of(cfg: LeaderboardConfig) -> dict[str, Any]:
    """Return the experiment and the tasks of the chosen tier.

    Raises:
        UsageError: The suite has no such tier.
    """
    tiers = plain(cfg.suite.tiers)
    require_setting("tier", cfg.tier, cfg.tier in tiers, f"be one of {', '.join(tiers)}")
    return tiers[cfg.tier]


def trained(cfg: LeaderboardConfig, command: list[str], seed: int, reported: set[str]) -> bool:
    """Train a run, or the rest of it, and return whether it is finished.

    An error is printed, unless it is in ``reported``, to which it is added: runs share mistakes.
    """
    store = [f"logger.{key}='{value}'" for key, value in plain(cfg.store).items()]
    try:
        train_or_resume(*command, f"seed={seed}", *store)
    except Exception as error:
        reason = described(error)
        if reason in reported:
            return False
        reported.add(reason)
        # Only a defect of this package needs a traceback.
        text = "; ".join(report(error)) if is_reported(error) else formatted(error)
        print_stderr(f"leaderboard: {' '.join(command)} seed={seed}: {text}")
        return False
    return True


def table_of(suite: Mapping[str, Any], commands: Mapping[str, list[str]], seeds: list[int]) -> str:
    """Return the marked table, without the numbers of runs."""
    published = suite["published"]
    head = ["task", "`python recipes/train.py ...`", *RESULTS, *published, *COSTS]
    lines = [head, ["---"] * len(head)]
    for task, command in commands.items():
        row = dict.fromkeys(head, "")
        row["task"] = task
        row["`python recipes/train.py ...`"] = f"`{' '.join(command)}`"
        for name, column in published.items():
            row[name] = cell(column, task)
        lines.append(list(row.values()))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)

    seed_list = ",".join(map(str, seeds))
    marker = f"seeds={seed_list}; typed={','.join(published)}; against={suite['against']}"
    return f"<!-- runs: {marker} -->\n\n{table}\n\n<!-- end of runs -->"


def cell(column: Mapping[str, Any], task: str) -> str:
    """Format a published number; in parentheses if it has other rules; empty without one."""
    value = column["values"].get(task)
    if value is None:
        return ""
    text = f"{value[0]:.3f} ± {value[1]:.3f}" if isinstance(value, list) else f"{value:.3f}"
    return f"({text})" if task.startswith(tuple(column["changed"])) else text


def notes_of(suite: Mapping[str, Any]) -> str:
    """Return the sources of the published numbers."""
    return "\n".join(
        f"- *{name}*: {column['source']}" for name, column in suite["published"].items()
    )


if __name__ == "__main__":
    main(leaderboard, config_name="leaderboard", resumable=True)
