"""The command line: the only door to Hydra."""
