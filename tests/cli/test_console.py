"""The command ``yamame``."""

import runpy
import sys

import pytest
import yamame
from yamame.cli import console


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["yamame", *arguments])
    console.main()


def test_it_lists_a_command_per_recipe(monkeypatch, capsys):
    call(monkeypatch)
    first = capsys.readouterr().out
    for path in yamame.recipes_dir().glob("*.py"):
        assert f"\n  {path.stem} " in first
    call(monkeypatch, "--help")
    assert capsys.readouterr().out == first


def test_it_tells_its_version(monkeypatch, capsys):
    call(monkeypatch, "--version")
    assert capsys.readouterr().out.strip() == yamame.__version__


def test_the_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["console.py", "--version"])
    monkeypatch.delitem(sys.modules, "yamame.cli.console")
    runpy.run_module("yamame.cli.console", run_name="__main__")
    assert capsys.readouterr().out.strip() == yamame.__version__


def test_a_command_is_the_recipe_itself(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    call(monkeypatch, "train", "debug=tiny", "env=tmaze", "logger=none", "run.name=a")
    assert capsys.readouterr().out.endswith("runs/a/summary.json\n")
    assert (tmp_path / "runs" / "a" / "summary.json").is_file()


def test_an_unknown_command_is_refused_in_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        call(monkeypatch, "trian")
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("yamame: there is no command 'trian', did you mean train?")
    assert told.count("\n") == 1
