"""The page of real runs: its commands run as printed, and a browser shows it whole, on a desk and
in a hand.
"""

import contextlib
import html
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yamame
from yamame.report import RunReader

CHANGES = (
    "debug=tiny",
    "env=mazerunner",
    "env.size=7",
    "env.split_by=walls_and_goals",
    "env.time_limit=20",
    "encoder.num_layers=1",
    "evaluation.num_episodes=2",
    "evaluation.video_frames=1",
    "logger.models=false",
    "expected={metric:success_mean,interval:[0,1],source:a b}",
)
SCREENS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
TEXTS = "svg text, figcaption, tbody th, td, h1, h2, h3, h4"
BROKEN = f"""() => [...document.querySelectorAll("{TEXTS}")].filter(each => {{
  const own = each.getBoundingClientRect();
  const around = (each.closest("svg") ?? document.body).getBoundingClientRect();
  return own.left < around.left - 1 || own.right > around.right + 1 || own.top < around.top - 1
    || own.bottom > around.bottom + 1;
}}).map(each => each.textContent)"""
"""Texts that are cut off, or stand beside their picture or the page."""


def read_by_a_shell(command: str) -> list[str]:
    """What a program is given that a shell starts by this line."""
    printing = f"yamame() {{ printf '%s\\0' \"$@\"; }}; {command}"
    done = subprocess.run(["sh", "-c", printing], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def page(play, tmp_path_factory) -> Path:
    """The page of two settings with two seeds each."""
    folder = tmp_path_factory.mktemp("project")
    assert play("train", folder, "-m", *CHANGES, "encoder=transformer,gru", "seed=0,1")[0] == 0
    with contextlib.chdir(folder):
        return yamame.make_report("directory=a page").resolve()


def test_the_command_on_a_page_runs_as_it_is_printed(page, play, tmp_path):
    printed = re.findall("<pre><code>(.*?)</code></pre>", page.read_text(), re.DOTALL)
    commands = [html.unescape(text) for text in printed]
    assert [command.split()[-2:] for command in commands] == [
        [f"encoder={name}", "seed=0,1"] for name in ("transformer", "gru")
    ]
    script, *arguments = read_by_a_shell(commands[1])
    assert script == "train"
    assert play("train", tmp_path, *arguments)[0] == 0
    made = sorted(tmp_path.glob("runs/*/config.yaml"))
    assert [path.parent.name[-6:] for path in made] == ["seed=0", "seed=1"]
    before = page.parents[1] / made[0].relative_to(tmp_path)
    assert made[0].read_text() == before.read_text()
    assert "source: a b" in made[0].read_text()


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        pytest.skip("no Chromium is installed")
    api = pytest.importorskip("playwright.sync_api")
    with (
        api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium) as opened,
    ):
        yield opened


@pytest.mark.page
@pytest.mark.parametrize("screen", SCREENS)
def test_a_browser_shows_the_page_in_light_and_dark_and_asks_nobody(
    page, browser, tmp_path, screen
):
    folder = Path(os.environ.get("YAMAME_SCREENSHOTS", tmp_path))
    grounds = []
    for scheme in ("light", "dark"):
        tab, messages, requests = (
            browser.new_page(viewport=SCREENS[screen], color_scheme=scheme),
            [],
            [],
        )
        tab.on("console", lambda message, messages=messages: messages.append(message.text))
        tab.on("pageerror", lambda error, messages=messages: messages.append(str(error)))
        tab.on("request", lambda request, requests=requests: requests.append(request.url))
        tab.goto(page.as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        tab.screenshot(path=folder / f"{screen}-{scheme}.png", full_page=True)
        assert messages == []
        assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
        assert tab.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["width"]
        assert tab.evaluate(BROKEN) == []
        grounds.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        tab.close()
    assert len(set(grounds)) == 2


@pytest.mark.page
def test_links_lead_somewhere_and_points_tell_their_values(page, browser):
    tab = browser.new_page(viewport=SCREENS["desktop"])
    tab.goto(page.as_uri())
    links = tab.eval_on_selector_all("a", "all => all.map(each => each.getAttribute('href'))")
    within = [link for link in links if link.startswith("#")]
    assert all(tab.locator(link).count() == 1 for link in within)
    folders = [page.parent / unquote(link) for link in links if not link.startswith(("#", "http"))]
    assert len(folders) == 4
    assert all((folder / "summary.json").is_file() for folder in folders)
    reader = RunReader.open(f"sqlite:///{page.parents[1]}/mlflow.db", "yamame")
    addresses = [urlsplit(link).fragment for link in links if link.startswith("http://")]
    known = {f"/experiments/{reader.experiment_id}/runs/{run.run_id}" for run in reader.read()}
    assert {
        address.removesuffix("?workflowType=machine_learning") for address in addresses
    } == known
    drawing = tab.locator("svg:has(circle.value)").first
    point = drawing.locator("circle.value").last  # the points of equal curves cover each other
    point.scroll_into_view_if_needed()
    point.hover()  # fails where something lies upon it
    assert re.fullmatch(
        r"[AB] encoder=\w+: \S+( \[\S+, \S+\])? at \d+ environment steps",
        " ".join(point.locator("title").text_content().split()),
    )
