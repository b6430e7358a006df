"""What stands in several files of the project says the same."""

import re
import tomllib
from pathlib import Path

import yamame
import yaml
from yamame.system.installed import DOCUMENTATION, documentation_page

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_there_is_one_version_and_the_citation_and_the_changelog_have_it():
    assert "version" in PROJECT["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == yamame.__version__
    released = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == yamame.__version__


def test_addresses_of_pages_are_those_of_the_documentation():
    assert PROJECT["urls"]["Documentation"] == DOCUMENTATION
    page = documentation_page("howto/does_not_learn")
    assert (ROOT / "docs/howto/does_not_learn.md").is_file()
    assert "use_directory_urls: false" in (ROOT / "mkdocs.yml").read_text()
    assert page == f"{DOCUMENTATION}/howto/does_not_learn.html"


def test_the_workflow_runs_what_the_bounds_admit():
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["tests"][
        "strategy"
    ]["matrix"]
    versions = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if ":: 3." in entry]
    assert matrix["python"] == versions
    (torch,) = [bound for bound in PROJECT["dependencies"] if bound.startswith("torch>")]
    low, high = (int(part) for part in re.findall(r"2\.(\d+)", torch))
    assert matrix["torch"] == [f"2.{minor}" for minor in range(low, high)]


def test_every_session_of_the_workflow_is_there():
    checks = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["checks"]
    sessions = set(
        re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    )
    assert {"cluster", "page"} <= set(checks["strategy"]["matrix"]["session"]) <= sessions
