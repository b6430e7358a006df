"""Text in CSV files is never a formula, and is read back as it was."""

import csv
import itertools
from dataclasses import replace

import pytest
from yamame.report import make_sections, read_evidence, write_evidence
from yamame.report.csv_files import guarded, unguarded
from yamame.system.messages import printable

CHARACTERS = "=+-@\t\r\n' a1.e\uff1d"
FORMULAS = ("=1", "+1+1", "-a", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1")


def test_every_short_text_is_read_back_and_no_guarded_one_begins_with_a_sign():
    for length in range(5):
        for characters in itertools.product(CHARACTERS, repeat=length):
            text = "".join(characters)
            cell = guarded(text)
            assert unguarded(cell) == text
            begins = cell.lstrip()[:1]
            assert begins not in ("=", "@", "\uff1d")
            if begins in ("+", "-"):
                float(cell)  # a number alone


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_get_an_apostrophe_and_numbers_none(text):
    assert guarded(text) == f"'{text}"
    assert [guarded(number) for number in ("-0.5", "+1", "1e-05")] == ["-0.5", "+1", "1e-05"]


@pytest.mark.parametrize("text", [*FORMULAS, "'=1", "a\rb", 'a "b", c'])
def test_no_cell_of_evidence_is_a_formula_and_every_text_is_read_back(tmp_path, make_run, text):
    tags = {
        "command": f"python recipes/train.py experiment=dark {text.strip()}=1",
        "mlflow.source.git.commit": text,
        "evaluated_on": text,
        "machine.processor": text,
        "machine.threads": text,
        "machine.cores": text,
        "machine.gpu": text,
        "version.cpu": text,
    }
    metrics = {f"eval/{text}": {10: 0.5}, "eval/success_mean": {10: -0.5}}
    run = replace(make_run(metrics=metrics, tags=tags, name=text, env___target_=text), run_id=text)
    write_evidence(tmp_path, make_sections([run])[0])
    for name in ("runs.csv", "evaluations.csv"):
        with (tmp_path / name).open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        for cell in cells:
            assert cell == guarded(unguarded(cell))
            assert cell == "-0.5" or not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))

    (again,) = read_evidence(tmp_path)
    shown = printable(text)  # control characters reach no page
    assert (again.run_id, again.name) == (shown, shown)
    assert again.tags["mlflow.source.git.commit"] == shown
    assert again.metrics[f"eval/{shown}"].values[-1] == 0.5

    files = [tmp_path / "runs.csv", tmp_path / "evaluations.csv"]
    first = [file.read_bytes() for file in files]
    write_evidence(tmp_path, [])  # reads and writes all rows
    kept = [file.read_bytes() for file in files]
    assert kept == first or shown != text
    write_evidence(tmp_path, [])
    assert [file.read_bytes() for file in files] == kept
