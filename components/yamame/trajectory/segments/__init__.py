"""Trajectory encoders that read their history in segments, and pass on what these leave."""
