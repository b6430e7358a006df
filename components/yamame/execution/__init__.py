"""Execution of computations: precision, compilation, and recording as CUDA graphs."""
