"""The process and its machine: signals, installed packages, messages. Needs the standard library
alone.
"""
