"""How often the host waits for the device: per step of all environments while it acts, and per update."""

from dataclasses import dataclass, field

import pytest
import torch
import yamame
from emulated_cuda.counting import Counts
from yamame.agent import InContextPolicy
from yamame.collectors import SyncCollector
from yamame.training import Learner

MOST = {"plain": {"steps": 2.1, "blocks": 20, "updates": 4}, "recorded": {"blocks": 20, "updates": 1}}
"""How often the host may wait, on average over the last ones: per step of all environments between the first decision
of a block and its last, elsewhere in a block, and per update."""
TINY = (
    "debug=tiny", "logger=none", "device=cuda", "evaluation.num_episodes=2", "evaluation.max_steps=2",
    "budget.updates=6", "schedule.updates_per_step=0.04", "packing.row_multiple=4", "packing.length_multiple=64",
    "encoder.d_model=16", "encoder.num_layers=1",
)  # fmt: skip
WAYS = {"plain": (), "recorded": ("schedule.cuda_graph=true", "collector.cuda_graph=true")}
ENVS = {
    "mazerunner": "env.time_limit=20", "dark_key_to_door": "env.time_limit=20", "tmaze": "env.length=16",
    "frozenlake": "env.size=4", "wind": "env.time_limit=20",
}  # fmt: skip
RUNS = [*((env, "plain") for env in ENVS), ("mazerunner", "recorded"), ("wind", "recorded")]
LAST = 2
"""Blocks and updates that are looked at: the last ones, when all is recorded."""


@dataclass
class Measured:
    """Counts of steps within blocks, of the rest of a block, and of updates, each with how many they are."""

    steps: list[tuple[Counts, int]] = field(default_factory=list)
    blocks: list[tuple[Counts, int]] = field(default_factory=list)
    updates: list[tuple[Counts, int]] = field(default_factory=list)

    def last(self, what: str) -> tuple[Counts, int]:
        """The last counts of what there was once all was recorded."""
        counts, numbers = zip(*getattr(self, what)[-LAST:], strict=True)
        return Counts.merged(counts), sum(numbers)


@pytest.fixture
def measure(counts, monkeypatch, tmp_path):
    """Trains, and counts between the first and the last decision of a block, elsewhere in it, and within updates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("yamame.runs.outcome.log_artifacts", lambda run: None)
    collect, update = SyncCollector.collect, Learner.update

    def measure(*overrides: str) -> Measured:
        measured = Measured()
        with counts() as counted:

            def collect_watched(self, num_steps):
                before, decisions = counted.copy(), []
                hook = self.policy.register_forward_pre_hook(lambda *_: decisions.append(counted.copy()))
                episodes = collect(self, num_steps)
                hook.remove()
                block = counted.since(before)
                if decisions:
                    steps = decisions[-1].since(decisions[0])
                    measured.steps.append((steps, len(decisions) - 1))
                    block = block.since(steps)
                measured.blocks.append((block, 1))
                return episodes

            def update_watched(self, batch, **options):
                before = counted.copy()
                metrics = update(self, batch, **options)
                measured.updates.append((counted.since(before), 1))
                return metrics

            monkeypatch.setattr(SyncCollector, "collect", collect_watched)
            monkeypatch.setattr(Learner, "update", update_watched)
            yamame.train(*TINY, *overrides)
        return measured

    return measure


def assert_waits(what: str, counts: Counts, number: int, most: float) -> None:
    waits = counts.waits.total() / number
    assert waits <= most, (
        f"the host waits {waits:.2f} times per one of the {what}, at most {most}:\n{counts.table(number)}"
    )


@pytest.mark.parametrize(("env", "way"), RUNS)
def test_the_host_waits_no_more_often_than_is_allowed(env, way, measure):
    measured = measure(f"env={env}", ENVS[env], *WAYS[way])
    for what, most in MOST[way].items():
        c, n = measured.last(what)
        print(
            "@@",
            env,
            way,
            what,
            c.waits.total() / n,
            "kernels",
            c.kernels.total() / n,
            "copies",
            c.copies.total() / n,
        )
        print(c.table(n))
        assert_waits(what, *measured.last(what), most)


def test_one_wait_more_is_found_with_its_line(measure, monkeypatch):
    decide, clip = InContextPolicy.forward, torch.nn.utils.clip_grads_with_norm_

    def decide_and_read(self, tensordict):
        assert tensordict["is_init"].sum().item() >= 0
        return decide(self, tensordict)

    def clip_and_read(parameters, largest, norm):
        assert norm.item() >= 0
        clip(parameters, largest, norm)

    before = measure("env=tmaze", ENVS["tmaze"], "run.name=before")
    monkeypatch.setattr(InContextPolicy, "forward", decide_and_read)
    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", clip_and_read)
    after = measure("env=tmaze", ENVS["tmaze"], "run.name=after")
    for what in ("steps", "updates"):
        (former, number), (present, _) = before.last(what), after.last(what)
        ((_, place),) = present.waits.keys() - former.waits.keys()
        with pytest.raises(AssertionError, match=rf"1\.00  item  {place}"):
            assert_waits(what, present, number, most=former.waits.total() / number)
