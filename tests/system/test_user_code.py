"""Which code raised an error."""

import json
import pickle
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from yamame.checks import UsageError
from yamame.files.trusted import locate
from yamame.system.user_code import UserCodeError, blame, is_of_part, user_code

HERE = Path(__file__)


def caught(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("no error")


def line_of(mark):
    lines = HERE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


class Own:
    def __init__(self):
        self.helper()

    def helper(self):
        torch.zeros(2) + torch.zeros(3)  # torch refuses


def test_the_innermost_line_of_user_code_is_found_below_that_of_a_library():
    found = blame(caught(Own))
    assert (found.file, found.line) == (str(HERE), line_of("torch refuses"))
    # The name is that of the function that others called.
    assert found.function.endswith("caught")


def test_an_error_of_a_library_alone_is_none_of_user_code():
    assert blame(ValueError("never raised")) is None
    error = caught(json.loads, "{")
    error.__traceback__ = error.__traceback__.tb_next  # without this file's line
    assert blame(error) is None


class Board(gymnasium.Env):
    action_space = observation_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=None):
        self.size = len(size)  # no length


def make_board(**settings):
    error = caught(lambda: gymnasium.make("Board-for-blame", **settings))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # as Gymnasium raised it
    return error


def test_an_error_that_a_library_raised_again_has_the_place_of_the_first(monkeypatch):
    monkeypatch.delitem(gymnasium.registry, "Board-for-blame", raising=False)
    gymnasium.register("Board-for-blame", Board)
    error = make_board()
    assert type(error) is TypeError
    assert blame(error).line == line_of("no length")
    # A wrong argument does not even reach the class.
    assert blame(make_board(colour=1)) is None


def test_an_error_that_the_caller_of_the_program_handles_is_not_its_cause():
    def later():
        try:
            raise KeyError("of the caller")
        except KeyError:
            json.loads("{")

    error = caught(later)
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # what json's caller sees
    assert isinstance(error.__context__, KeyError)
    assert blame(error) is None


def test_a_generator_that_ends_by_a_stop_of_user_code_names_it():
    def numbers():
        yield next(iter(()))

    error = caught(lambda: list(numbers()))
    assert type(error) is RuntimeError
    assert blame(error).file == str(HERE)


@pytest.mark.parametrize("kind", [StopIteration, KeyError, RuntimeError, SystemExit])
def test_errors_are_described_and_carried_to_other_processes(kind):
    def fail():
        raise kind("broken")

    def use():
        with user_code("encoder (mine.Encoder)"):
            fail()

    error = caught(use)
    assert type(error.__cause__) is kind
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.what, copy.reason, copy.file, copy.line) == (
        error.what,
        error.reason,
        error.file,
        error.line,
    )
    assert str(copy).startswith("encoder (mine.Encoder): ")
    assert str(copy).endswith(f" ({HERE}:{copy.line})")


def test_what_is_a_line_already_passes_and_so_does_a_request_to_end():
    class Asked(SystemExit):
        pass

    for error in (
        UsageError("wrong"),
        UserCodeError("a", "b", "c", 1),
        Asked(3),
        KeyboardInterrupt(),
    ):

        def use(error=error):
            with user_code("part"):
                raise error

        assert caught(use) is error


def test_an_error_in_a_custom_recipe_is_no_error_of_a_part():
    def recipe():
        raise ValueError

    assert not is_of_part(caught(recipe))
    nested = caught(lambda: np.fromfunction(lambda *_: recipe(), (1,)))
    assert not is_of_part(nested)


MODULES = {
    "imports": ("import os\nimport a_package_of_the_lab\n", "ModuleNotFoundError", 2),
    "raises": ("x = 1\nraise KeyError('x')\n", "KeyError: 'x'", 2),
    "spelled": ("x = 1\ny = (\n", "SyntaxError", 2),
    "leaves": ("raise SystemExit(3)\n", "SystemExit: 3", 1),
    "asserts": ("assert False, 'never'\n", "AssertionError: never", 1),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(tmp_path, monkeypatch, name):
    source, reason, line = MODULES[name]
    package = tmp_path / f"lab_{name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = f"lab_{name}.parts.Encoder"
    error = caught(locate, path, "encoder", [f"lab_{name}."])
    assert isinstance(error, UserCodeError)
    assert (error.file, error.line) == (str(package / "parts.py"), line)
    assert error.what == f"encoder._target_ ({path})"
    assert error.reason.startswith(reason)
    # A module or a class that is not there is a mistake in the configuration.
    for missing in (f"lab_{name}.nowhere.Encoder", f"lab_{name}.Encoder", "nowhere.Encoder"):
        trust = [f"{missing.partition('.')[0]}."]
        assert isinstance(caught(locate, missing, "encoder", trust), UsageError)


def test_a_file_with_the_name_of_a_library_is_user_code(tmp_path):
    (tmp_path / "minihack.py").write_text("def f():\n    raise KeyError\n")
    program = """
        import minihack
        from yamame.system.user_code import blame
        try:
            minihack.f()
        except KeyError as error:
            print(blame(error).file)
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "minihack.py")


def test_a_formatted_traceback_has_the_lines_of_all_causes():
    from yamame.system.user_code import formatted

    def use():
        with user_code("part"):
            Own()

    error = caught(use)
    assert "# torch refuses" in formatted(error)
    assert formatted(error) == "".join(traceback.format_exception(error))
