"""Send metrics and artifacts to MLflow that it did not accept while runs were going on.

    yamame sync run=runs/mine
    yamame sync run=[runs/a,runs/b]

Points that MLflow already has are not sent again, so the command may be repeated. A resumed run
does the same by itself.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("sync")

# isort: split
from pathlib import Path

from yamame.checks import SettingError, UsageError
from yamame.cli.app import main
from yamame.cli.settings import SyncConfig
from yamame.system.messages import print_stdout
from yamame.tracking import send_rest


def sync(cfg: SyncConfig) -> None:
    """Run the recipe; runs that cannot be sent do not keep the others from being sent."""
    runs = [cfg.run] if isinstance(cfg.run, str) else cfg.run
    if not runs:
        raise SettingError("run", [], "be at least one run directory")
    problems = []
    for run in runs:
        try:
            check(run)
            print_stdout(f"{run}: {send_rest(Path(run))} points sent")
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("; ".join(problems))


def check(run: str) -> None:
    """Raise for a directory that does not exist or is empty."""
    folder = Path(run)
    is_used = folder.is_dir() and any(folder.iterdir())
    if not is_used:
        remedy = "name a run directory, as run=runs/mine"
        raise UsageError(f"{run} does not exist or is empty", key="run", remedy=remedy)


if __name__ == "__main__":
    main(sync, config_name="sync")
