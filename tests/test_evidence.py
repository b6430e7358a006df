"""Results on pages are those of the CSV files, which are read here without the code that fills
tables.
"""

import csv
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "results"
TABLES = ("README.md", "docs/benchmarks.md", "docs/leaderboard.md", "docs/howto/memory_models.md")
"""Pages with marked tables."""
PROSE = (
    *("README.md", "zoo/README.md"),
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if path.relative_to(ROOT).parts[1] != "lab"
    ),
)
"""Pages of users: no sentence or table has a decimal number that could be a result, unless its
source is marked.
"""
CARDS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "zoo").glob("*/README.md"))
WITHOUT_HASHES = (*PROSE, *CARDS, "CONTRIBUTING.md")
TO_BE_MEASURED = "to be measured"
MARKED = re.compile(r"<!-- runs:(.*?)-->\n(.*?)<!-- end of runs -->", re.DOTALL)
BLOCK = re.compile(
    r"<!-- (?P<kind>printed|predicted|published|versions|constants)(?: by)?: (?P<source>.*?) -->\n"
    r"(?P<text>.*?)<!-- end of (?P=kind) -->",
    re.DOTALL,
)
"""Part of a page whose numbers are no results of training, with their source: a command of the
repository that prints them to anyone, a file that predicts them, a paper, or the files with
admitted versions or constants."""
NUMBERS_OF_PROSE = (
    r"<!--.*?-->",
    r"\]\([^)]*\)",
    r"https?://\S+",
    r"arXiv \d+\.\d+",
    r"\$\$.*?\$\$",
    r"\$[^$\n]*\$",
    r"\b\d+\.\d+\.\d+(\.\d+)?\b",
    r"\b(Python|torch|AMAGO|[Vv]ersion) \d+\.\d+( to \d+\.\d+)?",
)
"""What has decimals that are no results: links, formulas, versions and addresses."""
LEVELS = {"95"}
"""Percentages of intervals."""
TYPED = {"task", "metric", "mark"}


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    path = folder / name
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def words_of(command: str) -> set[str]:
    return {word.lstrip("+") for word in shlex.split(command)}


def runs_of(folder: Path, command: str, seeds: list[str]) -> list[dict[str, str]]:
    """The rows of a command: of the settings that were started last, for these seeds, in their
    order.
    """
    rows = [
        row
        for row in rows_of(folder, "runs.csv")
        if words_of(row.get("overrides", "").removeprefix("'")) == words_of(command)
    ]
    latest = max(rows, key=lambda row: row["date"], default={}).get("settings_id")
    by_seed = {
        row["seed"]: row
        for row in sorted(rows, key=lambda row: row["date"])
        if row["settings_id"] == latest
    }
    return [by_seed[seed] for seed in seeds if seed in by_seed]


def crossing(folder: Path, run: dict[str, str], mark: float, cost: str) -> tuple[str, float] | None:
    """Where a line between two evaluations first crosses a mark, after ≤ at the first of them."""
    points = [
        (float(row["env_steps"]), float(row[cost]), float(row[run["metric"]]))
        for row in rows_of(folder, "evaluations.csv")
        if row["run"] == run["run"]
    ]
    points.sort()
    for index, (_, place, value) in enumerate(points):
        if value >= mark:
            if index == 0:
                return "≤", place
            _, before, low = points[index - 1]
            return "", before + (place - before) * (mark - low) / (value - low)
    return None


def plain(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-").replace(",", "")


def shown(value: float) -> str:
    """A number as tables write it."""
    digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def expected_cell(
    folder: Path, name: str, cells: dict[str, str], runs: list[dict[str, str]]
) -> list[str] | None:
    """The numbers that a cell must have; None for a column that is not computed again here."""
    values = [float(run["value"]) for run in runs]
    cost = {"steps": "env_steps", "CPU-s": "cpu_s", "wall-s": "wall_s"}.get(name)
    if name == "at the end":
        return [shown(value) for value in values]
    if name == "mean":
        return [shown(sum(values) / len(values))]
    if cost is not None:
        mean = sum(float(run[cost]) for run in runs) / len(runs)
        return [shown(mean) if cost == "env_steps" else f"{mean:.{1 if mean < 100 else 0}f}"]
    if name.startswith("reached after") and cells.get("mark"):
        cost = "cpu_s" if name.endswith("CPU-s") else "env_steps"
        places = [crossing(folder, run, float(cells["mark"]), cost) for run in runs]
        wanted = []
        for found in places:
            if found is None:
                wanted.append("never")
                continue
            bound, place = found
            digits = 0 if cost == "env_steps" or place >= 100 else 1
            wanted.append(f"{bound}{place:.{digits}f}")
        return wanted
    return None


def row_of(row: list[str], head: list[str], typed: set[str]) -> str:
    """The computed cells of a row."""
    names = zip(head, row, strict=True)
    return " | ".join(cell for name, cell in names if name not in typed and not is_command(name))


def is_command(name: str) -> bool:
    """Whether a column holds commands."""
    return name.startswith(("`yamame ", "`python recipes/"))


def wrong_cells(text: str, folder: Path) -> list[str]:
    """Cells of the marked tables of a page that are not what the CSV files say."""
    found = []
    for options, table in MARKED.findall(text):
        seeds = re.findall(r"\d+", (re.search(r"seeds=([\d, ]+)", options) or ["", "0"])[1])
        typed = TYPED | set(
            (re.search(r"typed=([^;]*)", options) or ["", ""])[1].strip().split(",")
        )
        lines = [line.strip().strip("|") for line in table.splitlines() if line.startswith("|")]
        head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
        for row in rows:
            cells = dict(zip(head, row, strict=True))
            command = next(cell.strip("`") for name, cell in cells.items() if is_command(name))
            runs = runs_of(folder, command, seeds)
            lacks = f"({len(runs)} of {len(seeds)} seeds)" if 0 < len(runs) < len(seeds) else ""
            marks = re.findall(r"\(\d+ of \d+ seeds\)", row_of(row, head, typed))
            if marks != ([lacks] if lacks else []):
                found.append(
                    f"{command}: has {len(runs)} of {len(seeds)} seeds, and is marked {marks}"
                )
            for name, cell in cells.items():
                if name in typed | {"seeds"} or is_command(name):
                    continue
                if not runs:
                    if cell not in ("", TO_BE_MEASURED):
                        found.append(f"{command}: {name} is {cell}, and was not run")
                    continue
                wanted = expected_cell(folder, name, cells, runs)
                cell = re.sub(r" ?\(\d+ of \d+ seeds\)", "", cell)
                numbers = [plain(number) for number in cell.partition(" [")[0].split(", ")]
                if wanted is not None and numbers != wanted:
                    found.append(f"{command}: {name} is {numbers}, and must be {wanted}")
    return found


def untold_numbers(text: str) -> list[str]:
    """Decimal numbers outside of marked tables and blocks that no marked table has, except for
    `NUMBERS_OF_PROSE`.
    """
    tables = " ".join(table for _, table in MARKED.findall(text))
    rest = BLOCK.sub(" ", MARKED.sub(" ", text))
    rest = re.sub(r"```.*?```", " ", rest, flags=re.DOTALL)
    # Settings, calls and lists in code are no results; a number alone or what a program printed may
    # be one.
    rest = re.sub(r"`[^`]*`", lambda code: " " if re.search(r"[=(\[]", code[0]) else code[0], rest)
    for pattern in NUMBERS_OF_PROSE:
        rest = re.sub(pattern, " ", rest, flags=re.DOTALL)
    numbers = re.findall(r"\d*\.\d+|\d+(?= ?%)", rest)
    known = {*re.findall(r"[\d.]+", tables), *LEVELS}
    return [number for number in numbers if number not in known]


def wrong_constants(text: str) -> list[str]:
    """Decimal numbers and percentages of marked constants that are not in the named files."""
    found = []
    for block in BLOCK.finditer(text):
        if block["kind"] != "constants":
            continue
        known = set()
        for name in block["source"].split(", "):
            file = ROOT / name
            is_package = file.name == "__init__.py"
            for part in file.parent.glob("*.py") if is_package else [file]:
                numbers = re.findall(r"\d+\.?\d*(?:[eE][+-]?\d+)?", part.read_text())
                known.update(map(float, numbers))
        for number, percent in re.findall(r"(\d*\.\d+|\d+(?= ?%))( ?%)?", block["text"]):
            value = round(float(number) / 100, 6) if percent else float(number)
            if value not in known and not (percent and number in LEVELS):
                found.append(f"{block['source']} has no {number}{percent}")
    return found


def unknown_sources(text: str) -> list[str]:
    """Sources of marked blocks that are not there: commands and files of the repository, or
    published pages.
    """
    found = []
    for block in BLOCK.finditer(text):
        kind, source = block["kind"], block["source"]
        if kind == "published":
            page = r"(arXiv \d{4}\.\d{5}|https?://\S+)"
            known = bool(re.fullmatch(rf"{page}(, {page})*", source))
        else:
            words = source.split()
            is_command = words[0] == "python"
            files = [words[1]] if is_command else source.split(", ")
            known = all((ROOT / file.split()[0]).is_file() for file in files)
            known = known and is_command == (kind == "printed")
        if not known:
            found.append(f"{kind}: {source}")
    return found


def hashes(text: str) -> list[str]:
    rest = re.sub(r"https?://\S+", " ", text)
    return [
        word
        for word in re.findall(r"\b[0-9a-f]{7,40}\b", rest)
        if re.search(r"[a-f]", word) and re.search(r"\d", word)
    ]


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_a_marked_table_is_that_of_its_runs(name):
    assert wrong_cells((ROOT / name).read_text(), EVIDENCE) == []


@pytest.mark.parametrize("name", PROSE)
def test_every_number_in_the_prose_of_a_page_is_one_of_its_tables(name):
    assert untold_numbers((ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", PROSE)
def test_the_sources_of_marked_blocks_are_there(name):
    text = (ROOT / name).read_text()
    assert unknown_sources(text) == []
    assert wrong_constants(text) == []
    assert text.count("<!-- end of ") == len(BLOCK.findall(text)) + len(MARKED.findall(text))


@pytest.mark.parametrize("name", [name for name in WITHOUT_HASHES if (ROOT / name).is_file()])
def test_pages_have_no_commit_hashes(name):
    assert hashes((ROOT / name).read_text()) == []


def test_experiments_expect_by_a_bound_or_a_paper_and_not_by_runs_that_were_not_kept():
    sources = {}
    for path in sorted((ROOT / "conf" / "experiment").glob("*.yaml")):
        found = re.search(r"^ +source: (.+)$", path.read_text(), re.MULTILINE)
        if found:
            sources[path.stem] = found[1].strip("\"'")
    assert len(sources) >= 4
    assert [name for name, source in sources.items() if is_a_result(source)] == []
    assert is_a_result("0.77 to 0.82 in nine runs")
    assert not is_a_result("bound, of any policy: 0.95")


def is_a_result(source: str) -> bool:
    cited = source.startswith("bound") or "arXiv" in source
    return not cited and bool(re.search(r"\d\.\d", source))


def test_marked_tables_name_experiments_and_ablations_that_there_are():
    for name in TABLES:
        rows = re.findall(
            r"`((?:experiment|env)=[^`]+)`",
            " ".join(table for _, table in MARKED.findall((ROOT / name).read_text())),
        )
        assert len(rows) >= 6
        for group in ("experiment", "ablation"):
            named = set(re.findall(rf"\b{group}=(\w+)", " ".join(rows)))
            assert named <= {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


def test_tables_are_the_same_when_they_are_filled_again_from_the_files(tmp_path):
    from yamame.report import Resampling, make_sections, read_evidence, write_tables

    sections = make_sections(read_evidence(EVIDENCE))[0]
    for name in TABLES:
        copy = tmp_path / Path(name).name
        copy.write_bytes((ROOT / name).read_bytes())
        write_tables([copy], sections, Resampling())
        assert copy.read_bytes() == (ROOT / name).read_bytes(), name


def test_results_of_recurrent_ppo_are_those_of_its_file():
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    (table,) = [table for head, table in MARKED.findall(page) if "typed=RecurrentPPO" in head]
    shown = re.findall(r"^\| (\w+) \|.*\| (\S+) \| ([\d,]+) \| [\d,]* \|$", table, re.MULTILINE)
    rows = {row["task"]: row for row in rows_of(EVIDENCE, "recurrent_ppo.csv")}
    assert len(shown) == len(rows) >= 9
    for task, best, steps in shown:
        assert best == f"{float(rows[task]['best']):.3f}", task
        assert steps == f"{int(rows[task]['env_steps']):,}", task
        assert float(rows[task]["cpu_s"]) >= float(rows[task]["budget_cpu_s"]), task


def test_scores_of_reproduced_experiments_are_those_of_their_file():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    (table,) = [table for head, table in MARKED.findall(page) if "typed=reported" in head]
    names = {row["name"]: row["overrides"] for row in rows_of(EVIDENCE, "runs.csv")}
    scores: dict[str, list[str]] = {}
    for row in rows_of(EVIDENCE, "reproduced.csv"):
        scores.setdefault(names[row["run"]], []).append(f"{float(row['score']):.3f}")
    shown = {}
    for line in table.splitlines():
        _, _, command, _, reported, *_ = [*line.split("|"), "", "", "", ""]
        if "experiment=" in command and reported.strip():
            shown[command.strip().strip("`")] = reported.strip().split(", ")
    assert shown == scores


def test_files_say_how_each_run_was_made():
    runs, evaluations = rows_of(EVIDENCE, "runs.csv"), rows_of(EVIDENCE, "evaluations.csv")
    assert faults(runs, evaluations) == []


def faults(runs: list[dict[str, str]], evaluations: list[dict[str, str]]) -> list[str]:
    """Rows that cannot be repeated or do not agree with each other."""
    found = []
    needed = (
        "recipe",
        "overrides",
        "seed",
        "metric",
        "value",
        "date",
        "processor",
        "instructions",
        "cores",
        "versions",
    )
    for run in runs:
        found += [f"{run['run']}: has no {name}" for name in needed if not run[name]]
        if not re.fullmatch(
            r"[0-9a-f]{40}", run["revision"]
        ):  # one with local changes cannot be checked out
            found.append(f"{run['run']}: revision is {run['revision']}")
        found += [f"{run['run']}: {name} is {run[name]}" for name in several(run)]
        own = [row for row in evaluations if row["run"] == run["run"]]
        if not own or own[-1][run["metric"]] != run["value"] or own[-1]["cpu_s"] != run["cpu_s"]:
            found.append(f"{run['run']}: its last evaluation says otherwise")
    known = {run["run"] for run in runs}
    return found + [f"{row['run']}: is no run" for row in evaluations if row["run"] not in known]


def several(run: dict[str, str]) -> list[str]:
    """Columns with several values, or with another value than the overrides of the same row."""
    given = dict(word.split("=", 1) for word in shlex.split(run["overrides"]) if "=" in word)
    found = []
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?( [^|;]+)?", run["device"]) or (
        "device" in given and run["device"].split()[0] != given["device"]
    ):
        found.append("device")
    autocast = {"bfloat16": "bfloat16", "null": "float32", "auto": run["precision"]}
    wanted = autocast.get(given.get("schedule.autocast", "auto"))
    if run["precision"] not in ("float32", "bfloat16") or run["precision"] != wanted:
        found.append("precision")
    found += [name for name in ("processor", "instructions", "versions") if "|" in run[name]]
    limits = dict(word.split("=", 1) for word in run["budget"].split())
    for key, value in given.items():
        limit = key.removeprefix("budget.")
        if (
            key.startswith("budget.")
            and value != "null"
            and float(limits.get(limit, "nan")) != float(value)
        ):
            found.append("budget")
    return found


def test_the_columns_of_the_files_are_explained():
    text = (EVIDENCE / "README.md").read_text()
    for name in ("runs.csv", "evaluations.csv"):
        with (EVIDENCE / name).open(newline="") as file:
            columns = next(csv.reader(file))
        part = text[text.index(f"## {name}") :].partition("\n## ")[0]
        named = set(re.findall(r"`(\w+)`", part))
        metrics = (
            re.compile(r"(success|return|length)_|num_episodes|finished")
            if name == "evaluations.csv"
            else re.compile("$^")
        )
        assert {
            column for column in columns if column not in named and not metrics.match(column)
        } == set()


# The same checks on a page and files made by hand, in which something is changed.

PAGE = """Seeds reach 0.900 at the end.

<!-- runs: seeds=0,1; typed=theirs -->

| task | `python recipes/train.py ...` | mark | at the end | reached after steps | CPU-s | theirs |
| --- | --- | --- | --- | --- | --- | --- |
| recall | `experiment=a +ablation=b` | 0.5 | 0.800, 0.900 | 1,500, 1,500 | 104 | 0.77 |
| other | `experiment=c` | 0.5 | to be measured | | | 0.66 |

<!-- end of runs -->
"""
REVISION = "0123456789" * 4


def files(folder: Path) -> None:
    made = {
        "recipe": "train",
        "overrides": "experiment=a +ablation=b",
        "metric": "success_mean",
        "settings_id": "s",
    }
    made |= {"revision": REVISION, "date": "2026-01-01T00:00:00Z"}
    made |= dict.fromkeys(("processor", "instructions", "cores", "versions"), "x")
    made |= {"device": "cpu", "precision": "float32", "budget": "env_steps=2000"}
    runs = [
        made | {"run": f"r{s}", "seed": str(s), "value": f"0.{8 + s}", "cpu_s": str(103 + 2 * s)}
        for s in (0, 1)
    ]
    curves = {"r0": [(1000, 50, 0.2), (2000, 103, 0.8)], "r1": [(1000, 50, 0.1), (2000, 105, 0.9)]}
    evaluations = [
        {"run": run, "env_steps": str(steps), "cpu_s": str(cpu), "success_mean": str(value)}
        for run, curve in curves.items()
        for steps, cpu, value in curve
    ]
    for name, rows in (("runs.csv", runs), ("evaluations.csv", evaluations)):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def test_a_page_that_agrees_with_its_files_has_no_fault(tmp_path):
    files(tmp_path)
    assert wrong_cells(PAGE, tmp_path) == []
    assert untold_numbers(PAGE) == []
    assert faults(rows_of(tmp_path, "runs.csv"), rows_of(tmp_path, "evaluations.csv")) == []


@pytest.mark.parametrize("column", ["at the end", "seeds"])
def test_a_row_that_lacks_seeds_must_be_marked(tmp_path, column):
    files(tmp_path)
    page = PAGE.replace("| mark | at the end |", "| mark | seeds | at the end |").replace(
        "| --- |", "| --- | --- |", 1
    )
    page = page.replace("| 0.5 |", "| 0.5 | 0, 1 |")
    assert wrong_cells(page, tmp_path) == []
    partial = page.replace("seeds=0,1;", "seeds=0,1,2;")
    assert len(wrong_cells(partial, tmp_path)) == 1
    cell = "0.800, 0.900" if column == "at the end" else "| 0.5 | 0, 1"
    assert wrong_cells(partial.replace(cell, f"{cell} (2 of 3 seeds)", 1), tmp_path) == []
    assert len(wrong_cells(partial.replace(cell, f"{cell} (1 of 3 seeds)", 1), tmp_path)) == 1
    assert len(wrong_cells(page.replace(cell, f"{cell} (2 of 3 seeds)", 1), tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("page", "0.800, 0.900 |", "0.800, 0.901 |"),
        ("page", "0.800, 0.900 |", "0.900, 0.800 |"),
        ("page", "1,500, 1,500", "1,500, never"),
        ("page", "| 104 |", "| 105 |"),
        ("page", "| to be measured |", "| 0.800 |"),
        ("page", "+ablation=b", "+ablation=d"),
        ("runs.csv", "0.9", "0.91"),
        ("runs.csv", "r1,1,", "r1,2,"),
        ("evaluations.csv", "2000,103,0.8", "2000,103,0.7"),
    ],
)
def test_a_number_that_was_changed_on_either_side_is_found(tmp_path, name, before, after):
    files(tmp_path)
    page = PAGE
    if name == "page":
        assert before in page
        page = page.replace(before, after)
    else:
        text = (tmp_path / name).read_text()
        columns = text.splitlines()[0].split(",")
        if name == "runs.csv" and before.startswith("r1"):
            before, after = (f"r1,{seed}," for seed in ("1", "2"))
            assert columns.index("seed") == columns.index("run") + 1
        assert before in text
        (tmp_path / name).write_text(text.replace(before, after))
    assert wrong_cells(page, tmp_path) != []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("reach 0.900", "reach `0.910`"),
        ("reach 0.900", "print `success 0.910`"),
        ("reach 0.900", "reach 0.910"),
        ("reach 0.900", "reach 91 %"),
        ("reach 0.900", "reach 91%"),
        ("\n<!-- runs", "0.95 of all\n<!-- runs"),
    ],
)
def test_a_number_in_prose_that_no_table_has_is_found(before, after):
    assert untold_numbers(PAGE) == []
    assert len(untold_numbers(PAGE.replace(before, after, 1))) == 1


def test_a_number_in_a_block_needs_a_source_that_is_there():
    block = "<!-- printed by: {} -->\n\nIt reaches 0.91 and `0.92`.\n\n<!-- end of printed -->\n"
    real = block.format("python tools/environments.py")
    assert untold_numbers(real) == []
    assert unknown_sources(real) == []
    for source in ("python tools/nothing.py", "tools/environments.py", "0.91 on one core"):
        assert len(unknown_sources(block.format(source))) == 1
    assert untold_numbers(real.replace("<!-- end of printed -->", "")) == ["0.91", "0.92"]
    assert (
        unknown_sources("<!-- published: arXiv 2310.09971 -->\n0.63\n<!-- end of published -->")
        == []
    )
    assert len(unknown_sources("<!-- published: a paper -->\n0.63\n<!-- end of published -->")) == 1


def test_a_constant_that_its_file_does_not_have_is_found():
    block = "<!-- constants: conf/base.yaml, conf/train.yaml -->\n{}\n<!-- end of constants -->\n"
    assert wrong_constants(block.format("Half (0.5), 50 % and `0.998`")) == []
    for wrong in ("0.899", "51 %", "51%"):
        assert len(wrong_constants(block.format(f"Half (0.5) and {wrong}"))) == 1
    assert unknown_sources(block) == []
    assert len(unknown_sources(block.replace("train", "nothing"))) == 1


def test_rows_that_cannot_be_repeated_are_found(tmp_path):
    files(tmp_path)
    runs, evaluations = rows_of(tmp_path, "runs.csv"), rows_of(tmp_path, "evaluations.csv")
    assert len(faults([runs[0] | {"revision": f"{REVISION}-dirty"}, runs[1]], evaluations)) == 1
    assert len(faults([runs[0] | {"overrides": ""}, runs[1]], evaluations)) == 1
    for changed in (
        {"revision": f"{REVISION} | {'b' * 40}"},
        {"device": "cpu | cuda H100"},
        {"device": "cuda H100", "overrides": "device=cpu"},
        {"precision": "float32 | bfloat16"},
        {"precision": "float32", "overrides": "schedule.autocast=bfloat16"},
        {"processor": "EPYC | Xeon"},
        {"overrides": "budget.env_steps=9"},
    ):
        assert len(faults([runs[0] | changed, runs[1]], evaluations)) == 1, changed
    alike = {
        "precision": "bfloat16",
        "overrides": "schedule.autocast=bfloat16 budget.env_steps=2000",
    }
    assert faults([runs[0] | alike, runs[1]], evaluations) == []
    assert len(faults([runs[0] | {"value": "0.7"}, runs[1]], evaluations)) == 1
    assert len(faults(runs[:1], evaluations)) == 2


def test_hashes_are_found_and_other_words_are_not():
    assert hashes("at b7c1273, not 2010.09971, defaced, 1234567 or https://a.b/a93e8b9") == [
        "b7c1273"
    ]
