"""Makes one page of MLflow runs: what was run, what came out and when, how groups compare, how to repeat it.

    python recipes/report.py [key=value]                      # --help lists the keys
    python recipes/report.py runs=[maze-*,tmaze-0] directory=report/mazes
    python recipes/report.py strict=true                      # exit status 1 where less came out than was expected
    python recipes/report.py tables=[README.md,docs/results.md]   # the numbers of their marked tables, too

The page <directory>/index.html needs nothing else. Pictures of evaluations (PNG), videos and numbers (CSV) lie beside
it. Only runs that ended by themselves count; the others are listed with the reason. `yamame.report.tables` says how a
table of a page is marked.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # of a checkout that is not installed

import yamame.cli.front
import yamame.cli.threads  # sets what torch reads when it is imported

if __name__ == "__main__":
    yamame.cli.front.answer("report")

# isort: split
from pathlib import Path

from omegaconf import DictConfig
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.nodes import instantiate
from yamame.files.run_directory import check_folder
from yamame.report import RunReader, build_content, falls_short, make_sections, write_report, write_tables
from yamame.tracking.mlflow_store import absolute_uri
from yamame.tracking.pages import ui_command


def report(cfg: DictConfig) -> Path:
    """The recipe: reads, sorts, computes, writes; then tells the verdicts and the page, whose path it returns."""
    resampling = instantiate(cfg.resampling)
    check_thresholds(list(cfg.thresholds))
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
    served_by = ui_command(store) and f"mlflow ui --backend-store-uri {store}"  # from whatever folder
    pages = [cfg.tables] if isinstance(cfg.tables, str) else cfg.tables or []
    not_run = write_tables([Path(page) for page in pages], sections, resampling)
    page = write_report(content, Path(cfg.directory), served_by=served_by)
    for verdict in content.verdicts:
        print(verdict)
    for run, reason in left_out:
        print(f"not counted: {run.name} ({run.run_id}): {reason}")
    print(*not_run, page, sep="\n")
    if cfg.strict and (not_run or falls_short(content.verdicts)):
        raise SystemExit(1)
    return page


def check_thresholds(thresholds: list[float]) -> None:
    """Refuses what is no fraction."""
    for value in thresholds:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"thresholds: must be positive numbers, got {value!r}")


if __name__ == "__main__":
    main(report, config_name="report")
