"""Files that survive the end of the process: atomic writes, checkpoints, run directories.

Nothing is imported here, so that writing a small file does not load torch.
"""
