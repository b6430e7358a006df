"""Errors of user code are reported with the part, the error and the line of the file that raised
them, whatever their type and wherever they are raised.
"""

import contextlib
import errno
import importlib
import importlib.util
import io
import json
import sys
from dataclasses import dataclass

import gymnasium
import pytest
from yamame.checks import UsageError

PARTS = '''
import gymnasium
import numpy as np
import yamame
from gymnasium import spaces
from torch.optim import AdamW
from yamame.data import npz
from yamame.losses import MultiGammaREDQLoss
from yamame.timestep import MLPTimestepEncoder
from yamame.trajectory import GRUEncoder
from yamame.transforms import ContextTransform


class OwnError(Exception):
    """An error of a user's own type."""


TYPES = [
    ValueError,
    TypeError,
    ImportError,
    KeyError,
    AssertionError,
    AttributeError,
    RuntimeError,
    OSError,
    FloatingPointError,
    ZeroDivisionError,
    NotImplementedError,
    StopIteration,
    gymnasium.error.Error,
    OwnError,
]
FAULT = None
ERROR = None


class Board(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, level=1):
        self.render_mode = render_mode
        self.observation = np.zeros(3, np.float32)
        if FAULT == "Board.__init__":
            raise ERROR  # Board.__init__

    @property
    def observation_space(self):
        if FAULT == "Board.observation_space":
            raise ERROR  # Board.observation_space
        return spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if FAULT == "Board.reset":
            raise ERROR  # Board.reset
        return self.observation, {}

    def step(self, action):
        self.steps += 1
        if FAULT == "Board.step" and self.steps == 2:
            raise ERROR  # Board.step
        return self.observation, 1.0, self.steps == 4, False, {}

    def sample_task(self, seed):
        if FAULT == "Board.sample_task":
            raise ERROR  # Board.sample_task
        return seed

    def render(self):
        if FAULT == "Board.render":
            raise ERROR  # Board.render
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        if FAULT == "Board.close":
            raise ERROR  # Board.close


class Encoder(GRUEncoder):
    def __init__(self, in_features, **settings):
        super().__init__(in_features, **settings)
        if FAULT == "Encoder.__init__":
            raise ERROR  # Encoder.__init__

    def forward(self, *args, **kwargs):
        if FAULT == "Encoder.forward":
            raise ERROR  # Encoder.forward
        return super().forward(*args, **kwargs)


class Loss(MultiGammaREDQLoss):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        if FAULT == "Loss.__init__":
            raise ERROR  # Loss.__init__

    def forward(self, batch):
        if FAULT == "Loss.forward":
            raise ERROR  # Loss.forward
        return super().forward(batch)


class Optimizer(AdamW):
    def __init__(self, params, **settings):
        if FAULT == "Optimizer.__init__":
            raise ERROR  # Optimizer.__init__
        super().__init__(params, **settings)

    def step(self, closure=None):
        if FAULT == "Optimizer.step":
            raise ERROR  # Optimizer.step
        return super().step(closure)


class Watch(yamame.Callback):
    def __init__(self):
        if FAULT == "Watch.__init__":
            raise ERROR  # Watch.__init__

    def on_collect(self, run, episodes):
        if FAULT == "Watch.on_collect":
            raise ERROR  # Watch.on_collect

    def on_end(self, run):
        if FAULT == "Watch.on_end":
            raise ERROR  # Watch.on_end


class Data:
    def __len__(self):
        return 4

    def sample(self, batch_size):
        if FAULT == "Data.sample":
            raise ERROR  # Data.sample

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def load(format, transform):
    if FAULT == "load":
        raise ERROR  # load
    return Data()


gymnasium.register("Board-v0", Board)
'''
TINY = [
    "debug=tiny",
    "logger=none",
    "run.name=a",
    "trust=[parts.]",
    "env=gym",
    "env.id=parts:Board-v0",
    "env.time_limit=4",
    "encoder=gru",
    "encoder._target_=parts.Encoder",
    "encoder.hidden_size=4",
    "encoder.num_layers=1",
    "encoder.out_features=4",
    "~encoder.max_time_constant",
    "agent.gammas=[0.9]",
    "agent.loss._target_=parts.Loss",
    "optimizer=adamw",
    "optimizer._target_=parts.Optimizer",
    "+callbacks.watch._target_=parts.Watch",
    "schedule.steps_per_iteration=16",
    "evaluation.num_episodes=2",
]
DATA = ["+data.source._target_=parts.load", "schedule.offline_updates=2"]
BEFORE = {
    "Board.__init__": "Gym('parts:Board-v0')",
    "Board.observation_space": "Gym('parts:Board-v0')",
    "Board.close": "Gym('parts:Board-v0')",
    "Encoder.__init__": "encoder (parts.Encoder)",
    "Loss.__init__": "agent.loss (parts.Loss)",
    "Optimizer.__init__": "optimizer (parts.Optimizer)",
    "Watch.__init__": "callbacks.watch (parts.Watch)",
    "load": "data.source (parts.load)",
}
"""Places before a run has begun, and the names of their parts."""
WITHIN = {
    "Board.reset": "Gym('parts:Board-v0')",
    "Board.step": "Gym('parts:Board-v0')",
    "Board.sample_task": "Gym('parts:Board-v0')",
    "Encoder.forward": "encoder (parts.Encoder.forward)",
    "Loss.forward": "agent.loss (parts.Loss.forward)",
    "Optimizer.step": "optimizer (parts.Optimizer.step)",
    "Watch.on_collect": "callbacks.watch (parts.Watch.on_collect)",
    "Data.sample": "parts.Data.sample",
}
"""Places in a run that has begun."""
EVERYWHERE = [*BEFORE, *WITHIN]


class Unprintable(Exception):  # noqa: N818
    """An error that fails when it is formatted."""

    def __str__(self):
        raise KeyError("text")

    __repr__ = __str__


@dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818
    """An error that takes neither notes nor a traceback."""

    reason: str


class Panic(BaseException):
    """An error that is no Exception, as those of extension modules in Rust."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The module of the user, and the recipe that trains with it."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "parts.py").write_text(PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        sys.modules.pop("parts", None)
        yield importlib.import_module("parts")
        sys.modules.pop("parts", None)
        gymnasium.registry.pop("Board-v0", None)


@pytest.fixture
def fail(parts, runner, monkeypatch):
    """Trains with a part that raises an error: exit status, output and errors."""
    train = runner("train")

    def fail(place, error, *arguments):
        monkeypatch.setattr(parts, "FAULT", place)
        monkeypatch.setattr(parts, "ERROR", error)
        monkeypatch.setitem(sys.modules, "parts", parts)  # other tests may have removed it
        settings = [*TINY, *arguments]
        if place in ("load", "Data.sample"):
            settings += DATA
        if place == "Board.sample_task":
            settings.append("env.tasks=own")
        return train(*settings)

    return fail


def line_of(place):
    """The line of a place in the user's file."""
    lines = PARTS.splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"  # {place}"))


def place_of(place):
    return f"{sys.modules['parts'].__file__}:{line_of(place)}"


def errors_for(parts, place):
    """Eight of all types, others for each place."""
    first = EVERYWHERE.index(place)
    types = [parts.TYPES[(first + number) % len(parts.TYPES)] for number in range(8)]
    return [kind("it broke\nin two lines") for kind in types]


def check_line(errors, place, error, name):
    (line,) = errors.splitlines()
    reason = "it broke\\nin two lines" if isinstance(error, KeyError) else "it broke in two lines"
    assert line.startswith(f"train: {name}")
    assert reason in line
    assert f"{type(error).__name__}: " in line
    assert f"parts.py:{line_of(place)})" in line


@pytest.mark.parametrize("place", BEFORE)
def test_an_error_before_a_run_begins_is_reported_and_nothing_is_written(
    fail, parts, tmp_path, place
):
    for error in errors_for(parts, place):
        status, _, errors = fail(place, error)
        assert status == 1, errors
        check_line(errors, place, error, BEFORE[place])
        assert "YAMAME_TRACEBACK=1" in errors
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("place", WITHIN)
def test_an_error_in_a_run_is_reported_and_its_traceback_kept(fail, parts, tmp_path, place):
    for error in errors_for(parts, place):
        status, _, errors = fail(place, error, "run.overwrite=true")
        assert status == 1, errors
        check_line(errors, place, error, WITHIN[place])
        assert "the traceback is in runs/a/error.txt" in errors
        text = (tmp_path / "runs/a/error.txt").read_text()
        assert f"# {place}\n" in text
        assert summary(tmp_path)["status"] == "FAILED"


def summary(folder):
    return json.loads((folder / "runs/a/summary.json").read_text())


def test_a_run_without_an_error_has_no_report(fail, tmp_path):
    status, _, errors = fail(None, None)
    assert status == 0
    assert "parts.py" not in errors
    assert not (tmp_path / "runs/a/error.txt").exists()


def test_an_environment_that_cannot_be_drawn_costs_the_video(fail, tmp_path):
    status, _, errors = fail("Board.render", ValueError("no screen"))
    assert (status, summary(tmp_path)["status"]) == (0, "FINISHED")
    assert errors.count("parts.py") == 1
    assert (
        f"ValueError: no screen ({sys.modules['parts'].__file__}:{line_of('Board.render')})"
        in errors
    )


def test_an_error_at_the_end_leaves_a_finished_run_finished(fail, tmp_path):
    status, _, errors = fail("Watch.on_end", KeyError("end"))
    assert (status, summary(tmp_path)["status"]) == (1, "FINISHED")
    assert (
        f"callbacks.watch (parts.Watch.on_end): KeyError: 'end' ({sys.modules['parts'].__file__}"
        in errors
    )
    assert "the traceback is in runs/a/error.txt" in errors


@pytest.mark.parametrize("place", ["Board.step", "Encoder.forward", "Watch.on_end"])
def test_a_check_that_user_code_fails_in_a_run_is_an_error_of_that_code(fail, tmp_path, place):
    status, _, errors = fail(place, UsageError("width must be at least 1, got 0"))
    assert status == 1, errors
    assert f"UsageError: width must be at least 1, got 0 ({place_of(place)})" in errors
    assert f"# {place}\n" in (tmp_path / "runs/a/error.txt").read_text()


def test_the_traceback_is_printed_on_request(fail, monkeypatch):
    for place, value, wanted in (
        ("Encoder.__init__", "1", True),
        ("Loss.forward", "1", True),
        ("Loss.forward", "0", False),
    ):
        monkeypatch.setenv("YAMAME_TRACEBACK", value)
        status, _, errors = fail(place, ValueError("it broke"), "run.overwrite=true")
        assert status == 1
        assert errors.startswith("Traceback") == wanted
        assert (f"# {place}\n" in errors) == wanted
        assert f"parts.py:{line_of(place)})" in errors.splitlines()[-1]


ODD = {
    r"OSError: \udcff/maps": lambda: OSError("\udcff/maps"),
    "ValueError: xxx": lambda: ValueError("x" * 10**6),
    r"RuntimeError: \x1b[2J \x1b[2J": lambda: RuntimeError("\x1b[2J\n" * 1000),
    "Unprintable: (its message cannot be formatted: KeyError)": Unprintable,
    "Frozen": lambda: Frozen("cold"),
    "ExceptionGroup: two": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "first ValueError: a": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "Panic: index out of bounds": lambda: Panic("index out of bounds"),
    "SystemExit: 3": lambda: SystemExit(3),
    "SystemExit (": SystemExit,
}
"""Errors that are hard to report, by a part of their report."""


@pytest.mark.parametrize(
    ("place", "other"), [("Board.step", "Loss.__init__"), ("Loss.forward", "")]
)
@pytest.mark.parametrize("text", ODD)
def test_a_report_never_fails(fail, tmp_path, place, other, text):
    for each in filter(None, (place, other)):
        status, _, errors = fail(each, ODD[text](), "run.overwrite=true")
        assert status == 1, errors
        assert errors.count("\n") == 1
        assert text in errors
        assert f"parts.py:{line_of(each)})" in errors
        assert len(errors) < 1000
    assert summary(tmp_path)["status"] == "FAILED"
    assert f"# {place}" in (tmp_path / "runs/a/error.txt").read_text()


def test_an_interruption_by_user_code_is_one_of_the_run(fail, tmp_path):
    status, _, errors = fail("Watch.on_collect", KeyboardInterrupt())
    assert (status, errors) == (130, "train: interrupted\n")
    assert summary(tmp_path)["status"] == "KILLED"


def test_jobs_of_a_sweep_report_the_same(fail, tmp_path):
    status, out, errors = fail("Loss.forward", KeyError("loss"), "-m", "seed=0,1", "run.name=null")
    assert status == 1, errors
    lines = errors.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["job 0", "job 1"]
    report = f"agent.loss (parts.Loss.forward): KeyError: 'loss' ({place_of('Loss.forward')})"
    assert all(report in line for line in lines)
    assert out.count(report) == 2  # in the table


def test_a_run_is_not_begun_without_ray(runner, tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(
        "def is_initialized():\n    return False\n\n\n"
        "def init(*args, **options):\n    raise Exception('The current node timed out')\n"
        "def shutdown():\n    pass\n"
    )
    spec = importlib.util.spec_from_file_location("ray", tmp_path / "ray.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "ray", module)
    status, _, errors = runner("train")("collector=ray", "debug=tiny", "logger=none", "encoder=gru")
    retried, refused = errors.splitlines()
    assert status == 1
    assert "Exception: The current node timed out" in retried
    assert refused.startswith("train: RayCollector: Ray does not start")
    assert "Exception: The current node timed out" in refused
    assert not (tmp_path / "runs").exists()


BARE = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Bare(gymnasium.Env):
    action_space = spaces.Discrete(2)

    def close(self):
        raise ValueError("no window")


gymnasium.register("Bare-v0", Bare)
"""


def test_an_environment_without_a_space_is_told_so_whatever_its_close_does(
    runner, tmp_path, monkeypatch
):
    (tmp_path / "bare_envs.py").write_text(BARE)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ("env=gym", "env.id=bare_envs:Bare-v0", "debug=tiny", "logger=none")
    status, _, errors = runner("train")(*given)
    gymnasium.registry.pop("Bare-v0", None)
    assert (status, errors.count("\n")) == (2, 1)
    assert "observation_space must be a space of Gymnasium" in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("stream", ["broken", "closed", "full"])
def test_a_run_ends_as_it_would_without_a_reader_of_its_output(fail, tmp_path, monkeypatch, stream):
    class Stream(io.StringIO):
        def write(self, text):
            if stream == "broken":
                raise BrokenPipeError
            raise ValueError("closed") if stream == "closed" else OSError(errno.ENOSPC, "full")

    # In this process the runner redirects both streams: print to ours instead.
    for name in ("redirect_stdout", "redirect_stderr"):
        former = getattr(contextlib, name)
        monkeypatch.setattr(contextlib, name, lambda _, former=former: former(Stream()))
    status, _, _ = fail("Loss.forward", KeyError("loss"))
    assert status == 1
    assert summary(tmp_path)["status"] == "FAILED"
    assert "# Loss.forward" in (tmp_path / "runs/a/error.txt").read_text()
