import torch
from yamame_envs.streams import fold
from yamame_envs.tasks import TaskQueue


class Drawer:
    def __init__(self):
        self.calls = []

    def __call__(self, seeds):
        self.calls.append(len(seeds))
        return {"double": 2 * seeds, "pair": torch.stack([seeds, -seeds], -1)}


def run(num_rows, turns, queue, draw):
    streams = fold(torch.tensor(3), torch.arange(num_rows))
    episodes = torch.zeros(num_rows, dtype=torch.int64)
    for turn in range(turns):
        begins = (fold(torch.arange(num_rows), turn).remainder(3) == 0) | (turn == 0)
        if queue.lacks(begins, episodes):
            assert queue.reserve(1, streams, episodes, draw) >= 1
        task = queue.take(episodes)
        seeds = fold(streams, episodes)
        found = task["number"] == episodes
        assert (found >= begins).all()
        assert torch.equal(task["task_seed"][found], seeds[found])
        assert torch.equal(task["double"][found], 2 * seeds[found])
        assert torch.equal(task["pair"][found], torch.stack([seeds, -seeds], -1)[found])
        episodes = episodes + begins
    return episodes


def test_every_row_is_given_the_task_of_its_own_next_episode():
    for num_rows in (1, 5, 100):
        run(num_rows, 200, TaskQueue(num_rows), Drawer())


def test_tasks_are_drawn_in_batches_and_none_twice():
    draw = Drawer()
    episodes = run(100, 200, TaskQueue(100), draw)
    assert sum(draw.calls) <= int(episodes.sum()) + 4 * 100
    assert len(draw.calls) < int(episodes.sum()) / 100


def test_a_cleared_queue_goes_on_at_the_present_episodes():
    queue = TaskQueue(2)
    streams = torch.tensor([7, 8])
    queue.reserve(1, streams, torch.zeros(2, dtype=torch.int64), Drawer())
    queue.clear()
    episodes = torch.tensor([11, 3])
    assert queue.lacks(torch.ones(2, dtype=torch.bool), episodes)
    queue.reserve(1, streams, episodes, Drawer())
    assert torch.equal(queue.take(episodes)["task_seed"], fold(streams, episodes))


def test_as_many_episodes_are_drawn_as_are_asked_for_and_then_they_come_from_the_ring():
    streams, episodes, draw = torch.tensor([7, 8]), torch.zeros(2, dtype=torch.int64), Drawer()
    queue = TaskQueue(2)
    assert queue.reserve(100, streams, episodes, draw) == 100
    assert draw.calls == [200]
    for _ in range(100):
        task = queue.take(episodes)
        assert torch.equal(task["number"], episodes)
        assert torch.equal(task["task_seed"], fold(streams, episodes))
        episodes = episodes + torch.tensor([1, 0])
    assert queue.take(episodes)["number"].tolist() == [
        0,
        0,
    ]  # the first is no longer that of episode 100
    assert queue.reserve(1, streams, episodes, draw) == 100
    assert draw.calls == [200, 100]
