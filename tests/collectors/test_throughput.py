"""Figures of actors: percentiles of the age of their weights, and a speed of each where they are
few.
"""

import pytest
from yamame.collectors.throughput import Throughput


def measured(num_actors: int, ages: list[int]) -> dict[str, float]:
    """The figures after ten seconds, of answers of ten steps from one actor after the other."""
    now = [0.0]
    throughput = Throughput(num_actors, clock=lambda: now[0])
    for number, age in enumerate(ages):
        throughput.add_block(number % num_actors, num_steps=10, weights_age=age)
    now[0] = 10.0
    return throughput.metrics()


def test_percentiles_of_the_age_of_weights_follow_the_whole_distribution():
    ages = [0] * 50 + [1] * 30 + [7] * 15 + [40] * 6
    figures = measured(2, ages)
    for share in (10, 50, 90):
        age = figures[f"weights_age_p{share}"]
        assert sum(other <= age for other in ages) >= share / 100 * len(ages)
        assert sum(other < age for other in ages) <= share / 100 * len(ages)
    assert (figures["weights_age_p10"], figures["weights_age_p90"], figures["weights_age_max"]) == (
        0,
        7,
        40,
    )


@pytest.mark.parametrize(("num_actors", "num_keys"), [(1, 1), (16, 16), (17, 0)])
def test_at_most_sixteen_actors_have_a_speed_each(num_actors, num_keys):
    figures = measured(num_actors, [0] * (num_actors + 1))
    each = [figures[name] for name in figures if name.startswith("steps_per_s/actor_")]
    assert len(each) == num_keys
    assert each == [2.0, *[1.0] * (num_keys - 1)][:num_keys]  # the first has answered twice
    assert figures["steps_per_s"] == num_actors + 1
    assert figures["steps_per_s_of_fastest"] == 2.0


def test_without_answers_there_are_figures_too():
    assert set(measured(2, []).values()) == {0.0, 1.0}  # the learner's share is one
