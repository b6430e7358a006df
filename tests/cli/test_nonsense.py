"""Values that no run can mean are refused before anything begins, by their key."""

import pytest
import yamame
from yamame.checks import UsageError


@pytest.mark.parametrize(
    ("recipe", "arguments", "key"),
    [
        ("probe", ["probe.windows=[]"], "probe.windows"),
        ("probe", ["probe.windows=[1,1]"], "probe.windows"),
        ("probe", ["probe.windows=[null,4,null]"], "probe.windows"),
        ("probe", ["probe.margin=2"], "probe.margin"),
        ("probe", ["probe.margin=1"], "probe.margin"),
        ("probe", ["probe.seeds=[]"], "probe.seeds"),
        ("probe", ["probe.seeds=[3,3]"], "probe.seeds"),
        ("leaderboard", ["seeds=[0,0]"], "seeds"),
        ("leaderboard", ["seeds=[]"], "seeds"),
        ("leaderboard", ["suite.tiers={}"], "suite.tiers={}"),
        ("leaderboard", ["popgym", "~suite.tiers", "+suite.tiers={}"], "suite.tiers"),
        ("reproduce", ["seeds=[1,2,1]"], "seeds"),
        ("reproduce", ["contract.margin=-0.1"], "contract.margin"),
        ("report", ["thresholds=[0.5,0.5]"], "thresholds"),
        ("train", ["schedule.updates_per_step=1e9"], "schedule.updates_per_step"),
        ("train", ["workers.timeout=-9e18"], "workers.timeout"),
        ("train", ["workers.timeout=0"], "workers.timeout"),
    ],
)
def test_a_value_that_means_nothing_is_refused(recipe, arguments, key):
    with pytest.raises(UsageError) as raised:
        yamame.compose(*arguments, recipe=recipe)
    # The tier of a suite without tiers is refused, too, in a line of its own.
    assert (
        str(raised.value).splitlines()[0].startswith((f"{key}: must ", f"{key}: changes nothing"))
    )


@pytest.mark.parametrize(
    ("recipe", "argument"),
    [
        ("probe", "probe.windows=[1,4,null]"),
        ("probe", "probe.margin=0"),
        ("leaderboard", "seeds=[0,1]"),
        ("reproduce", "seeds=[2]"),
        ("train", "schedule.updates_per_step=4"),
        ("train", "workers.timeout=0.5"),
    ],
)
def test_a_value_beside_it_is_not(recipe, argument):
    """The negative control."""
    yamame.compose(argument, recipe=recipe)


@pytest.mark.parametrize("length", ["[4,4]", "[]", "[0,4]"])
def test_lengths_of_a_corridor_are_different_and_positive(length):
    from yamame.runs.build import build_env

    for env in ("tmaze", "active_tmaze"):
        cfg = yamame.compose(f"env={env}", f"env.length={length}")
        with pytest.raises(UsageError, match=r"^env\.length: must "):
            build_env(cfg, num_envs=1, seed=0)
    build_env(yamame.compose("env=tmaze", "env.length=[4,8]"), num_envs=1, seed=0)
