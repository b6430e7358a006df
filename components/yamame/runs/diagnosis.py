"""Diagnoses of the in-context memory of trained runs (``diagnose=`` of ``recipes/evaluate.py``).

Every diagnosis is a function from a run to numbers that can be written as JSON.

==============  ====================================================================================
diagnosis       result
==============  ====================================================================================
``recall``      dependence of decisions on each timestep of their past
                (`yamame.evaluation.diagnosis.recall_density`)
``wiped``       loss of return if memory is wiped at every attempt of an episode
``observable``  gain of an agent that was trained in the fully observable environment
``probes``      R2 of hidden variables read from the context, and only from the present timestep
==============  ====================================================================================
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor

from yamame.checks import SettingError, UsageError, at_source, require_setting
from yamame.cli.nodes import plain, target_of
from yamame.cli.validation import parameters_of
from yamame.evaluation import EvaluationResult
from yamame.evaluation.bound import EndlessEpisodes
from yamame.evaluation.diagnosis import RecallCurve, probe, recall_density, record_episodes
from yamame.evaluation.diagnosis.episodes import contexts_of
from yamame.evaluation.intervals import clustered_mean_interval
from yamame.evaluation.needed_memory import Mean
from yamame.files.atomic import write_json
from yamame.report.memory import FILE
from yamame.runs.playing import RunEvaluator
from yamame.runs.trained import Trained
from yamame.system.messages import one_line, print_stderr, warnings_as_lines
from yamame.tracking.database import absolute_uri
from yamame.tracking.record import RUN_FILE, open_run
from yamame.tracking.tracker import TRACKING_URI

Numbers = dict[str, Any]


@dataclass(frozen=True)
class DiagnosedRun:
    """A run to diagnose.

    Attributes:
        run: The run, with the settings of its evaluation.
        observable_run: Run that was trained with ``env.observable=true``, or None.
        most_steps: Largest number of timesteps of an episode that are replaced.
        confidence: Level of the intervals, in (0, 1).
    """

    run: RunEvaluator
    observable_run: Trained | None = None
    most_steps: int = 256
    confidence: float = 0.95

    @property
    def recording(self) -> dict[str, Any]:
        """Arguments of `record_episodes`."""
        return {
            "gamma_index": self.run.gamma_index,
            "greedy": self.run.settings.greedy,
            "max_steps": self.run.settings.max_steps,
            "seed": self.run.settings.seed,
        }


def select_diagnoses(names: Sequence[str]) -> list[str]:
    """Return the selected diagnoses, in the order of `DIAGNOSES`.

    Args:
        names: Names of diagnoses, or ``all``.

    Raises:
        SettingError: A name is unknown.
    """
    condition = f"be all or of {', '.join(DIAGNOSES)}"
    for name in names:
        require_setting("diagnose", name, name == "all" or name in DIAGNOSES, condition)
    return [name for name in DIAGNOSES if name in names or "all" in names]


def diagnose(names: Sequence[str], subject: DiagnosedRun) -> dict[str, Numbers]:
    """Run diagnoses, and store the results with the run.

    Args:
        names: Names of diagnoses. With ``all``, those that the run does not allow are left out, and
            the reason is stored.
        subject: The run.

    Raises:
        UsageError: A name is unknown, or the run does not allow a diagnosis that was named.
    """
    found: dict[str, Numbers] = {}
    for name in select_diagnoses(names):
        try:
            with at_source(f"diagnose={name}"):
                found[name] = DIAGNOSES[name](subject)
        except UsageError as error:
            if "all" not in names:
                raise
            found[name] = {"left_out": error.describe()}
    if found:
        store_diagnosis(subject.run.trained, found)
    return found


def store_diagnosis(trained: Trained, found: Mapping[str, Numbers]) -> None:
    """Write a diagnosis into the run's directory and to its MLflow run, for reports."""
    if trained.folder is None:
        return
    path = write_json(trained.folder / FILE, found)
    if not (trained.folder / RUN_FILE).exists():
        return
    try:
        run = open_run(trained.folder, tracking_uri=absolute_uri(TRACKING_URI))
        if run is not None:
            run.log_artifact(path, None, home=trained.folder)
    except Exception as error:  # MLflow raises errors of databases, drivers and servers
        # The file in the run's directory is complete without the store.
        print_stderr(f"{path}: not stored with the MLflow run: {one_line(error)}")


def recall(subject: DiagnosedRun) -> Numbers:
    """Return the recall density of all decisions, and of the last ones of episodes."""
    with subject.run.build() as (agent, env), warnings_as_lines(EndlessEpisodes):
        episodes = record_episodes(agent, env, **subject.recording)
    # Timesteps are replaced by those of other episodes.
    require_setting("num_envs", len(episodes), len(episodes) >= 2, "be at least 2")

    every, last = recall_density(
        agent, episodes, gamma_index=subject.run.gamma_index, most_steps=subject.most_steps
    )
    return {"all": _curve_numbers(every), "last": _curve_numbers(last)}


def _curve_numbers(curve: RecallCurve) -> Numbers:
    return {
        "past": curve.past,
        "first": curve.first,
        "lags": curve.lags.tolist(),
        "effect": curve.effect.tolist(),
        "density": curve.density.tolist(),
    }


def wiped(subject: DiagnosedRun) -> Numbers:
    """Return the return of every attempt, with memory kept and wiped between attempts."""
    # The same seed gives the same tasks, so that returns can be subtracted per task.
    kept = subject.run.evaluate()
    lost = subject.run.evaluate(memory_reset="every_trial")
    if kept.common_trials().shape[1] < 2:
        raise UsageError("the environment must have several attempts per episode, it has one")

    found: Numbers = {}
    for name, result in (("kept", kept), ("wiped", lost)):
        trials = result.trial_curve(confidence=subject.confidence)
        found[name] = {"return": float(result.returns.mean()), "trials": trials}
    loss = kept.returns - lost.returns
    found["difference"] = _mean_with_interval(loss, kept, subject.confidence)
    return found


def observable(subject: DiagnosedRun) -> Numbers:
    """Return the gain of an agent that was trained with nothing hidden, on the same tasks.

    The gain is the observability gap of "POPGym Arcade" (arXiv 2503.01450).
    """
    wanted = _observable(subject.run.trained).task_settings
    other = subject.observable_run
    if other is None:
        condition = "name a run that was trained with env.observable=true"
        raise SettingError("diagnose_twin", None, condition)
    if other.task_settings != wanted:
        raise SettingError("diagnose_twin", *_differing(other.task_settings, wanted))

    hidden = subject.run.evaluate()
    # With the discount factor that acts by default.
    seen = RunEvaluator(other, subject.run.settings).evaluate()
    found: Numbers = {"twin": other.source}
    metrics = (
        ("return", hidden.returns, seen.returns),
        ("success", hidden.success, seen.success),
    )
    for name, ours, theirs in metrics:
        if ours is None or theirs is None:
            continue
        ours, theirs = ours.double(), theirs.double()
        gap = _mean_with_interval(theirs - ours, hidden, subject.confidence)
        found[name] = {"ours": float(ours.mean()), "twin": float(theirs.mean()), "gap": gap}
    return found


def _differing(twin: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, str]:
    """Return the settings of a twin that differ from those of a run, and the condition on them.

    >>> _differing({"env": "TMaze", "env.length": "4"}, {"env": "TMaze", "env.length": "3"})
    ('env.length=4', 'be a run of the same task, with env.length=3')
    """
    got, needed = [], []
    for key in sorted({*twin, *wanted}):
        # Another class has other settings.
        section = key.partition(".")[0]
        is_alike = section == key or twin.get(section) == wanted.get(section)
        if is_alike and twin.get(key) != wanted.get(key):
            got.append(f"{key}={twin.get(key, '(not set)')}")
            needed.append(f"{key}={wanted.get(key, '(not set)')}")
    return ", ".join(got), f"be a run of the same task, with {', '.join(needed)}"


def _mean_with_interval(
    differences: Tensor, result: EvaluationResult, confidence: float
) -> dict[str, float]:
    """Return the mean of differences on the same tasks.

    The interval is over tasks, for these agents: it says nothing about other seeds of training.
    """
    low, high = clustered_mean_interval(differences, result.clusters, confidence=confidence)
    return {"mean": float(differences.mean()), "low": low, "high": high}


def probes(subject: DiagnosedRun) -> Numbers:
    """Return R2 of ridge probes of the context, and of the present timestep's encoding.

    The agent acts on its usual observations in the observable environment, which also writes the
    variables that are hidden from it.
    """
    run = subject.run
    options = {"num_envs": run.settings.batch_size, "seed": run.settings.seed}
    revealing = _observable(run.trained)
    with (
        run.build() as (agent, _),
        closing(revealing.build_env(**options)) as revealing_env,
        warnings_as_lines(EndlessEpisodes),
    ):
        episodes = record_episodes(agent, revealing_env, **subject.recording)

    mask = episodes["mask"].squeeze(-1)
    inputs = {
        "context": contexts_of(agent, episodes, episodes["features"]),
        "encoding": episodes["features"],
    }
    found: Numbers = {}
    for name, values in inputs.items():
        curve = probe(values, episodes["hidden"], mask)
        if curve is None:
            raise UsageError(
                "the hidden variables must differ between episodes, they are always the same"
            )
        found[name] = {}
        for key, numbers in vars(curve).items():
            if numbers is not None:
                found[name][key] = numbers.tolist()
    return found


def _observable(trained: Trained) -> Trained:
    """Return the run in the environment that also writes the hidden variables, as ``hidden``."""
    target = target_of(trained.config.env)
    if "observable" not in parameters_of(target):
        raise UsageError(
            f"the environment must have a setting observable, {target.__name__} has none"
        )
    config = OmegaConf.merge(trained.config, {"env": {"observable": True}})
    return replace(trained, config=OmegaConf.create(plain(config)))


DIAGNOSES: dict[str, Callable[[DiagnosedRun], Numbers]] = {
    "recall": recall,
    "wiped": wiped,
    "observable": observable,
    "probes": probes,
}


def table_rows(found: Mapping[str, Numbers]) -> list[dict[str, Any]]:
    """Return a diagnosis as the rows of a table."""
    rows = []
    for name, numbers in found.items():
        values: Numbers
        if "left_out" in numbers:
            values = {"left out": numbers["left_out"]}
        elif name == "recall":
            values = _recall_values(numbers)
        elif name == "probes":
            values = _probe_values(numbers)
        elif name == "wiped":
            values = {"difference of the return": _over_tasks(numbers["difference"])}
        else:
            values = _gap_values(numbers)
        for what, value in values.items():
            rows.append({"diagnosis": name, "what": what, "value": value})
    return rows


def _recall_values(numbers: Numbers) -> Numbers:
    values: Numbers = {}
    for part, decisions in (("all", "all decisions"), ("last", "last decision")):
        values[f"share of the past, {decisions}"] = numbers[part]["past"]
        values[f"share of the first timestep, {decisions}"] = numbers[part]["first"]
    return values


def _probe_values(numbers: Numbers) -> Numbers:
    values: Numbers = {}
    for source, curve in numbers.items():
        scores = [f"{score:.2f}" for score in curve["r2"]]
        values[f"R2 from the {source}, start to end"] = " ".join(scores)
    return values


def _gap_values(numbers: Numbers) -> Numbers:
    values: Numbers = {}
    for metric, part in numbers.items():
        if isinstance(part, dict):  # "twin" is the name of a run
            values[f"gap of the {metric}"] = _over_tasks(part["gap"])
    return values


def _over_tasks(interval: dict[str, float]) -> str:
    return f"{Mean(interval['mean'], interval['low'], interval['high'])} over tasks"
