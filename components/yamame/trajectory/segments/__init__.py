"""Trajectory encoders that process their history in segments and pass summaries from one to the
next.
"""
