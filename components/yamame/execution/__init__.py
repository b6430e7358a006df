"""How computations are executed: in which precision, compiled, or recorded as CUDA graphs."""
