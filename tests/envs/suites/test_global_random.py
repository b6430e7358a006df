import random

import numpy as np
from yamame_envs.suites.global_random import GlobalRandom


def draw():
    return (
        random.random(),
        np.random.rand(),
        int(np.random.randint(1000)),
        random.choice(range(1000)),
    )


def test_two_streams_do_not_influence_each_other():
    alone = GlobalRandom(3)
    expected = []
    for _ in range(5):
        with alone:
            expected.append(draw())
    mixed, other, found = GlobalRandom(3), GlobalRandom(4), []
    for _ in range(5):
        with other:
            draw()
        draw()
        with mixed:
            found.append(draw())
    assert found == expected
    assert len(set(expected)) == 5


def test_code_outside_notices_nothing():
    random.seed(1)
    np.random.seed(1)
    expected = [draw() for _ in range(4)]
    random.seed(1)
    np.random.seed(1)
    stream, found = GlobalRandom(0), []
    for _ in range(4):
        with stream:
            np.random.seed(7)
            random.seed(7)
            draw()
        found.append(draw())
    assert found == expected


def test_the_outer_generators_come_back_after_an_error():
    random.seed(2)
    expected = random.random()
    random.seed(2)
    try:
        with GlobalRandom(0):
            raise KeyError
    except KeyError:
        pass
    assert random.random() == expected


def test_a_seed_begins_anew():
    stream = GlobalRandom(5)
    with stream:
        first = draw()
    with stream:
        later = draw()
    stream.seed(5)
    with stream:
        again = draw()
    assert first == again
    assert first != later
