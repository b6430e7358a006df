"""A report of runs: reads an MLflow experiment and makes one page with tables, curves, films and verdicts.

`RunReader` reads runs, `make_sections` sorts them, `build_content` computes the numbers, `write_report` writes page,
pictures and tables.
"""

from yamame.runs.report.content import Content as Content
from yamame.runs.report.content import build_content as build_content
from yamame.runs.report.estimates import Resampling as Resampling
from yamame.runs.report.export import write_report as write_report
from yamame.runs.report.groups import Group as Group
from yamame.runs.report.groups import LeftOut as LeftOut
from yamame.runs.report.groups import Section as Section
from yamame.runs.report.groups import make_sections as make_sections
from yamame.runs.report.history import AXIS_TAG as AXIS_TAG
from yamame.runs.report.history import RunHistory as RunHistory
from yamame.runs.report.history import RunReader as RunReader
from yamame.runs.report.history import Series as Series
from yamame.runs.report.settings import COMMAND_TAG as COMMAND_TAG
from yamame.runs.report.verdicts import Verdict as Verdict
from yamame.runs.report.verdicts import falls_short as falls_short
