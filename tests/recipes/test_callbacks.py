"""Callbacks: what they are told, in which order, what they may do, and that their state goes on
with the run.
"""

import json
import signal

import pytest
import torch
import yamame
from yamame.checks import UsageError
from yamame.files.run_directory import RunDirectory
from yamame.runs import EarlyStopping
from yamame.system.signals import SIGNALS

TINY = ("debug=tiny", "env=tmaze", "env.length=8", "encoder=gru", "logger=none", "run.name=a")
MINE = """
import yamame

class Witness(yamame.Callback):
    def __init__(self, file):
        self.file = file
    def on_end(self, run):
        with open(self.file, "a") as file:
            file.write(f"{run.name} {run.summary['status']} {run.objective}\\n")
"""


class Witness(yamame.Callback):
    """Notes every event, and where the run is."""

    def __init__(self):
        self.seen = []

    def on_begin(self, run):
        self.seen.append(("begin", run.progress.env_steps, run.progress.updates))

    def on_collect(self, run, episodes):
        self.seen.append(("collect", run.progress.env_steps, run.progress.updates))

    def on_update(self, run, metrics):
        assert metrics["loss"].ndim == 0
        self.seen.append(("update", run.progress.env_steps, run.progress.updates))

    def on_log(self, run, metrics, step):
        assert step == run.progress.step
        self.seen.append(("log", run.progress.env_steps, run.progress.updates))

    def on_evaluate(self, run, result):
        assert run.progress.curve[-1]["return_mean"] == result.summary()["return_mean"]
        self.seen.append(("evaluate", run.progress.env_steps, run.progress.updates))

    def on_save(self, run):
        self.seen.append(("save", run.checkpoints.last is not None))

    def on_saved(self, run, path):
        self.seen.append(("saved", path == run.checkpoints.last))

    def on_end(self, run):
        self.seen.append(("end", run.summary["status"]))


class Counter(yamame.Callback):
    """Counts the updates of all sessions of a run."""

    count = 0

    def on_update(self, run, metrics):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_events_come_in_the_order_of_the_loop_and_looking_changes_nothing(components, differing):
    witness, long = Witness(), "env.length=32"  # no episode ends in the first iteration
    run = yamame.train(*TINY, long, callbacks=[witness])
    last = run.progress.env_steps, run.progress.updates
    kinds = [kind for kind, *_ in witness.seen]
    assert witness.seen[0] == ("begin", 0, 0)
    assert witness.seen[-4:] == [
        ("evaluate", *last),
        ("save", False),
        ("saved", True),
        ("end", "FINISHED"),
    ]
    assert kinds.count("update") == last[1] > 0
    assert kinds.index("collect") < kinds.index("log") < kinds.index("update")
    assert [place for place in witness.seen if place[0] == "collect"][-1][1] == last[0]
    unseen = yamame.train(*TINY, long, "run.name=b")
    assert differing(components(run.path), components(unseen.path)) == []


def test_playing_at_random_changes_no_number_of_a_run(monkeypatch, components, differing):
    run = yamame.train(*TINY)
    monkeypatch.setattr("yamame.runs.advice.play_randomly", lambda run: None)
    other = yamame.train(*TINY, "run.name=b")
    assert differing(components(run.path), components(other.path)) == []


def test_what_a_callback_raises_ends_the_run_as_failed_and_still_tells_the_end():
    class Broken(Witness):
        def on_update(self, run, metrics):
            raise RuntimeError("broken")

    witness = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        yamame.train(*TINY, callbacks=[witness])
    assert witness.seen[-1] == ("end", "FAILED")


def test_state_goes_on_with_the_run_and_a_new_callback_starts_its_own():
    counter = Counter()
    run = yamame.train(*TINY, callbacks=[counter])
    assert counter.count == run.progress.updates > 0
    again, other = Counter(), Witness()
    longer = ("resume=true", f"budget.updates={run.progress.updates + 1}")
    further = yamame.train(*TINY, *longer, callbacks=[other, again])
    assert again.count == further.progress.updates > run.progress.updates
    assert other.seen[0] == ("begin", run.progress.env_steps, run.progress.updates)


def test_stopping_ends_a_run_in_order_and_only_another_budget_goes_on(capsys):
    early = EarlyStopping("success_mean", patience=None, threshold=-1.0)
    same = ("budget.updates=null", "budget.minutes=5", "evaluation.interval=64")
    stopped = ("budget.env_steps=100000", *same)
    run = yamame.train(*TINY, *stopped, callbacks=[early])
    assert "stopped: success_mean has reached" in capsys.readouterr().err
    assert run.summary["status"] == "FINISHED"
    assert run.progress.env_steps < 1000
    again = yamame.train(*TINY, *stopped, "resume=auto", callbacks=[early])
    assert again.progress.env_steps == run.progress.env_steps
    for file in (run.path / "checkpoints").glob("step-*.pt"):
        saved = torch.load(file, weights_only=True)
        del saved["config"]["budget"]["cpu_s"]  # which earlier versions lacked
        torch.save(saved, file)
    again = yamame.train(*TINY, *stopped, "resume=auto", callbacks=[early])
    assert again.progress.env_steps == run.progress.env_steps
    more = ("budget.env_steps=100001", *same, "resume=auto")
    further = yamame.train(*TINY, *more, callbacks=[EarlyStopping("success_mean", threshold=-1.0)])
    assert further.progress.env_steps > run.progress.env_steps


@pytest.mark.parametrize(
    ("values", "patience", "stops_at"),
    [([1, 2, 3, 4], 2, None), ([1, 3, 2, 3], 2, 4), ([2, 1], 1, 2)],
)
def test_patience_counts_evaluations_that_are_no_better(values, patience, stops_at):
    class Run:
        place, stopped = 0, None

        def stop(self, reason):
            self.stopped = self.stopped or self.place

    class Result:
        def __init__(self, value):
            self.value = value

        def summary(self):
            return {"return_mean": self.value}

    early, run = EarlyStopping(patience=patience), Run()
    for run.place, value in enumerate(values, start=1):
        restored = EarlyStopping(patience=patience)
        restored.load_state_dict(json.loads(json.dumps(early.state_dict())))
        early = restored
        early.on_evaluate(run, Result(value))
    assert run.stopped == stops_at


def test_what_is_no_callback_is_refused():
    for arguments, message in [
        (
            ["callbacks=early_stopping", "callbacks.early_stopping.patience=0"],
            "patience: must be .*at least 1",
        ),
        (["+callbacks.mine._target_=yamame.trajectory.GRUEncoder"], "callbacks.mine"),
    ]:
        with pytest.raises(UsageError, match=message):
            yamame.train(*TINY, *arguments)
    with pytest.raises(
        UsageError, match=r"callbacks\.dict-0: must be a yamame.Callback, got 'dict'"
    ):
        yamame.train(*TINY, callbacks=[{}])


def test_an_agent_is_evaluated_once_and_told_once():
    witness = Witness()
    yamame.train(
        *TINY,
        "evaluation.interval=64",
        "budget.updates=null",
        "budget.env_steps=128",
        callbacks=[witness],
    )
    evaluated = [event for event in witness.seen if event[0] == "evaluate"]
    assert [steps for _, steps, _ in evaluated] == [64, 128]


def test_early_stopping_that_has_no_evaluation_to_judge_says_so(capsys):
    stopping = ("callbacks=early_stopping", "budget.updates=null", "budget.env_steps=128")
    yamame.train(*TINY, *stopping)
    assert capsys.readouterr().err.count("smaller evaluation.interval") == 1
    yamame.train(*TINY, *stopping, "run.name=b", "evaluation.interval=64")
    assert "evaluation.interval" not in capsys.readouterr().err


class Misspelled(yamame.Callback):
    def on_evaluated(self, run, result): ...


def test_an_event_that_there_is_not_and_what_is_no_list_are_refused():
    with pytest.raises(
        UsageError,
        match=r"Misspelled-0: must have methods of events, .*on_evaluate, .*, got 'on_evaluated'",
    ):
        yamame.train(*TINY, callbacks=[Misspelled()])
    with pytest.raises(
        UsageError, match=r"callbacks: must be a list of yamame\.Callback, got 'Witness'"
    ):
        yamame.train(*TINY, callbacks=Witness())


def test_that_binned_critics_clip_their_targets_is_told_once(capsys):
    binned = (
        "agent/returns=binned",
        "agent.critic.num_critics=2",
        "budget.updates=6",
        "evaluation.max_steps=5",
    )
    narrow = ("agent.returns.min_return=-0.001", "agent.returns.max_return=0.001")
    yamame.train(*TINY, *binned, *narrow)
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "agent.returns.max_return" in line
    ]
    assert len(lines) == 1
    assert "agent.returns.min_return=-0.001" in lines[0]
    assert "reward_multiplier" in lines[0]
    yamame.train(*TINY, *binned, "run.name=b")
    assert "agent.returns" not in capsys.readouterr().err


class Broken(yamame.Callback):
    def on_end(self, run):
        raise ValueError("no")


class Half(yamame.Callback):
    def state_dict(self):
        return {}


def test_the_end_is_told_to_all_whatever_one_of_them_raises():
    witness = Witness()
    with pytest.raises(ValueError, match="no"):
        yamame.train(*TINY, callbacks=[Broken(), witness])
    assert witness.seen[-1] == ("end", "FINISHED")
    with pytest.raises(
        UsageError,
        match=r"callbacks\.Half-0: must have both state_dict and load_state_dict, or neither",
    ):
        yamame.train(*TINY, "run.name=b", callbacks=[Half()])
    with pytest.raises(UsageError, match=r"callbacks\.tracking: must have another name"):
        yamame.train(*TINY, "run.name=b", "+callbacks.tracking._target_=yamame.runs.EarlyStopping")


def test_early_stopping_that_is_given_to_two_runs_begins_anew():
    stopping = EarlyStopping(threshold=-100.0)
    for name in ("a", "b"):
        run = yamame.train(
            *TINY, f"run.name={name}", "evaluation.interval=64", callbacks=[stopping]
        )
        assert stopping.waited == 0
        assert run.progress.curve


def test_one_of_a_foreign_module_is_named_in_a_configuration(own_module, tmp_path):
    own_module("mylab_callbacks", MINE)
    own = ("+callbacks.mine._target_=mylab_callbacks.Witness", "+callbacks.mine.file=seen.txt")
    with pytest.raises(UsageError, match=r"callbacks\.mine\._target_: must .* trust="):
        yamame.train(*TINY, *own)
    run = yamame.train(*TINY, *own, "trust=[mylab_callbacks.]")
    assert (tmp_path / "seen.txt").read_text() == f"a FINISHED {run.objective}\n"


@pytest.mark.parametrize("fails", [False, True])
def test_a_summary_that_cannot_be_written_leaves_no_claim_no_handlers_and_no_missing_on_end(
    fails, monkeypatch
):
    class Breaks(Witness):
        def on_begin(self, run):
            run.stop("enough")
            if fails:
                raise RuntimeError("broken")

        def on_end(self, run):
            self.seen.append("end")

    def no_room(run, status):
        raise OSError("no room") if not fails else KeyError("no such field")

    monkeypatch.setattr("yamame.runs.results.write_summary", no_room)
    witness = Breaks()
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyError if fails else OSError):
        yamame.train(*TINY, callbacks=[witness])
    assert witness.seen[-1] == "end"
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    RunDirectory.open("runs", "a", resume=True).close()  # a claimed one raises
