"""Part ``tests``: the tests that need a GPU, in files that can be collected on this machine."""

import ast
import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
from gpu.job import Job

ROOT = Path(__file__).parents[2]
OPTIONS = (
    "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "default",
    "--continue-on-collection-errors",
    "-o", "addopts=--import-mode=importlib", "-o", "timeout=60", "--rootdir", str(ROOT),
)  # fmt: skip


class Reporter:
    """Plugin of pytest that writes failures as they happen, and counts every few seconds."""

    def __init__(self, job: Job) -> None:
        self.job, self.counts, self.written = (
            job,
            {"passed": 0, "failed": 0, "skipped": 0},
            time.monotonic(),
        )

    def pytest_collection_finish(self, session: Any) -> None:
        """Write the number of tests."""
        self.job.note(
            "collected",
            len(session.items),
            files=sorted({item.path.name for item in session.items}),
        )

    def pytest_collectreport(self, report: Any) -> None:
        """Write a file that could not be collected."""
        if report.failed:
            self.job.note(
                "not collected", report.nodeid, wrong=True, error=report.longreprtext[-300:]
            )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test; write a failure at once."""
        if report.when != "call" and report.passed:
            return
        self.counts[report.outcome] += 1
        if report.failed:
            self.job.note(f"failed {report.nodeid}", report.longreprtext[-500:], wrong=True)
        if time.monotonic() - self.written > 5:
            self.written = time.monotonic()
            self.job.note("so far", dict(self.counts))


def run(job: Job) -> None:
    """Run the tests; on a CPU only collect them, which shows that the files can be imported."""
    files, missing = marked_files(ROOT / "tests")
    for path, names in missing.items():
        job.note(f"left out {path.relative_to(ROOT)}", f"not installed: {', '.join(names)}")
    if not files:
        job.note("failed", "no file of tests could be collected", wrong=True)
        return
    only = () if job.cuda else ("--collect-only",)
    reporter = Reporter(job)
    pytest.main(["-m", "gpu", *OPTIONS, *only, *map(str, files)], plugins=[reporter])
    if job.cuda:
        job.note("failed", reporter.counts["failed"], **reporter.counts)


def marked_files(folder: Path) -> tuple[list[Path], dict[Path, list[str]]]:
    """Return the files with tests marked ``gpu``, and their missing imports."""
    here = {path.stem for path in folder.rglob("*.py")}
    files, missing = [], {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text()
        if "mark.gpu" not in text:
            continue
        names = {
            name
            for name in imported(text)
            if name not in here and importlib.util.find_spec(name) is None
        }
        if names:
            missing[path] = sorted(names)
        else:
            files.append(path)
    return files, missing


def imported(text: str) -> set[str]:
    """Return the top-level names of the modules that a file imports on its own import."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
