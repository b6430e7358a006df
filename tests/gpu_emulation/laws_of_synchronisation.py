"""How often the host waits for the device: per step of all environments while it acts, and per update."""

from dataclasses import dataclass, field

import pytest
import yamame
from yamame.collectors import SyncCollector
from yamame.training import Learner

MOST_PER_STEP = {"plain": 12.0, "recorded": 10.0}
"""Waits per step of a batched environment within a block: observation, decision, exploration, step, reset."""
MOST_PER_UPDATE = {"plain": 6.0, "recorded": 1.0}
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
LAST = 2
"""Blocks and updates that are looked at: the last ones, when all is recorded."""


@dataclass
class Measured:
    """Counts at the beginning of every step, by block, and of every update."""

    steps: list[list] = field(default_factory=list)
    updates: list = field(default_factory=list)

    def of_steps(self):
        """Counts of the last blocks, and how many steps they were."""
        pairs = [(block[0], block[-1], len(block) - 1) for block in self.steps[-LAST:]]
        return [last.since(first) for first, last, _ in pairs], sum(number for *_, number in pairs)

    def of_updates(self):
        """Counts of the last updates, and how many there were."""
        return self.updates[-LAST:], LAST


@pytest.fixture
def measured(counts, monkeypatch, tmp_path):
    """Trains, and counts between two decisions of a block and within updates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("yamame.runs.outcome.log_artifacts", lambda run: None)
    collect, update = SyncCollector.collect, Learner.update

    def measured(*overrides: str) -> Measured:
        measured = Measured()
        with counts() as counted:

            def collect_watched(self, num_steps):
                measured.steps.append([])
                hook = self.policy.register_forward_pre_hook(
                    lambda *_: measured.steps[-1].append(counted.copy())
                )
                episodes = collect(self, num_steps)
                hook.remove()
                return episodes

            def update_watched(self, batch, **options):
                before = counted.copy()
                metrics = update(self, batch, **options)
                measured.updates.append(counted.since(before))
                return metrics

            monkeypatch.setattr(SyncCollector, "collect", collect_watched)
            monkeypatch.setattr(Learner, "update", update_watched)
            yamame.train(*TINY, *overrides)
        return measured

    return measured


def assert_at_most(limit: float, counts: list, number: int) -> None:
    total = counts[0].merged(counts)
    waits = sum(total.waits.values()) / number
    assert waits <= limit, f"the host waits {waits:.2f} times, at most {limit} are allowed\n{total.table(number)}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("env", ENVS)
def test_the_host_waits_no_more_often_than_is_allowed(env, way, measured):
    found = measured(f"env={env}", ENVS[env], *WAYS[way])
    for n, (c, k) in (("STEP", found.of_steps()), ("UPDATE", found.of_updates())):
        t = c[0].merged(c)
        print("\n@@", n, env, way, sum(t.waits.values()) / k, "kernels", sum(t.kernels.values()) / k, "copies", sum(t.copies.values())/k)
        print(t.table(k))
    assert_at_most(MOST_PER_STEP[way], *found.of_steps())
    assert_at_most(MOST_PER_UPDATE[way], *found.of_updates())
