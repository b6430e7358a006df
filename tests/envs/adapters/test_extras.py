import sys

import pytest
from yamame_envs.adapters.extras import MissingExtra, import_extra


def test_an_installed_package_is_returned():
    import json

    assert import_extra("json", extra="train", owner="Example") is json


def test_a_missing_package_is_one_line_with_its_remedy():
    message = (
        r"^Example: the package not_there must be installed, run: pip install 'yamame\[popgym\]'$"
    )
    with pytest.raises(ValueError, match=message):
        import_extra("not_there.envs", extra="popgym", owner="Example")
    with pytest.raises(ImportError, match=message):
        import_extra("not_there", extra="popgym", owner="Example")


def test_the_message_names_what_is_missing_inside_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import its_dependency.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"the package its_dependency must be installed"):
        import_extra("half_installed", extra="x", owner="Example")


def test_a_package_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libGL.so.1: no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingExtra, match=r"broken_package must be importable \(libGL.so.1: no such file\)"
    ):
        import_extra("broken_package", extra="x", owner="Example")


def test_warnings_of_the_import_are_not_shown(tmp_path, monkeypatch):
    (tmp_path / "noisy_package.py").write_text(
        "import warnings\nwarnings.warn('old', DeprecationWarning)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "noisy_package", raising=False)
    assert import_extra("noisy_package", extra="x", owner="Example").__name__ == "noisy_package"


def test_what_no_extra_installs_has_a_remedy_of_its_own():
    with pytest.raises(
        MissingExtra, match=r"must be installed, run: pip install --no-deps not-there$"
    ):
        import_extra("not_there", owner="Example", remedy="pip install --no-deps not-there")
