"""How often the host waits for the device: per step of all environments while it acts, and per
update.
"""

from functools import cache

import pytest
import torch
import yamame
from costs import Costs, measured
from emulated_cuda.counting import Counts
from yamame.agent import InContextPolicy

MOST = {"steps": 0, "blocks": 3, "updates": 1}
"""How often the host may wait, on average over the last ones: per step of all environments between
the first decision of a block and its last, elsewhere in a block, and per update."""
TINY = (
    "debug=tiny", "logger=none", "schedule.regulator=null", "schedule.autocast=null",
    "device=cuda", "evaluation.num_episodes=2",
    "evaluation.max_steps=2",
    "budget.updates=8", "schedule.steps_per_iteration=32", "schedule.updates_per_step=0.06",
    "packing.row_multiple=4", "packing.length_multiple=64", "encoder.d_model=16",
    "encoder.num_layers=1",
)  # fmt: skip
WAYS = {"plain": (), "recorded": ("schedule.cuda_graph=true", "collector.cuda_graph=true")}
ENVS = {
    "mazerunner": "env.time_limit=20", "dark_key_to_door": "env.time_limit=20",
    "tmaze": "env.length=16",
    "frozenlake": "env.size=4", "wind": "env.time_limit=20", "active_tmaze": "env.length=12",
    "package_delivery": "env.time_limit=30", "bandits": "env.time_limit=20",
    "xland": "env.level=small env.trial_limit=6",
}  # fmt: skip
RUNS = [*((env, "plain") for env in ENVS), ("mazerunner", "recorded"), ("wind", "recorded")]


@pytest.fixture(scope="module")
def measure(tmp_path_factory):
    """Trains, once with the same settings, and counts what acting and learning cost."""

    @cache
    def measure(*overrides: str) -> Costs:
        with measured() as costs:
            yamame.train(*TINY, *overrides)
        return costs

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("synchronisation"))
        patch.setattr("yamame.runs.results.log_artifacts", lambda run: None)
        yield measure


def assert_waits(what: str, counts: Counts, number: int, most: float) -> None:
    waits = counts.waits.total() / number
    assert waits <= most, (
        f"the host waits {waits:.2f} times per one of the {what}, at most "
        f"{most}:\n{counts.table(number)}"
    )


@pytest.mark.parametrize(("env", "way"), RUNS)
def test_the_host_waits_no_more_often_than_is_allowed(env, way, measure):
    costs = measure(f"env={env}", *ENVS[env].split(), *WAYS[way])
    for what, most in MOST.items():
        assert_waits(what, *costs.last(what), most)


def test_one_wait_more_is_found_with_its_line(measure, monkeypatch):
    decide, clip = InContextPolicy.forward, torch.nn.utils.clip_grads_with_norm_

    def decide_and_read(self, tensordict):
        assert tensordict["is_init"].sum().item() >= 0
        return decide(self, tensordict)

    def clip_and_read(parameters, largest, norm):
        assert norm.item() >= 0
        clip(parameters, largest, norm)

    before = measure("env=tmaze", ENVS["tmaze"])
    monkeypatch.setattr(InContextPolicy, "forward", decide_and_read)
    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", clip_and_read)
    after = measure("env=tmaze", ENVS["tmaze"], "run.name=read")
    for what in ("steps", "updates"):
        (former, number), (present, _) = before.last(what), after.last(what)
        ((_, place),) = present.waits.keys() - former.waits.keys()
        with pytest.raises(AssertionError, match=rf"1\.00  item  {place}"):
            assert_waits(what, present, number, most=former.waits.total() / number)
