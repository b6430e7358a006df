"""Tables of pages: numbers are those of runs, whatever was typed; words stay as they were."""

import re

import pytest
from yamame.checks import UsageError
from yamame.evaluation import wilson_interval
from yamame.report import Resampling, make_sections, place_table, write_tables
from yamame.report.tables import COLUMNS

RESAMPLING = Resampling(num_resamples=50)
HEAD = "| task | `yamame train ...` |"


def page_of(tmp_path, columns, *rows, options=""):
    """A page with a marked table."""
    path = tmp_path / "page.md"
    head = f"{HEAD} {' | '.join(columns)} |"
    table = "\n".join([head, "|---" * (2 + len(columns)) + "|", *rows])
    path.write_text(
        f"before 0.5\n\n<!-- runs:{options} -->\n\n{table}\n\n<!-- end of runs -->\n\nafter 0.5\n"
    )
    return path


def cells(path, row=0):
    """The cells of a row behind task and command."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    return [cell.strip() for cell in lines[2 + row].strip("|").split("|")][2:]


@pytest.fixture
def sections(make_run):
    """Three seeds of an experiment, and of it with something less."""

    def run(seed, value, arguments="", **options):
        metrics = {
            "eval/success_mean": {100: value / 2, 200: value},
            "cost/cpu_s": {100: 10.0 + seed, 200: 20.0 + seed},
        }
        command = (
            f"python recipes/train.py experiment=dark {arguments} seed={seed} run.name=a{seed}"
        )
        tags = {"command": command, "mlflow.source.git.commit": "0123456789abcdef"}
        settings = {"budget__env_steps": 200, "budget__minutes": "None", **options}
        return make_run(seed, metrics, tags=tags, **settings)

    runs = [run(seed, value) for seed, value in enumerate((0.8, 0.9, 1.0))]
    runs += [
        run(seed, value, "+ablation=no_memory", lr=2) for seed, value in enumerate((0.2, 0.1, 0.3))
    ]
    return make_sections(runs)[0]


def test_a_typed_number_is_overwritten_and_words_are_not(tmp_path, sections):
    columns = ["at the end", "mean", "steps", "CPU-s", "budget", "revision", "theirs"]
    page = page_of(
        tmp_path, columns, "| recall, 0.5 | `experiment=dark` | 9.99 | 9.99 | 9 | 9 | 9 | "
            "9 | 0.77 |",
        options=" typed=theirs",
    )  # fmt: skip
    assert write_tables([page], sections, RESAMPLING) == []
    text = page.read_text()
    assert "9.99" not in text
    assert cells(page) == [
        "0.800, 0.900, 1.000", "0.900 [0.652, 1.000] Student", "200", "21.0", "200 steps",
        "0123456", "0.77",
    ]  # fmt: skip
    assert "| recall, 0.5 | `experiment=dark` |" in text
    assert text.startswith("before 0.5\n\n<!-- runs: typed=theirs -->\n\n")
    assert text.endswith("\n\n<!-- end of runs -->\n\nafter 0.5\n")
    write_tables([page], sections, RESAMPLING)
    assert page.read_text() == text


def test_a_command_finds_the_runs_of_its_settings_and_seeds_leave_out_others(tmp_path, sections):
    rows = [
        "| a | `+ablation=no_memory experiment=dark` | | | |",
        "| b | `experiment=dark` | | | |",
    ]
    page = page_of(tmp_path, ["seeds", "at the end", "difference"], *rows, options=" seeds=0, 2")
    write_tables([page], sections, RESAMPLING)
    ends = cells(page)
    assert ends[:2] == ["0, 2", "0.200, 0.300"]
    assert re.fullmatch(
        r"M0.650 \[M\d\.\d+, \d\.\d+\] Welch", ends[2].replace("\N{MINUS SIGN}", "M")
    )
    assert cells(page, 1) == ["0, 2", "0.800, 1.000", ""]


def test_a_mark_is_reached_where_every_seed_crossed_it(tmp_path, sections):
    rows = ["| a | `experiment=dark` | 0.9 | | |", "| b | `experiment=dark` | | 1 | 1 |"]
    page = page_of(tmp_path, ["mark", "reached after CPU-s", "reached after steps"], *rows)
    write_tables([page], sections, RESAMPLING)
    # From 0.5 to 1 within 100 steps and 10 s, and from 0.45 to 0.9.
    assert cells(page) == ["0.9", "never, 21.0, 20.0", "never, 200, 180"]
    assert cells(page, 1) == ["", "", ""]


def test_a_mark_below_the_first_evaluation_gives_an_upper_bound(tmp_path, sections):
    row = "| a | `experiment=dark` | 0.42 | | |"
    page = page_of(tmp_path, ["mark", "reached after CPU-s", "reached after steps"], row)
    write_tables([page], sections, RESAMPLING)
    _, cpu_s, steps = cells(page)
    assert [cell[0] == "≤" for cell in steps.split(", ")] == [False, True, True], steps
    assert [cell[0] == "≤" for cell in cpu_s.split(", ")] == [False, True, True], cpu_s


def test_the_latest_of_several_settings_with_one_command_counts(tmp_path, make_run):
    tags = {"command": "python recipes/train.py experiment=dark seed=0"}
    runs = [
        make_run(0, {"eval/success_mean": {1: value}}, tags=tags, lr=value) for value in (0.1, 0.2)
    ]
    page = page_of(tmp_path, ["at the end"], "| a | `experiment=dark` | |")
    write_tables([page], make_sections(runs)[0], RESAMPLING)
    assert cells(page) == ["0.200"]


@pytest.mark.parametrize(
    "command", ["experiment=darker", "experiment=dark lr=3", "experiment=dark ~trials"]
)
def test_a_row_that_was_not_run_is_named_and_has_no_number(tmp_path, sections, command):
    rows = [f"| a | `{command}` | 4 | 0.99 | 5 |", "| b | `experiment=dark` | | | |"]
    page = page_of(tmp_path, ["seeds", "at the end", "CPU-s"], *rows, options=" seeds=0,1")
    assert write_tables([page], sections, RESAMPLING) == [
        f"{page}: to be measured: yamame train {command}"
    ]
    assert cells(page) == ["0, 1", "to be measured", ""]
    assert cells(page, 1) == ["0, 1", "0.800, 0.900", "20.5"]


def test_seeds_that_were_not_run_are_named(tmp_path, sections):
    page = page_of(tmp_path, ["at the end"], "| a | `experiment=dark` | |", options=" seeds=2,3,4")
    (line,) = write_tables([page], sections, RESAMPLING)
    assert line.endswith("yamame train experiment=dark seed=3,4")
    assert cells(page) == ["1.000 (1 of 3 seeds)"]


@pytest.mark.parametrize(
    "columns", [["seeds", "mean"], ["at the end", "CPU-s"], ["CPU-s"], ["verdict", "mean"]]
)
@pytest.mark.parametrize(
    ("seeds", "lacks"), [("0,1,2,3", "3 of 4 seeds"), ("0,1,2", ""), ("2,7", "1 of 2 seeds")]
)
def test_a_row_that_lacks_seeds_is_marked_whatever_its_columns(
    tmp_path, sections, columns, seeds, lacks
):
    row = f"| a | `experiment=dark` | {' | '.join('' for _ in columns)} |"
    page = page_of(tmp_path, columns, row, options=f" seeds={seeds}")
    write_tables([page], sections, RESAMPLING)
    assert re.findall(r"\((\d of \d seeds)\)", page.read_text()) == ([lacks] if lacks else [])
    before = page.read_text()
    write_tables([page], sections, RESAMPLING)
    assert page.read_text() == before


def test_a_seed_without_a_value_lacks_and_so_does_one_of_the_base(tmp_path, make_run):
    def run(seed, arguments, metrics, **options):
        command = f"python recipes/train.py experiment=dark {arguments} seed={seed}"
        return make_run(seed, metrics, tags={"command": command}, **options)

    success = {"eval/success_mean": {100: 0.5}}
    runs = [run(0, "", success), run(1, "", {"eval/success_mean": {100: float("nan")}})]
    runs += [run(seed, "+ablation=no_memory", success, lr=2) for seed in (0, 1)]
    rows = ["| a | `experiment=dark` | | |", "| b | `experiment=dark +ablation=no_memory` | | |"]
    page = page_of(tmp_path, ["mean", "difference"], *rows, options=" seeds=0,1")
    write_tables([page], make_sections(runs)[0], RESAMPLING)
    assert "(1 of 2 seeds)" in cells(page)[0]
    assert "seeds" not in cells(page, 1)[0]
    assert "(base: 1 of 2 seeds)" in cells(page, 1)[1]


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_seeds_that_do_not_differ_have_the_interval_over_episodes_and_no_difference_is_certain(
    tmp_path, make_run, value
):
    def run(seed, arguments, value, **options):
        command = f"python recipes/train.py experiment=dark {arguments} seed={seed}"
        low, high = wilson_interval(round(value * 16), 16)
        numbers = {
            "success_mean": value,
            "success_low": low,
            "success_high": high,
            "num_episodes": 16,
        }
        metrics = {f"eval/{name}": {100: number} for name, number in numbers.items()}
        return make_run(seed, metrics, tags={"command": command}, **options)

    runs = [run(seed, "", value) for seed in range(3)]
    runs += [run(seed, "+ablation=no_memory", 1.0 - value, lr=2) for seed in range(3)]
    rows = [
        "| a | `experiment=dark` | | | 0.9 |",
        "| b | `experiment=dark +ablation=no_memory` | | | |",
    ]
    columns = ["mean", "difference", "theirs", "verdict"]
    rows = [f"{row} |" for row in rows]
    page = page_of(tmp_path, columns, *rows, options=" seeds=0,1,2; typed=theirs; against=theirs")
    write_tables([page], make_sections(runs)[0], RESAMPLING)
    for row in (0, 1):
        ends = re.fullmatch(r"\d\.\d+ \[(.*), (.*)\] episodes", cells(page, row)[0])
        assert ends is not None, cells(page, row)
        assert float(ends[2]) - float(ends[1]) > 0.05
        assert "[" not in cells(page, row)[1]
    assert cells(page)[3] == (
        "within" if value == 1.0 else "below"
    )  # the interval of 16 episodes reaches below 0.9


def test_a_page_with_numbers_of_which_nothing_was_run_stays_as_it_is(tmp_path, sections):
    page = page_of(tmp_path, ["at the end"], "| a | `experiment=dark` | 0.99 |")
    before = page.read_text()
    with pytest.raises(UsageError, match=r"no row of .* was run"):
        write_tables([page], [], RESAMPLING)
    assert page.read_text() == before
    page.write_text(before.replace("0.99", "to be measured"))
    assert len(write_tables([page], [], RESAMPLING)) == 1


def test_a_difference_is_to_the_latest_runs_of_the_base(tmp_path, make_run):
    def run(arguments, value, lr):
        tags = {"command": f"python recipes/train.py experiment=dark {arguments} seed=0"}
        return make_run(0, {"eval/success_mean": {1: value}}, tags=tags, lr=lr)

    runs = [run("", 0.1, 1), run("", 0.5, 2), run("+ablation=no_memory", 0.2, 3)]
    page = page_of(tmp_path, ["difference"], "| a | `experiment=dark +ablation=no_memory` | |")
    write_tables([page], make_sections(runs)[0], RESAMPLING)
    assert cells(page) == ["\N{MINUS SIGN}0.300"]


def test_names_of_runs_stay_in_their_cell(tmp_path, make_run):
    tags = {
        "command": "python recipes/train.py experiment=dark",
        "mlflow.source.git.commit": "a|<b\n",
    }
    page = page_of(tmp_path, ["revision"], "| a | `experiment=dark` | |")
    write_tables([page], make_sections([make_run(tags=tags)])[0], RESAMPLING)
    assert r"| a | `experiment=dark` | a\|&lt;b |" in page.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("<!-- runs:", "<!-- run:"), "has 0 .* and 1 '<!-- end of runs -->'"),
        (("after 0.5", "<!-- runs: -->"), "has 2 .* and 1 '<!-- end of runs -->'"),
        (("train ...", "train"), r"must have a column `yamame <recipe> ...`"),
        (
            ("at the end", "at the and"),
            "a column must be typed or one of seeds, .* got at the and in",
        ),
        (
            ("| 0.5 |\n", "| 0.5 | 1 |\n"),
            "a row must have 4 cells, got a | `experiment=dark` | 0 | 0.5 | 1 in",
        ),
        (("| 0.5 |\n", "| half |\n"), "a mark must be a number, got half in"),
        (("=dark", "='dark"), "a command must be one, got experiment='dark in"),
        (("runs:", "runs: seed=0"), "seeds, typed, against, got seed in"),
        (("runs:", "runs: seeds=0-2"), "seeds must be as 0,1,2, got 0-2 in"),
        (
            ("|---|---|---|---|\n", ""),
            "a table must have a rule below its head, got a | `experiment=dark` | 0 | 0.5 in",
        ),
        (("runs:", "runs: against=theirs"), "against must name a column, got theirs in"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_and_no_page_is_written(
    tmp_path, sections, change, message
):
    good = page_of(tmp_path, ["at the end"], "| a | `experiment=dark` | 0 |").rename(
        tmp_path / "good.md"
    )
    page = page_of(tmp_path, ["at the end", "mark"], "| a | `experiment=dark` | 0 | 0.5 |")
    page.write_text(page.read_text().replace(*change))
    before = good.read_text(), page.read_text()
    with pytest.raises(UsageError, match=message.replace("|", r"\|")):
        write_tables([good, page], sections, RESAMPLING)
    assert (good.read_text(), page.read_text()) == before


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ("0.5", "above"),
        ("0.85 ± 0.01", "within"),
        ("0.900 ± 0.000", "within"),
        ("0.901 ± 0.000", "below"),
        ("0.904", "below"),
        ("0.90", "within"),
        ("0.95 ± 0.01", "below"),
        ("0.95 ± 0.05", "within"),
        ("\N{MINUS SIGN}0.2", "above"),
        ("(0.5)", ""),
        ("", ""),
    ],
)
def test_a_verdict_puts_the_best_evaluation_beside_a_published_number(
    tmp_path, make_run, theirs, verdict
):
    values = {1: 0.2, 2: 0.85, 3: 0.4}
    metrics = {"eval/success_mean": values}
    metrics |= {
        f"eval/success_{end}": {k: v + by for k, v in values.items()}
        for end, by in (("low", -0.05), ("high", 0.05))
    }
    runs = [
        make_run(0, metrics, tags={"command": "python recipes/train.py experiment=dark seed=0"})
    ]
    row = f"| a | `experiment=dark` | | | | {theirs} |"
    page = page_of(
        tmp_path,
        ["at the end", "best", "verdict", "theirs"],
        row,
        options=" typed=theirs; against=theirs",
    )
    write_tables([page], make_sections(runs)[0], RESAMPLING)
    assert cells(page) == ["0.400", "0.850", verdict and f"{verdict} (one seed)", theirs]


def test_a_verdict_on_several_seeds_goes_by_their_spread(tmp_path, sections):
    rows = [f"| a | `experiment=dark` | | | {theirs} |" for theirs in (0.66, 0.64, 1.2)]
    page = page_of(
        tmp_path, ["best", "verdict", "theirs"], *rows, options=" typed=theirs; against=theirs"
    )
    write_tables([page], sections, RESAMPLING)
    # Student's interval of 0.8, 0.9 and 1.0 begins at 0.652.
    assert [cells(page, row)[1] for row in range(3)] == ["within", "above", "below"]


def test_a_table_takes_the_place_of_that_of_a_page(tmp_path):
    page = tmp_path / "new" / "page.md"
    table = "<!-- runs: -->\n\n| a |\n\n<!-- end of runs -->"
    place_table(page, "Title", table, "notes")
    below = "<!-- notes -->\n\nnotes\n\n<!-- end of notes -->"
    assert page.read_text() == f"# Title\n\n{table}\n\n{below}\n"
    place_table(page, "Other", table.replace("a", "\\1"), "other \\1")
    backslash = chr(92) + "1"
    below = below.replace("notes\n\n<", f"other {backslash}\n\n<")
    assert page.read_text() == f"# Title\n\n{table.replace('a', backslash)}\n\n{below}\n"
    page.write_text(f"{table}\n\nfootnote")
    place_table(page, "Title", table, "notes")
    assert page.read_text() == f"{table}\n\nfootnote"
    page.write_text(f"{table}\n{table}")
    with pytest.raises(UsageError, match=r"page: .* must have one marked table, it has 2"):
        place_table(page, "Title", table, "notes")


def test_every_column_can_be_written(tmp_path, sections):
    page = page_of(tmp_path, list(COLUMNS), f"| a | `experiment=dark` {'| ' * len(COLUMNS)}|")
    write_tables([page], sections, RESAMPLING)
    assert len(cells(page)) == len(COLUMNS)
