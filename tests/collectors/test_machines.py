"""A cluster of several machines, of which one dies and another comes: acting goes on, and nothing
is stored twice.
"""

import os
import signal
import time
from functools import partial

import pytest
from yamame.collectors import RayCollector
from yamame.collectors.throughput import Throughput
from yamame.trajectory import GRUEncoder

pytestmark = pytest.mark.cluster
NODE = {"object_store_memory": 100 * 2**20}
NOTICED_SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture
def machines(import_ray):
    """A head that plays nothing, and two machines with room for an actor each."""
    import_ray("the tests")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": NOTICED_SOON, **NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, **NODE)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def machine_without_the_learner(cluster, ray):
    here = ray.get_runtime_context().get_node_id()
    return next(node for node in cluster.worker_nodes if node.node_id != here)


def test_a_dead_machine_costs_its_actors_and_a_new_one_takes_their_place(
    machines, import_ray, make_policy, make_shelf, slow
):
    ray = import_ray("the tests")
    shelf = make_shelf()
    policy = make_policy(
        slow.maze(0.0, num_envs=1, seed=0), partial(GRUEncoder, hidden_size=8, out_features=8)
    )
    collector = RayCollector(
        partial(slow.maze, 0.004),
        policy,
        shelf,
        num_envs=4,
        num_workers=2,
        seed=7,
        block_steps=10,
        max_staleness=80,
        address=machines.address,
    )
    brought, pauses = [], []

    def play_until(condition, seconds=120):
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() < begun + seconds
            asked = time.monotonic()
            brought.append(collector.collect(20))
            pauses.append(time.monotonic() - asked)
        return time.monotonic() - begun

    def both_play():
        return collector.metrics()["steps_per_s_of_slowest"] > 0

    try:
        play_until(both_play)
        play_until(lambda: len(shelf.trajectories) > 20)
        pauses.clear()
        raylet = machine_without_the_learner(machines, ray).all_processes["raylet"][0].process
        os.kill(raylet.pid, signal.SIGKILL)
        noticed = play_until(lambda: collector.metrics()["lost_actors"] == 1)
        num_before = len(shelf.trajectories)
        play_until(lambda: len(shelf.trajectories) > num_before + 10)  # the other goes on
        machines.add_node(num_cpus=1, **NODE)
        collector.throughput = Throughput(2)
        again = play_until(both_play)
        play_until(lambda: len(shelf.trajectories) > num_before + 50)
        metrics = collector.metrics()
    finally:
        collector.shutdown()
    print(
        f"noticed after {noticed:.1f} s, longest pause {max(pauses):.1f} s, both play "
        f"{again:.1f} s after the addition"
    )
    assert again < 60
    shelf.check_whole()
    shelf.check_distinct()
    assert metrics["lost_actors"] == 1
    assert sum(episodes.num_aborted for episodes in brought) == metrics["lost_episodes"]
    collected = sum(episodes.num_steps for episodes in brought)
    assert collected == shelf.num_steps + metrics["unfinished_steps"] + metrics["lost_steps"]
