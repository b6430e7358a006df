"""Make a page of MLflow runs: settings, results, comparisons, and commands that repeat them.

    yamame report [key=value]                    # --help lists the keys
    yamame report runs=[maze-*,tmaze-0] directory=report/mazes
    yamame report strict=true                    # exit status 1 if a result is too low
    yamame report evidence=docs/results tables=[README.md,docs/benchmarks.md]
    # without a store
    yamame report evidence=docs/results tables=README.md store.tracking_uri=null

The page <directory>/index.html needs no other file. Pictures of evaluations (PNG), videos and
numbers (CSV) lie beside it. Only runs that have finished by themselves count; the others are listed
with the reason.

``evidence`` is a folder of CSV files to which the numbers of these runs are added
(`yamame.report.evidence`). ``tables``, the marked tables of Markdown pages, are filled from it
(`yamame.report.tables`).
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("report")

# isort: split
from pathlib import Path

from yamame.checks import SettingError
from yamame.cli.app import main
from yamame.cli.nodes import instantiate
from yamame.cli.settings import ReportConfig
from yamame.files.run_directory import check_folder
from yamame.report import (
    Resampling,
    RunReader,
    Section,
    build_content,
    check_pages,
    falls_short,
    make_sections,
    read_evidence,
    write_evidence,
    write_report,
    write_tables,
)
from yamame.system.messages import print_stdout
from yamame.tracking.mlflow_store import absolute_uri
from yamame.tracking.pages import ui_command


def report(cfg: ReportConfig) -> Path:
    """Write the report and print verdicts, runs that do not count, and the path of the page.

    Without a store, tables are filled from evidence and the folder of evidence is returned.
    """
    resampling = instantiate(cfg.resampling)
    check_evidence(cfg)
    if cfg.store.tracking_uri is None:
        commands = fill_tables(cfg, [], resampling)
        print_stdout(*commands, cfg.evidence)
        if cfg.strict and commands:
            raise SystemExit(1)
        return Path(cfg.evidence)

    check_folder(cfg.directory, "directory")
    reader = RunReader.open(cfg.store.tracking_uri, cfg.store.experiment)
    sections, left_out = make_sections(reader.read(cfg.runs), base=cfg.base)
    content = build_content(
        sections,
        left_out,
        thresholds=list(cfg.thresholds),
        metric=cfg.metric,
        resampling=resampling,
        artifact=reader.artifact,
    )
    # Tables first: an error in them is found before anything is written.
    commands = fill_tables(cfg, sections, resampling)
    page = write_report(content, Path(cfg.directory), served_by=server_command(cfg))

    lines = [str(verdict) for verdict in content.verdicts]
    for run, reason in content.left_out:
        lines.append(f"not counted: {run.name} ({run.run_id}): {reason}")
    for run, problem in content.problems:
        lines.append(f"cannot be read: {run.name} ({run.run_id}): {problem}")
    # A name with a new line would look like two results.
    print_stdout(*(" ".join(line.split()) for line in lines))
    print_stdout(*commands, page)
    if cfg.strict and (commands or falls_short(content.verdicts)):
        raise SystemExit(1)
    return page


def server_command(cfg: ReportConfig) -> str | None:
    """Return the command that shows the runs in MLflow; None if a server is always there."""
    store = absolute_uri(cfg.store.tracking_uri)
    if not ui_command(store):
        return None
    # With the store's address, so that it works in every folder.
    return f"mlflow ui --backend-store-uri {store}"


def fill_tables(cfg: ReportConfig, sections: list[Section], resampling: Resampling) -> list[str]:
    """Add runs to the evidence and fill tables from it.

    Returns:
        A line for every command that is still to be run.
    """
    if cfg.evidence is None:
        return []
    folder = Path(cfg.evidence)
    if sections:
        for line in write_evidence(folder, sections):
            print_stdout(line)
    # The evidence holds runs of other machines, too.
    all_sections, _ = make_sections(read_evidence(folder))
    return write_tables(pages_of(cfg), all_sections, resampling)


def pages_of(cfg: ReportConfig) -> list[Path]:
    """Return the pages whose tables are filled."""
    pages = [cfg.tables] if isinstance(cfg.tables, str) else cfg.tables or []
    return [Path(page) for page in pages]


def check_evidence(cfg: ReportConfig) -> None:
    """Check that tables have evidence, that pages have tables, and that there is a source of runs.

    Raises:
        SettingError: One of them is missing.
    """
    if cfg.evidence is not None:
        check_folder(cfg.evidence, "evidence")
    elif cfg.tables:
        condition = "be null without evidence"
        remedy = "give it as evidence=docs/results"
        raise SettingError("tables", cfg.tables, condition, remedy=remedy)
    elif cfg.store.tracking_uri is None:
        raise SettingError("store.tracking_uri", None, "be a store where there is no evidence")
    check_pages(pages_of(cfg))


if __name__ == "__main__":
    main(report, config_name="report")
