"""Runs that draw goals by their rarity count those of their data, once, also when they are stopped
and resumed.
"""

import pytest
import torch
import yamame
from yamame.replay import TrajectoryFollower

TINY = [
    *(
        "debug=tiny",
        "logger=none",
        "env=mazerunner",
        "env.size=9",
        "env.time_limit=12",
        "relabel=rarity",
    ),
    *(
        "encoder=memoryless",
        "encoder.d_model=16",
        "evaluation.num_episodes=2",
        "evaluation.video_frames=1",
    ),
    *(
        "evaluation.interval=1000",
        "schedule.anneal_lr=false",
        "exploration.anneal_steps=60000",
        "budget.updates=null",
    ),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a run to learn from."""
    folder = tmp_path_factory.mktemp("source")
    yamame.train(*TINY, "budget.env_steps=192", "run.name=source", f"run.root={folder}")
    return folder / "source"


def table_of(run) -> dict[str, torch.Tensor]:
    """The table in the last checkpoint of a run."""
    saved = torch.load(max((run.path / "checkpoints").glob("step-*.pt")), weights_only=True)[
        "components"
    ]
    parts = saved.get("data") or saved["replay"]["data"]
    return {
        key.rpartition(".")[2]: value
        for key, value in parts.get("transform", {}).items()
        if "rarity" in key
    }


@pytest.mark.parametrize("recipe", ["offline", "train"])
def test_a_run_that_is_stopped_and_resumed_has_counted_each_trajectory_once(
    recipe, source, tmp_path
):
    settings = [*TINY, "data=runs", f"data.path={source}", f"run.root={tmp_path}"]
    length = "budget.updates" if recipe == "offline" else "budget.env_steps"
    least, most = (2, 5) if recipe == "offline" else (128, 256)

    def run(name, amount, *more):
        return yamame.train(
            *settings, f"run.name={name}", f"{length}={amount}", *more, recipe=recipe
        )

    whole = table_of(run("whole", most))
    run("parts", least)
    parts = table_of(run("parts", most, "resume=true"))
    assert whole.keys() == parts.keys() >= {"cells", "totals"}
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())
    lengths = TrajectoryFollower(source / "replay").lengths
    given = torch.stack([(lengths - 1).sum(), torch.tensor(len(lengths))])
    assert (
        torch.equal(whole["totals"], given)
        if recipe == "offline"
        else (whole["totals"] > given).all()
    )


SOURCE = '''
from yamame.data import MemoryStore, runs


class Plain:
    """A source of batches that counts nothing."""

    def __init__(self, path, *, format, transform):
        self.data, self.transform = runs(path, format=format), transform

    def sample(self, batch_size):
        return self.transform(self.data.sample(batch_size))

    def __len__(self):
        return len(self.data)

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


class Counting(Plain):
    def __init__(self, path, *, format, transform):
        super().__init__(path, format=format, transform=transform)
        for part in transform.modules():
            if hasattr(part, "count_goals"):
                part.count_goals(self.data.stores[0].get(range(len(self.data))))
'''


def test_a_source_that_does_not_count_is_refused_where_goals_are_drawn_by_rarity(
    source, tmp_path, monkeypatch
):
    (tmp_path / "mylab_sources.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    settings = [
        *TINY,
        "data=none",
        "trust=[mylab_sources.]",
        f"run.root={tmp_path}",
        "budget.updates=1",
    ]

    def run(name, *more):
        own = f"data.source={{_target_: mylab_sources.{name}, path: {source}}}"
        return yamame.train(*settings, own, f"run.name={name}{len(more)}", *more, recipe="offline")

    with pytest.raises(ValueError, match=r"data\.source: must count .* got .Plain"):
        run("Plain")
    run("Plain", "relabel=some")
    run("Counting")
