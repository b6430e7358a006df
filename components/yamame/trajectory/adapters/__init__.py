"""Trajectory encoders with layers of other libraries."""
