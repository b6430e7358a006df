"""Run directories beside a model: a run that has not begun changes nothing, however it ends."""

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from yamame.checks import UsageError
from yamame.files.run_directory import RunDirectory

PRIVATE = (".lock", ".former", ".moving", ".deleted")

OPTIONS = [
    {},
    {"resume": True},
    {"resume": "auto"},
    {"overwrite": True},
    {"overwrite": True},
    {"resume": True, "overwrite": True},
]
ENDINGS = [
    ("closes", 0),
    ("begins and closes", 0),
    ("dies", 0),
    ("begins and dies", 0),
    ("dies beginning", 0),
    ("dies beginning", 1),
    ("dies closing", 0),
    ("dies closing", 1),
    ("dies closing", 2),
]
"""How a process ends, and the number of operations before its death."""


class Killed(BaseException):
    """The process dies at this moment."""


@contextlib.contextmanager
def dying_after(num_operations: int):
    """Let a process die before a later change of a directory, or in the midst of a deletion."""
    left = num_operations

    def patched(operation):
        def operate_or_die(path, *args):
            nonlocal left
            left -= 1
            if left < 0:
                if operation is remove_tree:
                    for file in [file for file in path.rglob("*") if file.is_file()][:1]:
                        unlink(file)
                raise Killed
            return operation(path, *args)

        return operate_or_die

    remove_tree = shutil.rmtree
    unlink = Path.unlink
    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "unlink", "rmdir"):
            patch.setattr(Path, name, patched(getattr(Path, name)))
        patch.setattr(shutil, "rmtree", patched(remove_tree))
        yield


def files_in(path: Path) -> dict[str, str]:
    """Return names and contents of a run's own files."""
    found = {}
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if file.is_file() and not name.startswith(PRIVATE):
            found[name] = file.read_text()
    return found


class RunDirectoryMachine(RuleBasedStateMachine):
    """Processes that claim a directory, write, begin, close and die, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.path = self.root / "runs" / "maze"
        self.content: dict[str, str] = {}  # the run, as the next process to resume it finds it
        self.number = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(names=st.sampled_from([[], ["a", "b"]]))
    def begin_the_first_run(self, names):
        self.claim({}, ["a"], ("closes", 0), False)
        assert not any(self.root.iterdir())
        if names:
            self.claim({}, names, ("begins and closes", 0), False)

    def open(self, options) -> RunDirectory:
        return RunDirectory.open(self.root / "runs", "maze", **options)

    def is_refused(self, resume=False, overwrite=False) -> bool:
        # A process that died may have left the folders of a replacement.
        leftovers = [self.path / name for name in PRIVATE[1:]]
        is_used = bool(self.content) or any(folder.exists() for folder in leftovers)
        if resume and overwrite:
            return True
        if resume is True:
            return not is_used
        return is_used and not (resume or overwrite)

    def write(self, names) -> dict[str, str]:
        written = {}
        for name in names:
            self.number += 1
            file = self.path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(str(self.number))
            written[name] = str(self.number)
        return written

    @rule(
        deaths=st.lists(
            st.tuples(
                st.sampled_from([{"overwrite": True}, {"resume": "auto"}]), st.integers(0, 3)
            ),
            min_size=1,
            max_size=3,
        )
    )
    def die_opening(self, deaths):
        for options, num_operations in deaths:
            with contextlib.suppress(Killed), dying_after(num_operations):
                self.open(options)._lock.close()
        self.resume()

    @rule(
        options=st.sampled_from(OPTIONS),
        names=st.lists(st.sampled_from(["a", "c", "folder/d"]), unique=True, min_size=1),
        ending=st.sampled_from(ENDINGS),
        is_resumed=st.booleans(),
    )
    def claim(self, options, names, ending, is_resumed):
        before = files_in(self.path)
        if self.is_refused(**options):
            with pytest.raises(UsageError):
                self.open(options)
            assert files_in(self.path) == before
            return

        run = self.open(options)
        resume = options.get("resume", False)
        assert run.resumed == (bool(self.content) if resume == "auto" else resume)
        assert files_in(self.path) == (self.content if run.resumed else {})
        written = self.write(names)
        found = files_in(self.path)
        assert found == ({**self.content, **written} if run.resumed else written)
        for others in OPTIONS:
            with pytest.raises(UsageError):
                self.open(others)
        assert files_in(self.path) == found

        how, num_operations = ending
        has_begun = self.end(run, how, num_operations)
        if run.resumed:
            self.content.update(written)
        elif has_begun:
            self.content = written
        elif "dies" in how and not options.get("overwrite"):
            # Nothing tells these files from those of a run.
            self.content = files_in(self.path)
        elif how == "closes":
            assert files_in(self.path) == self.content
        if is_resumed:
            self.resume()

    def end(self, run: RunDirectory, ending: str, num_operations: int) -> bool:
        """End a process; return whether its run has begun."""
        if "begins" in ending:
            run.begin()
        if ending == "dies beginning":
            has_former = (self.path / ".former").exists()
            with contextlib.suppress(Killed), dying_after(num_operations):
                run.begin()
            # The first operation gives the former run up.
            run.begun = not has_former or num_operations > 0
        elif ending == "dies closing":
            with contextlib.suppress(Killed), dying_after(num_operations):
                run.close()
        elif "closes" in ending:
            run.close()
        run._lock.close()  # as the system does for a dead process
        return run.begun

    def resume(self):
        """The files of the last run that began are there, and no others."""
        if self.content:
            with contextlib.closing(self.open({"resume": True})):
                assert files_in(self.path) == self.content


def test_a_run_that_has_not_begun_changes_nothing():
    run_state_machine_as_test(
        RunDirectoryMachine,
        settings=settings(
            deadline=None,
            max_examples=80,
            stateful_step_count=15,
            derandomize=True,
            database=None,
            # Shrinking a failure takes minutes.
            phases=(Phase.generate,),
        ),
    )
