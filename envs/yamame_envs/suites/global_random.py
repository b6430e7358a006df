"""Isolation of code that uses the global random generators.

>>> first, second = GlobalRandom(), GlobalRandom()
>>> drawn = []
>>> for stream in (first, second, first, second):
...     with stream:
...         drawn.append(random.random())
>>> drawn[0] == drawn[1] and drawn[2] == drawn[3] and drawn[0] != drawn[2]
True
"""

import random

import numpy as np
from numpy.random import mtrand


class GlobalRandom:
    """Context in which ``random`` and ``numpy.random`` use separate generators.

    They continue from block to block.

    NumPy's generator is exchanged, not copied, which is hundreds of times faster, but loses the
    second of a pair of numbers that ``numpy.random.randn`` and similar functions draw at a time, on
    both sides.

    Args:
        seed: Seed of the generators.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Seed the generators; must be called outside of a block."""
        self._python = random.Random(seed).getstate()
        self._numpy: np.random.BitGenerator = np.random.MT19937(seed)

    def __enter__(self) -> None:
        self._outer = (random.getstate(), mtrand.get_bit_generator())
        random.setstate(self._python)
        mtrand.set_bit_generator(self._numpy)

    def __exit__(self, *_: object) -> None:
        self._python, self._numpy = random.getstate(), mtrand.get_bit_generator()
        random.setstate(self._outer[0])
        mtrand.set_bit_generator(self._outer[1])
