"""Diagnoses of in-context memory of trained runs: what ``diagnose=`` asks of recipes/evaluate.py,
as numbers of JSON.

=============  ======================================================================================================
diagnosis      what it tells
=============  ======================================================================================================
``recall``     how much decisions depend on each timestep of their past (`yamame.evaluation.diagnosis.recall_density`)
``wiped``      what is lost when memory is wiped once per attempt, where an episode has several
``observable`` what an agent gains that was trained on the twin, in which nothing is hidden
``probes``     how well hidden variables can be read from the context, and from the present timestep's encoding
=============  ======================================================================================================
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor

from yamame.checks import UsageError
from yamame.cli.nodes import plain, target_of
from yamame.cli.validation import parameters_of
from yamame.evaluation import EvaluationResult, evaluate
from yamame.evaluation.diagnosis import RecallCurve, probe, recall_density, record_episodes
from yamame.evaluation.diagnosis.episodes import contexts_of
from yamame.evaluation.intervals import clustered_mean_interval
from yamame.evaluation.needed_memory import Mean
from yamame.files.atomic import write_json
from yamame.report.memory import FILE
from yamame.runs.trained import Trained
from yamame.system.messages import OutsideError, print_stderr
from yamame.tracking.record import RUN_FILE, open_run


@dataclass(frozen=True)
class Asked:
    """A run that is diagnosed.

    Attributes:
        trained: The run.
        gamma_index: Which of its policies acts.
        setting: How it is played, as in its evaluation: ``num_envs``, ``num_episodes``, ``greedy``,
            ``max_steps``, ``seed``.
        twin: A run that was trained with ``env.observable=true``, if there is one.
        most_steps: Timesteps of an episode that are replaced, at most.
        confidence: Of intervals.
    """

    trained: Trained
    gamma_index: int
    setting: dict[str, Any]
    twin: Trained | None = None
    most_steps: int = 256
    confidence: float = 0.95

    @property
    def num_envs(self) -> int:
        """How many envs play beside each other; of a recording they are all its episodes."""
        return min(
            self.setting["num_envs"] or self.setting["num_episodes"], self.setting["num_episodes"]
        )

    @property
    def recorded(self) -> dict[str, Any]:
        """How episodes are recorded."""
        how = {name: self.setting[name] for name in ("greedy", "max_steps", "seed")}
        return {"gamma_index": self.gamma_index, **how}

    def evaluated(self, trained: Trained, gamma_index: int, **more: Any) -> EvaluationResult:
        """Plays the held-out tasks with a run."""
        options = {
            name: self.setting[name] for name in ("num_episodes", "greedy", "max_steps", "seed")
        }
        with closing(trained.build_env(num_envs=self.num_envs, seed=options["seed"])) as env:
            policy = trained.build_agent(env).policy(gamma_index=gamma_index)
            return evaluate(policy, env, **options, **more)


def diagnosed(asked: Sequence[str]) -> list[str]:
    """The diagnoses that are asked for, in the order of this module.

    Raises:
        UsageError: One is not known.
    """
    for name in asked:
        if name != "all" and name not in DIAGNOSES:
            raise UsageError(f"diagnose: must be all or of {', '.join(DIAGNOSES)}, got {name}")
    return [name for name in DIAGNOSES if name in asked or "all" in asked]


def diagnose(names: Sequence[str], asked: Asked, *, all_of_them: bool) -> dict[str, Any]:
    """The numbers of diagnoses by their names.

    Args:
        names: From `diagnosed`.
        asked: The run.
        all_of_them: One that the run does not allow is left out, with the reason; else it is
            refused.
    """
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = DIAGNOSES[name](asked)
        except UsageError as reason:
            if not all_of_them:
                raise UsageError(f"diagnose={name}: {reason}") from reason
            found[name] = {"left_out": str(reason)}
    return found


def keep(trained: Trained, found: dict[str, Any]) -> None:
    """Writes the diagnosis into the run's directory and stores it with its MLflow run, where a
    report finds it.
    """
    if trained.folder is None:
        return
    path = write_json(trained.folder / FILE, found)
    if (trained.folder / RUN_FILE).exists():
        try:
            run = open_run(trained.folder)
            if run is not None:
                run.log_artifact(path, None, home=trained.folder)
        except (UsageError, OutsideError) as error:
            print_stderr(f"{path}: not stored with the MLflow run: {error}")


def recall(asked: Asked) -> dict[str, Any]:
    """The recall density of all decisions, and of the last ones of episodes."""
    with closing(
        asked.trained.build_env(num_envs=asked.num_envs, seed=asked.setting["seed"])
    ) as env:
        agent = asked.trained.build_agent(env)
        episodes = record_episodes(agent, env, **asked.recorded)
    if len(episodes) < 2:
        raise UsageError("num_envs must be at least 2, got 1")
    curves = recall_density(
        agent, episodes, gamma_index=asked.gamma_index, most_steps=asked.most_steps
    )
    return {name: _numbers(curve) for name, curve in zip(("all", "last"), curves, strict=True)}


def _numbers(curve: RecallCurve) -> dict[str, Any]:
    series = {name: getattr(curve, name).tolist() for name in ("lags", "effect", "density")}
    return {"past": curve.past, "first": curve.first, **series}


def wiped(asked: Asked) -> dict[str, Any]:
    """The return with memory as it is and wiped once per attempt, of every attempt."""
    options = (asked.trained, asked.gamma_index)
    kept, lost = asked.evaluated(*options), asked.evaluated(*options, memory_wiped="trials")
    if kept.common_trials().shape[1] < 2:
        raise UsageError("the environment must have several attempts per episode, it has one")
    found: dict[str, Any] = {}
    for name, result in (("kept", kept), ("wiped", lost)):
        trials = result.trial_curve(confidence=asked.confidence)
        found[name] = {"return": float(result.returns.mean()), "trials": trials}
    return {**found, "difference": _difference(kept.returns - lost.returns, kept, asked.confidence)}


def observable(asked: Asked) -> dict[str, Any]:
    """How much better an agent does that was trained on the twin: the same tasks, in which nothing
    is hidden.

    The observability gap of "POPGym Arcade", arXiv 2503.01450.
    """
    own = _twin_of(asked.trained)
    if asked.twin is None:
        raise UsageError(
            "diagnose_twin must name a run that was trained with env.observable=true, got null"
        )
    if asked.twin.task != own.task:
        raise UsageError(f"diagnose_twin must be a run of {own.task}, got one of {asked.twin.task}")
    ours = asked.evaluated(asked.trained, asked.gamma_index)
    theirs = asked.evaluated(asked.twin, -1)
    found: dict[str, Any] = {"twin": asked.twin.source}
    for name, a, b in (
        ("return", ours.returns, theirs.returns),
        ("success", ours.success, theirs.success),
    ):
        if a is not None and b is not None:
            a, b = a.double(), b.double()
            gap = _difference(b - a, ours, asked.confidence)
            found[name] = {"ours": float(a.mean()), "twin": float(b.mean()), "gap": gap}
    return found


def _difference(values: Tensor, played: EvaluationResult, confidence: float) -> dict[str, float]:
    """Mean of differences on the same tasks; its interval is over tasks, of these agents and no
    other seeds.
    """
    low, high = clustered_mean_interval(values, played.clusters, confidence=confidence)
    return {"mean": float(values.mean()), "low": low, "high": high}


def probes(asked: Asked) -> dict[str, Any]:
    """R2 of ridge probes of the context and of the present timestep's encoding: the agent plays in
    the twin, blind.
    """
    options = {"num_envs": asked.num_envs, "seed": asked.setting["seed"]}
    twin = _twin_of(asked.trained)
    with (
        closing(asked.trained.build_env(**options)) as env,
        closing(twin.build_env(**options)) as seeing,
    ):
        agent = asked.trained.build_agent(env)
        episodes = record_episodes(agent, seeing, **asked.recorded)
    mask = episodes["mask"].squeeze(-1)
    read = {
        "context": contexts_of(agent, episodes, episodes["features"]),
        "encoding": episodes["features"],
    }
    try:
        curves = {name: probe(values, episodes["hidden"], mask) for name, values in read.items()}
    except ValueError as error:
        raise UsageError(str(error)) from error
    if None in curves.values():
        raise UsageError(
            "the hidden variables must differ between episodes, they are always the same"
        )
    return {
        name: {key: values.tolist() for key, values in vars(curve).items() if values is not None}
        for name, curve in curves.items()
    }


def _twin_of(trained: Trained) -> Trained:
    """The run in the environment that shows what is hidden, as ``hidden``."""
    target = target_of(trained.config.env)
    if "observable" not in parameters_of(target):
        raise UsageError(
            f"the environment must have a twin that hides nothing, {target.__name__} has none"
        )
    config = OmegaConf.merge(trained.config, {"env": {"observable": True}})
    return replace(trained, config=OmegaConf.create(plain(config)))


DIAGNOSES: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "recall": recall,
    "wiped": wiped,
    "observable": observable,
    "probes": probes,
}


def told(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A diagnosis as the lines of a table."""
    lines = []
    for name, numbers in found.items():
        if "left_out" in numbers:
            values = {"left out": numbers["left_out"]}
        elif name == "recall":
            values = {
                f"{what}, {decisions}": numbers[part][share]
                for part, decisions in (("all", "all decisions"), ("last", "last decision"))
                for share, what in (
                    ("past", "share of the past"),
                    ("first", "share of the first timestep"),
                )
            }
        elif name == "probes":
            values = {
                f"R2 from the {read}, start to end": " ".join(
                    f"{value:.2f}" for value in curve["r2"]
                )
                for read, curve in numbers.items()
            }
        else:
            parts = {"return": numbers} if name == "wiped" else numbers
            gap = "difference" if name == "wiped" else "gap"
            values = {
                f"{gap} of the {metric}": f"{Mean(part[gap]['mean'], part[gap]['low'], part[gap]['high'])} over tasks"
                for metric, part in parts.items()
                if isinstance(part, dict)
            }
        lines += [
            {"diagnosis": name, "what": what, "value": value} for what, value in values.items()
        ]
    return lines
