"""The process and its machine: signals, garbage collection, installed packages, messages. Needs the
standard library alone.
"""
