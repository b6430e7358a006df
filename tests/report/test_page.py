"""The page as a browser and a listener meet it: numbers, escaping, nothing from elsewhere."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import yamame.report.content
import yamame.report.export
import yamame.report.page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from yamame.checks import UsageError
from yamame.report import Resampling, build_content, falls_short, make_sections, write_report
from yamame.report.page import LARGEST_VIDEO, render

HOSTILE = "<script>alert('x')</script>&\"$_{"
RESAMPLING = Resampling(num_resamples=100)
INTERVALS = ("groups", "verdicts", "ablations", "curves", "training")
EMPTY = {"meta", "source", "img", "br"}


class Page(HTMLParser):
    """Text, addresses and elements of a page; every element must be closed in order."""

    def __init__(self, html):
        super().__init__()
        self.text, self.addresses, self.elements, self._open = "", [], [], []
        self.feed(html)
        assert self._open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self.addresses += [
            value for name, value in attrs if name in ("src", "srcset", "href", "poster", "data")
        ]
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] != "style":
            self.text += f"{data} "


def gif(frames=2):
    buffer = io.BytesIO()
    images = [Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(frames)]
    images[0].save(buffer, format="GIF", save_all=True, append_images=images[1:])
    return buffer.getvalue()


def table(path):
    """The rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def metrics(*values):
    """Evaluations at steps 100, 200, ..., each 10 CPU-s after the one before."""
    steps = [100 * (index + 1) for index in range(len(values))]
    return {
        "eval/success_mean": dict(zip(steps, values, strict=True)),
        "cost/cpu_s": {step: step / 10 for step in steps},
    }


def everything(*values):
    """The same with training and trials."""
    steps = [100 * (index + 1) for index in range(len(values))]
    return metrics(*values) | {
        "train/q_value": dict.fromkeys(steps, 1.0),
        "train/q_value_0.9": dict.fromkeys(steps, 1.0),
        "train/q_value_0.99": dict.fromkeys(steps, 2.0),
        "eval/return_mean_trial_0": dict.fromkeys(steps, 0.0),
        "eval/return_mean_trial_1": dict.fromkeys(steps, 1.0),
    }


@pytest.fixture(scope="module")
def video():
    return gif()


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are empty: to draw them takes longer than all else."""

    def draw_svg(plot):
        return ""

    monkeypatch.setattr(yamame.report.export, "draw", lambda plot: b"")
    monkeypatch.setattr(yamame.report.page, "draw_svg", draw_svg)


@pytest.fixture
def draw(tmp_path):
    """Writes a report of runs and gives its page, its folder and its content."""

    def write(runs, *, artifact=lambda run_id, name: None, **options):
        content = build_content(
            *make_sections(runs), resampling=RESAMPLING, artifact=artifact, **options
        )
        path = write_report(content, tmp_path / "report")
        return Page(path.read_text()), path.parent, content

    return write


@pytest.fixture
def write(draw, undrawn):
    """The same with empty pictures."""
    return draw


@pytest.fixture
def tell(tmp_path, undrawn):
    """The page of runs, of which nothing is drawn or written, and its content."""

    def tell(runs, *, artifact=lambda run_id, name: None):
        content = build_content(*make_sections(runs), resampling=RESAMPLING, artifact=artifact)
        return Page(render(content, tmp_path, "mlflow ui")), content

    return tell


def test_the_page_tells_the_numbers_of_every_group_and_needs_nothing_else(make_run, draw, video):
    expected = {
        "expected__metric": "success_mean",
        "expected__interval": "[0.8, 1.0]",
        "expected__source": "Fig. 4",
    }
    tags = {"command": "python recipes/train.py seed=0"}
    runs = [
        make_run(seed, metrics(0.2, 0.7 + seed / 5), lr=1, tags=tags, **expected) for seed in (0, 1)
    ]
    runs += [
        make_run(
            0, metrics(0.1, 0.3), lr=2, tags={"command": "python recipes/train.py lr=2 seed=0"}
        )
    ]
    page, folder, content = draw(runs, artifact=lambda run_id, name: video)
    for text in (
        "3 runs in 2 groups",
        "✓ Reached.",
        "0.800 (mean of 2 seeds, too few for an interval) is inside [0.800, 1.000]",
        "seeds 0.700, 0.900 (no interval)",
        "Below 10 it is Student's t, of a difference Welch's; from 10 on a percentile "
        "bootstrap (100 resamples)",
        "Source: Fig. 4.",
        "Cost: 20.0 CPU\N{NON-BREAKING HYPHEN}s",
        "lr: 1 → 2",
        "Compared with A, lr=1",
        "\N{MINUS SIGN}0.500",
        "n=2 and 1",
        "yamame train -m seed=0,1",
        "yamame train lr=2 seed=0",
    ):
        assert text in page.text, text
    assert page.addresses
    assert [a for a in page.addresses if not a.startswith(("data:image/", "#section-"))] == []
    html = (folder / "index.html").read_text()
    assert (
        re.findall(r"https?://[^\"]*", html.replace("http://www.w3.org/", "")) == []
    )  # names of XML
    assert re.findall(r"@import|url\((?!#)|<script|<link", html) == []
    told = "Maze: reached (success_mean 0.8 [0, 1] Student, 2 seeds; expected 0.8 to 1)"
    assert str(content.verdicts[0]) == told
    assert not falls_short(content.verdicts)


def test_pictures_have_words_and_tables_have_heads(make_run, draw, video):
    page, folder, _ = draw([make_run(0, everything(0.2, 0.7))], artifact=lambda run_id, name: video)
    drawings = [attributes["aria-label"] for tag, attributes in page.elements if tag == "svg"]
    # success over steps and CPU seconds, trials, q_value, q_value per gamma
    assert len(drawings) == 6
    assert "goes from 0.2 to 0.7" in drawings[0]
    assert "return of the trial" in drawings[2]
    assert drawings[4].startswith(
        "q value, gamma 0.9: value of the taken action, multiplied rewards against environment "
        "steps."
    )
    assert (
        "A encoder._target_=a.GRU: 0.7 at 200 environment steps" in page.text
    )  # where it is pointed at
    (image,) = (attributes for tag, attributes in page.elements if tag == "img")
    assert len(image["alt"]) > 20
    media = [attributes["media"] for tag, attributes in page.elements if tag == "source"]
    assert media == ["(prefers-reduced-motion: reduce)"]
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables == sum(tag == "caption" for tag, _ in page.elements) > 0
    assert {attributes["scope"] for tag, attributes in page.elements if tag == "th"} == {
        "col",
        "row",
    }
    assert len(list(folder.glob("*.png"))) == 3
    html = (folder / "index.html").read_text()
    drawn = html[html.index("<svg") : html.rindex("</svg>")]
    assert re.findall("#[0-9a-f]{6}", drawn) == []  # the colours are the page's, light or dark
    names = set(re.findall(r"var\((--\w+)\)", drawn))
    assert names == {"--c0", "--ink", "--line"}
    light, dark = html.split("@media (prefers-color-scheme: dark)", 1)
    assert all(f"{name}: #" in light and f"{name}: #" in dark for name in names)


def test_runs_lead_to_their_folders_and_to_mlflow(make_run, tmp_path, tell):
    run_folder = tmp_path / "a=b %#c"
    run_folder.mkdir()
    runs = [
        replace(
            make_run(0, metrics(0.1), tags={"folder": str(run_folder)}), page="http://host/#/runs/0"
        ),
        make_run(1, metrics(0.1), tags={"folder": str(tmp_path / "gone")}),
        make_run(2, metrics(0.1), tags={"folder": "."}),
    ]
    page, _ = tell(runs)
    links = [address for address in page.addresses if not address.startswith("#")]
    assert links == ["a%3Db%20%25%23c/", "http://host/#/runs/0"]
    assert "while this command runs: mlflow ui" in page.text


def test_the_title_says_what_is_compared_and_the_summary_which_is_best(make_run, tell):
    worse, better = make_run(0, metrics(0.3), lr=1), make_run(0, metrics(0.7), lr=2)
    page, content = tell([worse, better])
    assert content.title == "Maze: lr=1, lr=2"
    assert "best expected result Maze A lr=1 B lr=2 B 0.700 one seed" in page.text
    assert [entry.group.label for entry in content.sections[0].best] == ["lr=2"]
    lengths = [
        make_run(seed, {"eval/length_mean": {100: value}}, lr=seed)
        for seed, value in ((1, 9.0), (2, 30.0))
    ]
    content = build_content(*make_sections(lengths), metric="length_mean")
    assert [entry.group.label for entry in content.sections[0].best] == ["lr=1"]
    others = [make_run(0, metrics(0.3), env___target_=f"a.{name}") for name in "BCDE"]
    assert build_content(*make_sections(others)).title == "B, C, D and 1 more"


def test_the_summary_names_no_best_of_equals(make_run, tell):
    first, second, worse = (
        make_run(0, metrics(end), lr=lr) for lr, end in enumerate((0.7, 0.7, 0.3))
    )
    page, _ = tell([first, second])
    assert "A lr=0 B lr=1 no difference" in page.text
    page, content = tell([first, second, worse])
    assert "no difference" not in page.text
    assert [entry.group.label for entry in content.sections[0].best] == ["lr=0", "lr=1"]


def test_hostile_names_stay_text(make_run, draw):
    tags = {"command": f"python {HOSTILE} 'a b'", "mlflow.source.git.commit": HOSTILE}
    runs = [
        make_run(0, metrics(0.1, 0.2), name=HOSTILE, tags=tags, env__id=HOSTILE, lr=HOSTILE),
        make_run(0, metrics(0.1, 0.2), name=HOSTILE, env__id=HOSTILE, lr=2),
        make_run(HOSTILE, status="FAILED", name=HOSTILE),
    ]
    page, *_ = draw(runs)
    assert [tag for tag, _ in page.elements if tag == "script"] == []
    assert page.text.count(HOSTILE) > 4


def test_runs_that_do_not_count_are_listed_with_the_reason_and_change_no_number(make_run, write):
    runs = [
        make_run(0, metrics(0.1, 0.7)),
        make_run(1, metrics(0.0, 0.0), status="FAILED", name="broken"),
    ]
    runs += [make_run(5, metrics(0.1, 0.1)), make_run(5, metrics(0.1, 0.9))]
    page, folder, _ = write(runs)
    assert "it ended as FAILED" in page.text
    assert "broken" in page.text
    assert f"the later run {runs[3].run_id}" in page.text
    rows = table(folder / "groups.csv")
    assert [(row["metric"], float(row["mean"]), row["num_seeds"]) for row in rows] == [
        ("success_mean", pytest.approx(0.8), "2")
    ]
    assert [row["run"] for row in table(folder / "not_counted.csv")] == ["broken", "run-5"]


@pytest.mark.parametrize(
    ("seeds", "of_one", "of_two"), [(3, "Student", "Welch"), (10, "bootstrap", "bootstrap")]
)
def test_tables_and_page_name_every_interval_over_seeds(make_run, write, seeds, of_one, of_two):
    expected = {"expected__metric": "success_mean", "expected__interval": "[0.8, 1.0]"}
    runs = [make_run(seed, everything(0.1, 0.05 * seed), lr=1, **expected) for seed in range(seeds)]
    runs += [make_run(seed, everything(0.1, 0.04 * seed + 0.1), lr=2) for seed in range(seeds)]
    runs.append(make_run(0, everything(0.1, 0.1), lr=3))
    page, folder, _ = write(runs)
    found = {name: [row["interval"] for row in table(folder / f"{name}.csv")] for name in INTERVALS}
    assert found["groups"] == [of_one, of_one, ""]
    assert found["verdicts"] == [of_one]
    assert found["ablations"] == [of_two, ""]
    assert set(found["curves"]) == set(found["training"]) == {of_one, ""}
    assert [row["base_better_interval"] for row in table(folder / "ablations.csv")] == [
        "Newcombe",
        "",
    ]
    for text in (
        f"n={seeds} {of_one}",
        f"n={seeds} and {seeds} {of_two}",
        f"n={seeds} and {seeds} Newcombe",
    ):
        assert text in page.text


def test_crossings_are_told_as_interpolated_on_the_page_and_in_the_table(make_run, write):
    page, folder, _ = write([make_run(0, metrics(0.1, 0.7))], thresholds=(0.4,))
    (row,) = table(folder / "thresholds.csv")
    found = (row["crossing"], float(row["env_steps_median"]), float(row["cpu_s_median"]))
    assert found == ("interpolated", pytest.approx(150.0), pytest.approx(15.0))
    assert "first at or above" in page.text
    assert "interpolated between two evaluations" in page.text
    assert "0.4: 150 steps, 15.0 CPU\N{NON-BREAKING HYPHEN}s" in page.text


def test_curves_of_evaluations_and_of_training_are_tables_of_their_own(make_run, write):
    _, folder, _ = write([make_run(0, {**metrics(0.1, 0.7), "train/loss": {10: 1.0, 20: 0.5}})])
    evaluations, training = (table(folder / f"{name}.csv") for name in ("curves", "training"))
    assert {row["plot"].split("-", 2)[2] for row in training} == {"train-loss"}
    assert [(float(row["x"]), float(row["y"])) for row in training] == [(10.0, 1.0), (20.0, 0.5)]
    assert evaluations
    assert not any("train" in row["plot"] for row in evaluations)


def test_what_one_seed_cannot_tell_is_left_empty_in_tables(make_run, write):
    _, folder, _ = write(
        [
            make_run(0, metrics(0.1, 0.7)),
            make_run(0, metrics(0.1, 0.5), relabel__strategy="none"),
            make_run(1, status="FAILED", name="nan"),
        ]
    )
    assert [row["run"] for row in table(folder / "not_counted.csv")] == [
        "nan"
    ]  # a name is no number
    (row,) = table(folder / "ablations.csv")
    assert (row["low"], row["high"], float(row["difference"])) == ("", "", pytest.approx(-0.2))


def test_a_page_without_a_run_that_counts_says_so(make_run, tell):
    page, content = tell([make_run(0, status="KILLED")])
    assert "No run counts" in page.text
    assert content.verdicts == []


def test_groups_with_other_metrics_stand_side_by_side(make_run, tell):
    runs = [make_run(0, metrics(0.1, 0.7)), make_run(0, {"eval/return_mean": {100: 5.0}}, lr=2)]
    page, _ = tell(runs)
    assert "no finite value" in page.text
    assert "5.000" in page.text


@pytest.mark.parametrize(
    ("values", "outcome", "short"),
    [
        ((0.5,), "below", True),
        ((0.85,), "reached", False),
        ((0.95,), "above", False),
        ((math.nan,), "unknown", True),
    ],
)
def test_a_verdict_is_that_of_the_mean_of_the_seeds_of_the_base(
    make_run, tell, values, outcome, short
):
    expected = {"expected__metric": "success_mean", "expected__interval": "[0.8, 0.9]"}
    runs = [make_run(seed, metrics(0.1, value), **expected) for seed, value in enumerate(values)]
    page, content = tell(runs)
    assert content.verdicts[0].outcome == outcome
    assert falls_short(content.verdicts) is short
    assert f"{outcome.capitalize()}." in page.text


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_verdict_from_one_seed_names_that_it_has_no_interval(make_run, tell, num_seeds):
    expected = {"expected__metric": "success_mean", "expected__interval": "[0.8, 0.9]"}
    runs = [
        make_run(seed, metrics(0.1, 0.84 + 0.01 * seed), **expected) for seed in range(num_seeds)
    ]
    page, content = tell(runs)
    for text in (page.text, str(content.verdicts[0])):
        assert ("no interval" in text) == (num_seeds == 1)


@pytest.mark.parametrize(("second", "has_interval"), [(0.85, False), (0.86, True)])
def test_seeds_that_do_not_differ_have_no_interval(make_run, tell, second, has_interval):
    expected = {"expected__metric": "success_mean", "expected__interval": "[0.8, 0.9]"}
    runs = [
        make_run(seed, metrics(0.1, value), **expected)
        for seed, value in enumerate((0.85, 0.85, second))
    ]
    page, content = tell(runs)
    assert "[0.850, 0.850]" not in page.text
    for text in (page.text, str(content.verdicts[0])):
        assert ("no interval" in text) != has_interval


def test_a_large_video_lies_beside_the_page(make_run, write, video):
    large = video + b"\0" * LARGEST_VIDEO
    page, folder, _ = write([make_run(0, metrics(0.1, 0.7))], artifact=lambda run_id, name: large)
    assert "section-1-video-A.gif" in page.addresses
    assert (folder / "section-1-video-A.gif").read_bytes() == large
    assert (folder / "index.html").stat().st_size < LARGEST_VIDEO


def test_no_text_of_a_table_is_a_formula_and_numbers_stay(make_run, write):
    name = '=HYPERLINK("http://evil","x")'
    _, folder, _ = write([make_run(0, everything(-0.2, 0.7), name=name)])
    rows = [
        row for file in folder.glob("*.csv") for row in csv.reader(file.read_text().splitlines())
    ]
    cells = [cell for row in rows for cell in row]
    assert f"'{name}" in cells
    numbers = [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert [float(cell) for cell in numbers] == [float(cell) for cell in numbers if float(cell) < 0]


def test_an_artifact_that_is_no_gif_is_no_video(make_run, write):
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    page, folder, content = write(
        [make_run(0, everything(0.2, 0.7), name="odd")], artifact=lambda run_id, name: svg
    )
    assert [problem.text.split()[0] for problem in content.problems] == [
        "diagnosis.json",
        "episodes.gif",
    ]
    assert "odd, seed 0" in page.text
    assert not [path for path in folder.iterdir() if b"<script>alert" in path.read_bytes()]
    assert not list(folder.glob("*.gif"))


def test_the_video_is_that_of_the_best_seed(make_run, tell, video):
    runs = [make_run(seed, metrics(0.1, value)) for seed, value in [(0, 0.3), (1, 0.9), (2, 0.5)]]
    asked = []

    def artifact(run_id, name):
        asked.append((run_id, name))
        return video

    page, _ = tell(runs, artifact=artifact)
    assert [one for one in asked if one[1] == "episodes.gif"] == [(runs[1].run_id, "episodes.gif")]
    assert "seed 1" in page.text


def test_an_experiment_that_was_not_measured_stands_on_the_page_and_in_the_table(make_run, write):
    expected = {"expected__metric": "success_mean", "expected__interval": "[0.8, 0.9]"}
    page, folder, content = write([make_run(0, status="FAILED", name=HOSTILE, **expected)])
    assert "? unknown" in page.text
    assert "No run counts" in page.text
    assert [row["outcome"] for row in table(folder / "verdicts.csv")] == ["unknown"]
    assert falls_short(content.verdicts)


def test_the_video_of_the_shortest_episodes_is_shown_where_length_is_asked_for(make_run, video):
    runs = [
        make_run(seed, {"eval/length_mean": {100: value}})
        for seed, value in enumerate((30.0, 10.0, 50.0))
    ]
    content = build_content(
        *make_sections(runs), metric="length_mean", artifact=lambda run_id, name: video
    )
    assert content.sections[0].results[0].video.seed == "1"


def test_a_metric_that_no_run_logged_is_refused_with_those_that_there_are(make_run):
    sections = make_sections([make_run(0, everything(0.1, 0.2))])
    with pytest.raises(UsageError, match="metric: must be one of success_mean, got 'succes_mean'"):
        build_content(*sections, metric="succes_mean")


def test_pictures_over_updates_say_so_and_environment_steps_are_those_that_were_logged(
    make_run, draw
):
    logged = {**everything(0.1, 0.7), "cost/env_steps": {100: 5000.0, 200: 7000.0}}
    page, folder, _ = draw([make_run(0, logged, tags={"axis": "updates"})])
    alts = [attributes["aria-label"] for tag, attributes in page.elements if tag == "svg"]
    assert "against updates." in alts[0]
    assert not any("environment steps" in alt for alt in alts)
    assert (folder / "section-1-success_mean-updates.png").is_file()
    assert {row["env_steps"] for row in table(folder / "groups.csv")} == {"7000.0"}


def test_a_report_in_place_of_another_leaves_nothing_of_it_and_everything_else(
    make_run, write, video
):
    large = video + b"\0" * LARGEST_VIDEO
    _, folder, _ = write([make_run(0, everything(0.2, 0.7))], artifact=lambda run_id, name: large)
    mine = ("section-1-video-B.gif", "section-9-success_mean-env_steps.png", "notes.txt")
    for name in mine:
        (folder / name).write_text("mine")
    (folder.parent / "outside.txt").write_text("mine")
    with (folder / "files.csv").open("a") as listed:
        listed.write("../outside.txt\n")
    before = {path.name for path in folder.iterdir()}
    write([make_run(0, {"eval/return_mean": {100: 0.5}})])
    left = {path.name for path in folder.iterdir()}
    assert "section-1-trials.png" in before - left
    assert "section-1-video-A.gif" in before - left
    listed = {row["file"] for row in table(folder / "files.csv")}
    assert left == listed | {"files.csv", *mine}
    assert (folder.parent / "outside.txt").exists()


def test_a_table_of_files_that_no_report_wrote_takes_nothing_away(make_run, tmp_path):
    (tmp_path / "files.csv").write_text("name\nmine.txt\nindex.html\n")
    (tmp_path / "mine.txt").write_text("mine")
    sections, left_out = make_sections([make_run(0, {"eval/return_mean": {100: 0.5}})])
    write_report(build_content(sections, left_out), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "files.csv").read_text().startswith("file\n")


def test_a_diagnosis_of_memory_is_drawn_where_a_run_has_one(make_run, draw):
    curve = {"lags": [0, 1, 2], "density": [0.1, 0.2, 0.7]}
    found = {"recall": {"all": curve, "last": curve}, "probes": {"left_out": "no twin"}}
    files = {"diagnosis.json": json.dumps(found).encode()}
    runs = [make_run(0, metrics(0.1, 0.7))]
    page, folder, content = draw(runs, artifact=lambda run_id, name: files.get(name))
    assert "Memory" in page.text
    assert [plot.name for plot in content.sections[0].memory] == [
        "section-1-recall-all",
        "section-1-recall-last",
    ]
    assert content.sections[0].memory[0].lines[0].curve.y.tolist() == [0.1, 0.2, 0.7]
    assert (folder / "section-1-recall-last.png").is_file()
    for broken in (None, b"GIF89a\xff", b"[]"):
        content = build_content(
            *make_sections(runs), artifact=lambda run_id, name, broken=broken: broken
        )
        assert not content.sections[0].memory


@pytest.mark.parametrize(
    "diagnosis",
    [
        1,
        [],
        {"recall": 1},
        {"recall": {"all": {"lags": [1]}}},
        {"recall": {"all": {"lags": [1, 2], "density": [1.0]}}},
        {"recall": {"all": {"lags": ["x"], "density": [1.0]}}},
        {"recall": {"all": {"lags": [2, 1], "density": [1.0, 1.0]}}},
        {"probes": {"context": {"steps": [None], "r2": [1.0]}}},
    ],
)
def test_a_malformed_diagnosis_is_a_line_of_the_report(make_run, tell, diagnosis):
    run = make_run(0, metrics(0.1, 0.7))
    files = {"diagnosis.json": json.dumps(diagnosis).encode()}
    _, content = tell([run], artifact=lambda run_id, name: files.get(name))
    assert [problem.run for problem in content.problems] == [run]
    assert not content.sections[0].memory
    good = {"recall": {"all": {"lags": [1, 2], "density": [1.0, 2.0]}}}
    files["diagnosis.json"] = json.dumps(good).encode()
    _, content = tell([run], artifact=lambda run_id, name: files.get(name))
    assert (content.problems, len(content.sections[0].memory)) == ([], 1)


NUMBERS = st.sampled_from([0.0, 0.5, 1.0, -3.0, 2.0, 7e299, -7e299, math.nan, math.inf])
CURVES = st.dictionaries(st.sampled_from([0, 1, 5, 2**40]), NUMBERS, max_size=3)
ODD_METRICS = st.dictionaries(
    st.sampled_from(
        [
            *("eval/success_mean", "eval/success_low", "eval/success_high", "eval/num_episodes"),
            *("eval/num_tasks", "eval/intervals_over_tasks", "eval/return_mean_trial_0"),
            *("train/loss", "train/q_value_0.9", "cost/cpu_s", "cost/env_steps"),
        ]
    ),
    CURVES,
    max_size=6,
)
ODD_TEXTS = st.sampled_from(["", "None", "'", "=1", "\0", "é|<b>", "1e999", "[nan, nan]", "a.b"])
ODD_PARAMS = st.dictionaries(
    st.sampled_from(
        ["seed", "lr", "env._target_", "budget.minutes", "expected.metric", "expected.interval"]
    ),
    ODD_TEXTS,
)
ODD_TAGS = st.dictionaries(
    st.sampled_from(["command", "folder", "axis", "budget.env_steps", "evaluated_on"]), ODD_TEXTS
)


@given(
    odd=ODD_METRICS,
    params=ODD_PARAMS,
    tags=ODD_TAGS,
    status=st.sampled_from(["FINISHED", "KILLED", "RUNNING"]),
    started_ms=st.sampled_from([0, -1, 10**13, 10**18]),
)
@settings(
    deadline=None,
    max_examples=10,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_an_odd_run_ends_no_report_and_changes_no_other_run(
    make_run, tell, odd, params, tags, status, started_ms
):
    good = [make_run(seed, everything(0.2, 0.5 + seed / 10)) for seed in (0, 1)]
    other = make_run(5, odd, tags=tags, status=status, lr=9)
    other = replace(other, params=other.params | params, started_ms=started_ms)
    page, content = tell([*good, other])
    assert "0.550" in page.text  # the mean of the good runs
    listed = {run.run_id for run, _ in content.left_out}
    groups = [entry.group for result in content.sections for entry in result.results]
    counted = {run.run_id for group in groups for run in group.runs}
    assert listed | counted == {run.run_id for run in (*good, other)}
    assert listed <= {other.run_id}


def test_a_run_whose_costs_stand_still_is_drawn_beside_the_others(make_run, write):
    good = make_run(0, everything(0.2, 0.5))
    steps = (10, 20, 30)
    logged = {"success_mean": 0.5, "success_low": 0.25, "success_high": 0.75}
    odd = {f"eval/{name}": dict.fromkeys(steps, value) for name, value in logged.items()}
    odd["cost/cpu_s"] = {10: 1.0, 20: 1.0, 30: 2.0}
    odd["cost/wall_s"] = dict.fromkeys(steps, 0.0)
    _, _, content = write([good, make_run(1, odd, lr=9)])
    assert content.left_out == []
    (section,) = content.sections
    curves = [line.curve for plot in section.learning for line in plot.lines if line.index == 1]
    assert [curve.x.tolist() for curve in curves] == [[10.0, 20.0, 30.0], [1.0, 2.0], [0.0]]
    assert all(len(curve.band[0]) == len(curve.x) for curve in curves)


@pytest.mark.parametrize("breaks", ["alone", "together"])
def test_a_run_that_breaks_its_section_is_left_out(make_run, write, monkeypatch, breaks):
    """Whatever the reason is, others are still reported."""
    draw_all = yamame.report.content.learning_plots
    good = [make_run(seed, everything(0.2, 0.5)) for seed in (0, 1)]
    odd = make_run(2, everything(0.2, 0.9))
    other = make_run(3, everything(0.1, 0.3), env__size=13)

    def fails(section, *arguments):
        runs = [run for group in section.groups for run in group.runs]
        if odd in runs and (breaks == "alone" or len(runs) > 1):
            raise ValueError("shapes do not match")
        return draw_all(section, *arguments)

    monkeypatch.setattr(yamame.report.content, "learning_plots", fails)
    page, _, content = write([*good, odd, other])
    lost = {run.run_id for run, _ in content.left_out}
    expected = [odd] if breaks == "alone" else [*good, odd]
    assert lost == {run.run_id for run in expected}
    assert all("shapes do not match" in reason for _, reason in content.left_out)
    assert "0.300" in page.text
    assert ("0.500" in page.text) == (breaks == "alone")


def test_a_run_that_cannot_be_read_is_left_out_with_the_reason(make_run, tell):
    good, unread, malformed = (make_run(seed, metrics(0.1, 0.7)) for seed in range(3))
    unread = replace(unread, problem="no such table", metrics={})
    malformed = replace(malformed, tags={"command": 1})
    page, content = tell([good, unread, malformed])
    reasons = [reason for _, reason in content.left_out]
    assert "no such table" in reasons[0]
    assert len(reasons) == 2
    assert content.sections[0].section.base.runs == (good,)
    assert "no such table" in page.text


@pytest.mark.parametrize(("over_tasks", "unit"), [(0.0, "episodes"), (1.0, "tasks")])
def test_an_interval_over_tasks_is_called_so(make_run, write, over_tasks, unit):
    logged = {"success_mean": 0.5, "success_low": 0.2, "success_high": 0.9, "num_episodes": 8}
    logged["intervals_over_tasks"] = over_tasks
    run = make_run(0, {f"eval/{name}": {100: value} for name, value in logged.items()})
    page, folder, _ = write([run])
    assert f"{unit} [0." in page.text
    assert {row["interval"] for row in table(folder / "curves.csv")} == {unit}
