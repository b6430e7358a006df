"""Train on every task of a suite with the same settings, and score or compare the results.

    yamame leaderboard dev                               # --help lists the keys
    yamame leaderboard dev seeds=[0,1,2] cpu_s=[60] tasks=[tmaze_100,lake_4x4]
    yamame leaderboard dev page=gru.md baseline=leaderboard/dev-cpu.csv \
        overrides=[encoder=gru]
    yamame leaderboard popgym tier=gpu only_check=true   # print the commands
    yamame leaderboard popgym tier=cpu_30min compare=[recurrent_ppo]

The suite's file in conf/suite has the tasks and the numbers to compare with, with their sources. A
run scores 0 for the result of random actions and 1 for the best known one (`yamame.report.scores`).
Runs are those of `yamame train`: a finished run is not repeated, an interrupted one is
resumed, and one that fails does not stop the others. The table of the page is a marked one
(`yamame.report.tables`); the CSV file beside it has a row per run.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("leaderboard", resumable=True)

# isort: split
from pathlib import Path

import yamame
from yamame.cli.app import main
from yamame.cli.nodes import instantiate
from yamame.cli.settings import LeaderboardConfig
from yamame.report import RunReader, make_sections, place_table, scores, write_tables
from yamame.report.markdown import plain_table
from yamame.report.scores import ScoredRun
from yamame.report.terminal import print_columns
from yamame.runs import suites
from yamame.runs.comparisons import build_learner
from yamame.runs.suites import PlannedRuns
from yamame.system.installed import recipe_command
from yamame.system.messages import print_stderr, print_stdout


def leaderboard(cfg: LeaderboardConfig) -> Path | None:
    """Check all runs, train those that are missing, write page and CSV, and return the page.

    With ``only_check`` the commands are printed instead.
    """
    planned = suites.plan(cfg)
    for runs in planned:
        yamame.compose(*runs.overrides)  # a mistake is found before hours of training
    baseline = suites.baseline_of(cfg, planned)
    for node in cfg.compare.values():
        build_learner(node)  # raises if a package is missing
    if cfg.only_check:
        several = ["-m"] if len(cfg.seeds) > 1 else []
        for runs in planned:
            seeds = f"seed={','.join(map(str, cfg.seeds))}"
            print_stdout(" ".join([recipe_command("train"), *several, *runs.overrides, seeds]))
        return None

    results: list[ScoredRun] = []
    compared: dict[str, list[ScoredRun]] = {name: [] for name in cfg.compare}
    reported = set[str]()
    for runs in planned:
        for seed in cfg.seeds:
            result = suites.train_planned(cfg, runs, seed, reported)
            if result is not None:
                results.append(result)
            for name in compared:
                result = suites.compare_planned(cfg, name, runs, seed, reported)
                if result is not None:
                    compared[name].append(result)
    num_done = sum(map(len, [results, *compared.values()]))
    num_failed = len(planned) * len(cfg.seeds) * (1 + len(compared)) - num_done
    if num_failed > len(reported):
        print_stderr(f"leaderboard: {num_failed} runs failed, for the reasons above")
    if not results:
        raise SystemExit(1)

    page = suites.page_of(cfg)
    write_page(cfg, page, planned, results, baseline, compared)
    if num_failed:
        raise SystemExit(1)
    return page


def write_page(
    cfg: LeaderboardConfig,
    page: Path,
    planned: list[PlannedRuns],
    results: list[ScoredRun],
    baseline: list[ScoredRun],
    compared: dict[str, list[ScoredRun]],
) -> None:
    """Write the page and the CSV file beside it, and print tasks, scores and the comparison."""
    resampling = instantiate(cfg.resampling)
    tables = {"score": scores.mean_rows(scores.mean_scores(results, resampling))}
    for name, others in {str(cfg.baseline): baseline, **compared}.items():
        found = scores.differences(results, others, resampling)
        if found:
            tables[f"difference to {name}"] = scores.difference_rows(found)
    texts = [f"{title}:\n\n{plain_table(rows)}" for title, rows in tables.items() if rows]

    suite = cfg.suite.title
    title = f"{suite} ({suites.tier_name(cfg)})"
    table = suites.table_of(cfg, planned, results, compared)
    place_table(page, title, table, suites.notes_of(cfg, planned), scores="\n\n".join(texts))
    reader = RunReader.open(cfg.store.tracking_uri, cfg.store.experiment)
    sections, _ = make_sections(reader.read())
    not_run = write_tables([page], sections, resampling)
    scores.write_scores(suites.csv_file(page), results)

    print_columns(title, scores.run_rows(results))
    for name, others in compared.items():
        file = suites.csv_file(page, name)
        scores.write_scores(file, others)
        print_columns(f"{title}: {name} ({file})", scores.run_rows(others))
    for heading, rows in tables.items():
        if rows:
            print_columns(heading, rows)
    print_stdout(*not_run, suites.csv_file(page), page)


if __name__ == "__main__":
    main(leaderboard, config_name="leaderboard", resumable=True)
