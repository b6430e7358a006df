"""Trajectory encoders whose layers are those of other libraries."""
