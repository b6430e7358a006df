"""The counters of a run survive a checkpoint whole, also one written before a counter was added."""

import torch
from yamame.training.progress import Progress


def test_counters_are_restored_and_the_copy_is_independent():
    progress = Progress()
    for number, (name, value) in enumerate(vars(progress).items(), start=1):
        if value is None or isinstance(value, int | float):
            setattr(progress, name, number)
    progress.outcomes.extend(range(150))
    progress.curve.append({"env_steps": 640, "return_mean": 0.5})
    state = progress.state_dict()
    # A new counter must be saved as well. One has another name in the file.
    names = {name.replace("outcome_name", "outcome_is") for name in vars(progress)}
    assert state.keys() == names
    restored = Progress()
    restored.load_state_dict(state)
    assert vars(restored) == vars(progress)
    progress.curve[0]["return_mean"] = 9.0
    progress.outcomes.extend([1e6])
    assert restored.curve == [{"env_steps": 640, "return_mean": 0.5}]
    assert restored.outcome == sum(range(50, 150)) / 100
    restored.outcomes.extend([150])
    assert len(restored.outcomes) == 100


def test_a_state_without_a_newer_counter_leaves_it_at_its_beginning():
    state = Progress().state_dict()
    del state["aborted"]
    restored = Progress()
    restored.load_state_dict({**state, "updates": 5})
    assert (restored.updates, restored.aborted) == (5, 0)


def test_metrics_are_averaged_over_updates_as_one_by_one_to_the_last_bit():
    torch.manual_seed(0)
    made = [{name: torch.randn(()) for name in ("loss", "entropy", "q_value")} for _ in range(37)]
    made[0]["entropy"] = made[0]["entropy"].reshape(1)  # as losses of TorchRL write some
    made[1]["entropy"] = made[1]["entropy"] + torch.tensor([1.0, -1.0])
    made[1]["q_value"] = made[1]["q_value"].expand(2, 3)
    progress = Progress()
    progress.unlogged.extend(made)
    means = progress.take_means()
    assert means == {
        name: float(torch.stack([m[name].mean() for m in made]).mean()) for name in made[0]
    }
    assert (list(means), progress.unlogged) == (list(made[0]), [])
    assert progress.take_means() == {}


def test_a_run_goes_by_the_counter_that_it_names_and_a_checkpoint_keeps_which():
    progress = Progress("updates")
    progress.env_steps, progress.updates = 640, 12
    assert progress.step == 12
    restored = Progress()
    restored.load_state_dict(progress.state_dict())
    assert restored.step == 12
    restored.unit = "env_steps"
    assert restored.step == 640
