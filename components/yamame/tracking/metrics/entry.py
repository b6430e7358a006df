"""Description of a logged metric."""

import re
from dataclasses import dataclass
from functools import cached_property

_CHOICES = re.compile(r"<([^<>]*)>")
_PATTERNS = {"gamma": r"\d+(?:\.\d+)?(?:e-?\d+)?", "i": r"\d+", "k": r"\d+"}
"""Values of placeholders by name; others stand for any text."""


@dataclass(frozen=True)
class Metric:
    """Description of a metric, or of a family of metrics.

    Attributes:
        name: Logged name. ``<low,high>`` stands for one of these words, ``<gamma>`` for a discount
            factor, ``<i>`` and ``<k>`` for whole numbers, and any other ``<word>`` for any text.
        meaning: Noun phrase for the label of an axis.
        unit: Unit, as it follows the meaning after a comma.
        source: Module that names the metric when it is logged.
        definition: Formula, or what the number counts, as sentences.
        reading: Values to expect, and what other values indicate; empty if there are none.
    """

    name: str
    meaning: str
    unit: str
    source: str
    definition: str
    reading: str = ""

    @property
    def label(self) -> str:
        """Meaning with its unit, for an axis."""
        return f"{self.meaning}, {self.unit}"

    @property
    def names(self) -> list[str]:
        """Names with one line per choice, such as ``eval/return_low`` and ``eval/return_high``."""
        names = [self.name]
        for choices in _CHOICES.findall(self.name):
            if "," in choices:
                names = [
                    name.replace(f"<{choices}>", choice)
                    for name in names
                    for choice in choices.split(",")
                ]
        return names

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Regular expression of the logged names."""
        parts = []
        for index, part in enumerate(_CHOICES.split(self.name)):
            if index % 2 == 0:
                parts.append(re.escape(part))
            elif "," in part:
                parts.append(f"(?:{part.replace(',', '|')})")
            else:
                parts.append(_PATTERNS.get(part, ".+"))
        return re.compile("".join(parts))
