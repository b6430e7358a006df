"""Checks of what a run needs, and a forecast of what it takes: packages, machine, a short trial."""
