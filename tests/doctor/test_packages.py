"""Packages that are missing or do not fit, as they are installed: each in a line that tells what to
run.
"""

import platform

import pytest
from yamame.doctor.packages import conflicts, describe_packages, require_packages


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package's metadata where Python finds it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name, version="1.0", *needs, python=">=3.8"):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = [
            "Metadata-Version: 2.4",
            f"Name: {name}",
            f"Version: {version}",
            f"Requires-Python: {python}",
        ]
        lines += [f"Requires-Dist: {need}" for need in needs] + ["Provides-Extra: more"]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return install


def test_what_tests_run_with_fits():
    assert list(conflicts("yamame", "train")) == []
    assert f"python {platform.python_version()}, yamame " in describe_packages()


def test_a_missing_package_is_named_with_what_installs_it(install):
    install("oakum", "1.0", "oakum-missing>=2")
    (line,) = conflicts("oakum")
    assert (
        line
        == "oakum-missing: must be >=2 for oakum, got none; run: pip install 'oakum-missing>=2'"
    )


def test_a_version_out_of_range_is_named_even_where_another_package_needs_it(install):
    install("oakum", "1.0", "tow")
    install("tow", "1.0", "hemp<3,>=2")
    install("hemp", "3.1")
    (line,) = conflicts("oakum")
    assert line == "hemp: must be <3,>=2 for tow, got 3.1; run: pip install 'hemp<3,>=2'"


def test_another_python_than_a_package_takes_is_named(install):
    install("oakum", python=">=4.2")
    (line,) = conflicts("oakum")
    assert line == f"python: must be >=4.2 for oakum, got {platform.python_version()}"


def test_extras_and_markers_count_only_where_they_hold(install):
    install("oakum", "1.0", "hemp; extra == 'more'", "hemp; sys_platform == 'nowhere'")
    assert list(conflicts("oakum")) == []
    assert [line.partition(":")[0] for line in conflicts("oakum", "more")] == ["hemp"]


def test_packages_that_need_each_other_end(install):
    install("oakum", "1.0", "tow")
    install("tow", "1.0", "oakum", "hemp")
    assert [line.partition(":")[0] for line in conflicts("oakum")] == ["hemp"]


def test_requiring_them_ends_the_process_with_a_line_each(install, capsys):
    install("oakum", "1.0", "hemp", "tow")
    with pytest.raises(SystemExit) as ended:
        require_packages("oakum")
    assert ended.value.code == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["problem:", "hemp:"],
        ["problem:", "tow:"],
    ]
