"""Agents of AMAGO's own code (version 3.3), built from Yamame's components with their weights."""
