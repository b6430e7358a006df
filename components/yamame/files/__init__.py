"""What lies on disk, and outlives whatever ends the process: atomic writes, checkpoints, run
directories.

Nothing is imported here: whoever writes a small file does not load torch.
"""
