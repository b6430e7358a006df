"""Makes one page of MLflow runs: what was run, what came out and when, how groups compare, how to
repeat it.

    python recipes/report.py [key=value]                      # --help lists the keys
    python recipes/report.py runs=[maze-*,tmaze-0] directory=report/mazes
    python recipes/report.py strict=true                      # exit status 1 where less came out than was expected
    python recipes/report.py evidence=docs/results tables=[README.md,docs/results.md]
    python recipes/report.py evidence=docs/results tables=README.md store.tracking_uri=null   # without a store

The page <directory>/index.html needs nothing else. Pictures of evaluations (PNG), videos and
numbers (CSV) lie beside it. Only runs that ended by themselves count; the others are listed with
the reason.

``evidence`` is a folder of CSV files to which the numbers of these runs are added
(`yamame.report.evidence`), and from which ``tables``, the marked tables of Markdown pages, are
filled (`yamame.report.tables`).
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    answer("report")  # prints help and usage errors before torch is imported

# isort: split
from pathlib import Path

from omegaconf import DictConfig
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.nodes import instantiate
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
from yamame.tracking.mlflow_store import absolute_uri
from yamame.tracking.pages import ui_command


def report(cfg: DictConfig) -> Path:
    """The recipe: reads, sorts, computes and writes; then prints the verdicts and the path of the
    page.

    Without a store it fills tables from evidence, and returns the folder of that.
    """
    resampling = instantiate(cfg.resampling)
    check_thresholds(list(cfg.thresholds))
    check_evidence(cfg)
    if cfg.store.tracking_uri is None:
        to_run = fill_tables(cfg, [], resampling)
        print(*to_run, cfg.evidence, sep="\n")
        if cfg.strict and to_run:
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
    store = absolute_uri(cfg.store.tracking_uri)
    served_by = (
        ui_command(store) and f"mlflow ui --backend-store-uri {store}"
    )  # from whatever folder
    to_run = fill_tables(cfg, sections, resampling)
    page = write_report(content, Path(cfg.directory), served_by=served_by)
    for verdict in content.verdicts:
        print(verdict)
    for run, reason in left_out:
        print(f"not counted: {run.name} ({run.run_id}): {reason}")
    for run, problem in content.problems:
        print(f"cannot be read: {run.name} ({run.run_id}): {problem}")
    print(*to_run, page, sep="\n")
    if cfg.strict and (to_run or falls_short(content.verdicts)):
        raise SystemExit(1)
    return page


def fill_tables(cfg: DictConfig, sections: list[Section], resampling: Resampling) -> list[str]:
    """Adds runs to the evidence and fills tables from it; returns a line for every command that is
    still to be run.
    """
    if cfg.evidence is None:
        return []
    folder = Path(cfg.evidence)
    if sections:
        for line in write_evidence(folder, sections):
            print(line)
    kept, _ = make_sections(read_evidence(folder))
    return write_tables(pages_of(cfg), kept, resampling)


def pages_of(cfg: DictConfig) -> list[Path]:
    """Return the pages whose tables are filled."""
    pages = [cfg.tables] if isinstance(cfg.tables, str) else cfg.tables or []
    return [Path(page) for page in pages]


def check_evidence(cfg: DictConfig) -> None:
    """Refuses tables without evidence to fill them from, pages without tables, and a report of
    nothing.
    """
    if cfg.evidence is not None:
        check_folder(cfg.evidence, "evidence")
    elif cfg.tables:
        raise UsageError(
            "tables: must have a folder to be filled from, as evidence=docs/results, got evidence=null"
        )
    elif cfg.store.tracking_uri is None:
        raise UsageError("store.tracking_uri: must be a store where there is no evidence, got null")
    check_pages(pages_of(cfg))


def check_thresholds(thresholds: list[float]) -> None:
    """Refuses what is no fraction."""
    for value in thresholds:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"thresholds: must be positive numbers, got {value!r}")


if __name__ == "__main__":
    main(report, config_name="report")
