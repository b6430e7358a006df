"""Intervals of values that come in clusters."""

import pytest
import torch
from yamame.evaluation import mean_interval, wilson_interval
from yamame.evaluation.intervals import clustered_mean_interval, clustered_share_interval


def test_repeated_tasks_give_the_interval_of_their_means_where_all_are_repeated_alike():
    means = torch.tensor([0.0, 2.0, 3.0, 7.0], dtype=torch.float64)
    low, high = clustered_mean_interval(means.repeat(5), torch.arange(4).repeat(5))
    assert (low, high) == pytest.approx(mean_interval(means))


def test_a_share_of_one_is_as_sure_as_its_number_of_tasks():
    tasks, won = torch.arange(256) % 16, torch.ones(256).bool()
    assert clustered_share_interval(won, tasks) == wilson_interval(16, 16)
    # One task of 16 fails: hardly any surer.
    low, _ = clustered_share_interval(won & (tasks > 0), tasks)
    assert low < wilson_interval(16, 16)[0]


def test_clusters_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"clusters must have the shape \(4,\), got \(3,\)"):
        clustered_mean_interval(torch.zeros(4), torch.zeros(3))
