"""Reports of runs: a page of an MLflow experiment with tables, curves, videos and verdicts.

`RunReader` reads runs, `make_sections` sorts them, `build_content` computes the numbers from data
frames (`yamame.report.frames`), `write_report` writes page, pictures and tables. `write_evidence`
and `read_evidence` keep the numbers of runs as CSV files, from which `write_tables` fills the
tables of Markdown pages.
"""

from yamame.evaluation.intervals import Resampling as Resampling
from yamame.report.content import Verdict as Verdict
from yamame.report.content import build_content as build_content
from yamame.report.content import falls_short as falls_short
from yamame.report.evidence import read_evidence as read_evidence
from yamame.report.evidence import write_evidence as write_evidence
from yamame.report.export import write_report as write_report
from yamame.report.groups import Group as Group
from yamame.report.groups import Section as Section
from yamame.report.groups import make_sections as make_sections
from yamame.report.markdown import place_table as place_table
from yamame.report.tables import check_pages as check_pages
from yamame.report.tables import write_tables as write_tables
from yamame.tracking.history import RunReader as RunReader
