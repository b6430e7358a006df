"""Updates per step that follow overfitting: fewer where an agent learns few episodes by heart."""

import itertools
import signal

import pytest
import yamame
from yamame.checks import UsageError
from yamame.runs.checks import check_regulation
from yamame.training import OverfittingRegulator, Progress

REGULATED = "schedule.regulator.first=0.4"
NOISY = (
    *("debug=tiny", "logger=none", "env=bandits", "env.num_arms=2", "env.time_limit=6"),
    *("env.reward=gaussian", "encoder=gru", "encoder.hidden_size=32", "agent.gammas=[0.5,0.9]"),
    *("schedule.steps_per_iteration=48", "schedule.updates_per_step=5", "replay.held_out=4"),
    *("budget.updates=null", "budget.minutes=null", "budget.env_steps=192", "optimizer.lr=0.003"),
    *("evaluation.num_episodes=2", "evaluation.video_frames=1"),
    *("optimizer=adamw", "agent=amago_paper", "schedule.average_decay=null"),
    *("schedule.autocast=null", "schedule.batch_timesteps=null"),
)
"""Four iterations of eight episodes each, whose rewards are mostly noise."""


class Watch(yamame.Callback):
    """Notes all metrics, and may ask the run to end after an update or after an iteration."""

    def __init__(self, *, after_update=None, after_log=None):
        self.logged = []
        self.updates = []
        self.after_update = after_update
        self.after_log = after_log

    def on_update(self, run, metrics):
        if run.progress.updates == self.after_update:
            signal.raise_signal(signal.SIGTERM)

    def on_log(self, run, metrics, step):
        self.logged.append(dict(metrics))
        self.updates.append(run.progress.updates)
        if len(self.logged) == self.after_log:
            signal.raise_signal(signal.SIGTERM)

    def column(self, name):
        return [metrics[name] for metrics in self.logged if name in metrics]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped, and what was seen of it."""
    watch = Watch()
    root = f"run.root={tmp_path_factory.mktemp('whole')}"
    return yamame.train(*NOISY, REGULATED, root, "run.name=a", callbacks=[watch]), watch


def test_learning_few_noisy_episodes_by_heart_lowers_the_updates_per_step(whole):
    _, watch = whole
    assert watch.column("train/overfitting")[0] > 1.2
    rates = watch.column("train/updates_per_step")
    assert rates[0] < 0.4 * 5
    assert min(rates) >= 0.05 * 5
    made = [after - before for before, after in itertools.pairwise([0, *watch.updates])]
    assert made[0] == 0.4 * 5 * 48
    assert made[1] < made[0]

    # More is allowed where more overfitting is aimed at, and the rate is constant without.
    tolerant = Watch()
    often = (REGULATED, "schedule.regulator.target=50.0", "run.name=b")
    yamame.train(*NOISY, *often, "budget.env_steps=96", callbacks=[tolerant])
    assert tolerant.column("train/updates_per_step")[0] > 0.4 * 5
    constant = Watch()
    few = ("schedule.regulator=null", "schedule.updates_per_step=0.25", "run.name=c")
    plain = yamame.train(*NOISY, *few, callbacks=[constant])
    assert plain.progress.updates == 192 * 0.25
    assert plain.progress.observed_updates == 0
    assert constant.column("train/updates_per_step") == []


@pytest.mark.parametrize("stop", [{"after_update": 70}, {"after_log": 1}, {"after_log": 2}])
def test_a_regulated_run_is_resumed_bit_for_bit(whole, stop, components, differing):
    run, _ = whole
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*NOISY, REGULATED, "run.name=a", callbacks=[Watch(**stop)])
    part = yamame.train(*NOISY, REGULATED, "run.name=a", "resume=true")
    assert part.resumed
    expected = components(run.path)
    assert expected["regulator"]["factor"] == run.regulator.factor != 0.4
    assert differing(expected, components(part.path)) == []


def test_a_regulated_run_extended_within_an_iteration_equals_one_that_was_not(
    components, differing
):
    settings = (
        *(*NOISY, REGULATED, "budget.env_steps=null", "schedule.anneal_lr=false"),
        *("exploration.anneal_steps=100", "evaluation.interval=1000"),
    )
    whole = yamame.train(*settings, "run.name=whole", "budget.updates=140")
    yamame.train(*settings, "run.name=parts", "budget.updates=70")
    parts = yamame.train(*settings, "run.name=parts", "budget.updates=140", "resume=true")
    assert whole.regulator.factor != 0.4
    skip = ("/progress/curve", "/budget")  # the first part ended with an evaluation
    assert differing(components(whole.path), components(parts.path), skip=skip) == []


MINE = """
class Half:
    factor = 0.5

    def __init__(self, scale):
        self.scale = scale
        self.seen = []

    def observe(self, train_loss, held_out_loss):
        self.seen.append([train_loss, held_out_loss])
        self.factor = 0.25 * self.scale

    def state_dict(self):
        return {"seen": self.seen, "factor": self.factor}

    def load_state_dict(self, state_dict):
        self.seen = state_dict["seen"]
        self.factor = state_dict["factor"]
"""


def test_a_regulator_of_another_package_observes_losses_without_critics(own_module, components):
    own_module("mylab_pace", MINE)
    own = ("schedule.regulator._target_=mylab_pace.Half", "+schedule.regulator.scale=1")
    rate = ("agent=bc", "schedule.updates_per_step=3", "budget.env_steps=144", "run.name=a")
    with pytest.raises(UsageError, match=r"schedule\.regulator\._target_: must .* trust="):
        yamame.train(*NOISY, *rate, *own)
    run = yamame.train(*NOISY, *rate, *own, "trust=[mylab_pace.]")
    # 72 updates, an observation, and half as many for the same number of steps.
    assert run.progress.updates == 72 + 36 + 36
    state = components(run.path)["regulator"]
    assert state["seen"] == run.regulator.seen
    assert len(state["seen"]) == 3
    assert all(0 < loss < 100 for losses in state["seen"] for loss in losses)


def test_what_a_regulator_needs_is_named_with_a_remedy():
    class Plain:
        held_out = None

    check_regulation(None, Plain())
    with pytest.raises(UsageError, match=r"schedule\.regulator: .*observe"):
        check_regulation(Plain(), Plain())
    with pytest.raises(UsageError, match=r"replay: .*sample_held_out.*schedule\.regulator=null"):
        check_regulation(OverfittingRegulator(), Plain())
    Plain.sample_held_out = Plain.num_held_out = None
    with pytest.raises(UsageError, match=r"replay\.held_out: .*replay\.held_out=16"):
        check_regulation(OverfittingRegulator(), Plain())


def test_progress_of_an_earlier_version_has_allowed_nothing():
    state = Progress().state_dict()
    for name in ("updates_allowed", "observed_updates", "observed_steps"):
        del state[name]
    progress = Progress()
    progress.load_state_dict(state)
    assert (progress.updates_allowed, progress.observed_updates) == (0.0, 0)
