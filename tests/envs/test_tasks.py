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
        rows = (fold(torch.arange(num_rows), turn).remainder(3) == 0).nonzero().squeeze(-1)
        if turn == 0:
            rows = torch.arange(num_rows)
        if len(rows) == 0:
            continue
        task = queue.take(rows, streams, episodes, draw)
        seeds = fold(streams[rows], episodes[rows])
        assert torch.equal(task["task_seed"], seeds)
        assert torch.equal(task["double"], 2 * seeds)
        assert torch.equal(task["pair"], torch.stack([seeds, -seeds], -1))
        episodes = episodes.index_add(0, rows, torch.ones_like(rows))
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
    queue.take(torch.arange(2), streams, torch.zeros(2, dtype=torch.int64), Drawer())
    queue.clear()
    episodes = torch.tensor([11, 3])
    task = queue.take(torch.tensor([1]), streams, episodes, Drawer())
    assert task["task_seed"].item() == fold(streams[1], 3).item()
