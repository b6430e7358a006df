"""Plays trained runs on held-out tasks: return, success and the in-context curve, with intervals.

    python recipes/evaluate.py run=runs/mine [key=value]      # --help lists the keys
    python recipes/evaluate.py run=runs/mine env.size=13 context_length=2048 control=true
    python recipes/evaluate.py run=[runs/a,runs/b] against=[runs/c,runs/d]
    python recipes/evaluate.py run=runs/mine diagnose=all     # what its memory holds and does: docs/howto/diagnose.md

A run is a directory, a checkpoint file or the id of an MLflow run. All runs play the same held-out
tasks: not those by which training chose its best checkpoint, unless seed= says so. Results go to
<output>/evaluation.json, once everything was played; the same command writes the same file, other
settings another. Several runs are summed up over seeds and tasks: a run's score is its mean over
the held-out tasks, and runs with the same environment are runs of one task.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    answer("evaluate")  # prints help and usage errors before torch is imported

# isort: split
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import torch
from omegaconf import DictConfig
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.jobs import overrides
from yamame.cli.names import file_name
from yamame.cli.nodes import plain
from yamame.evaluation import EvaluationResult, evaluate, play_episode
from yamame.evaluation.intervals import Resampling, with_width
from yamame.files.atomic import write_json
from yamame.files.identity import key_of
from yamame.files.run_directory import check_folder
from yamame.report.aggregate import Statistic, aggregate, probability_of_improvement, score_table
from yamame.report.figures import draw_attention, learning_curve
from yamame.report.memory import draw_memory
from yamame.report.terminal import print_columns
from yamame.runs.diagnosis import (
    DiagnosedRun,
    diagnose,
    select_diagnoses,
    store_diagnosis,
    table_rows,
)
from yamame.runs.trained import Trained, load_from_options
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.attention_maps import attention_maps

PLAYED_WITH = ("num_episodes", "greedy", "max_steps", "seed")
METRICS = ("success", "return")


def score(cfg: DictConfig) -> float:
    """The recipe: the mean score of the runs."""
    return float(evaluate_runs(cfg)["score"])


def evaluate_runs(cfg: DictConfig) -> dict[str, Any]:
    """What is written: settings, numbers of every run, what they say together, and their mean
    ``score``.

    A run's score is its success, or the return where an environment knows no success.
    """
    check(cfg)
    asked = plain(cfg)
    groups = {
        name: [load_from_options(source, asked, name) for source in listed(asked[name])]
        for name in ("run", "against")
    }
    if not groups["run"]:
        raise UsageError("run must name a run, got none")
    everyone = [*groups["run"], *groups["against"]]
    twin = (
        None
        if cfg.diagnose_twin is None
        else load_from_options(cfg.diagnose_twin, asked, "diagnose_twin")
    )
    output = output_of(cfg, groups["run"])
    check_folder(output, "output")
    try:
        check_tasks(groups)
        for trained in everyone:
            check_agent(cfg, trained)
        played = {name: [play(cfg, trained) for trained in group] for name, group in groups.items()}
        for run, trained in zip(
            [run for runs in played.values() for run in runs], everyone, strict=True
        ):
            if found := diagnosis(cfg, trained, twin):
                run["diagnosis"] = found
        scores = [
            acting(run).get("success_mean", acting(run)["return_mean"]) for run in played["run"]
        ]
        report = {"settings": asked, **played, "score": sum(scores) / len(scores)}
        if len(everyone) > 1:
            report |= compare(played, Resampling(confidence=cfg.confidence))
        maps = [attention(cfg, trained) for trained in everyone] if cfg.attention else []
    except ValueError as error:
        raise UsageError(str(error)) from error
    write(output, report, maps)
    return report


def check(cfg: DictConfig) -> None:
    """Refuses settings that exclude each other or mean nothing."""
    if cfg.gammas not in (None, "all"):
        raise UsageError(f"gammas must be all or null, got {cfg.gammas}")
    if cfg.gamma is not None and cfg.gamma_index is not None:
        raise UsageError(
            f"gamma={cfg.gamma} and gamma_index={cfg.gamma_index} must not be given together"
        )
    if not 0.0 < cfg.confidence < 1.0:
        raise UsageError(f"confidence must be in (0, 1), got {cfg.confidence}")
    if "observable" not in select_diagnoses(listed(cfg.diagnose)) and cfg.diagnose_twin is not None:
        raise UsageError(
            f"diagnose_twin={cfg.diagnose_twin} needs diagnose=observable or diagnose=all"
        )
    if cfg.attention_steps < 1:
        raise UsageError(f"attention_steps must be positive, got {cfg.attention_steps}")


def listed(value: Any) -> list[str]:
    """One name or several."""
    return (
        []
        if value is None
        else [str(item) for item in ([value] if isinstance(value, str) else value)]
    )


def output_of(cfg: DictConfig, runs: list[Trained]) -> Path:
    """The directory of the results: of a run's own, or in it one that is named after what was
    asked.
    """
    if cfg.output is not None:
        return Path(cfg.output)
    own = runs[0].folder if len(runs) == 1 and cfg.against is None else None
    alone, folder = own is not None, (own or Path("runs")) / "evaluation"
    kept = ("device", "tracking_uri", "trust", *(["run"] if alone else []))
    asked = sorted(text.lstrip("+") for text in overrides() if key_of(text) not in kept)
    return folder / file_name(asked) if asked else folder


def check_tasks(groups: dict[str, list[Trained]]) -> None:
    """Refuses runs that cannot be summed up or compared.

    Raises:
        ValueError: A task has fewer runs than another, or the groups have other tasks.
    """
    tasks = [[trained.task for trained in group] for group in groups.values() if group]
    names = [score_table(group, [0.0] * len(group))[0] for group in tasks]
    if len({tuple(sorted(group)) for group in names}) > 1:
        raise UsageError(f"run and against must have the same tasks, got {names[0]} and {names[1]}")


def check_agent(cfg: DictConfig, trained: Trained) -> None:
    """Refuses a gamma that was not trained, weights that do not fit and pictures that cannot be
    drawn.
    """
    acting_gamma(cfg, trained)
    with closing(trained.build_env(num_envs=1, seed=setting_of(cfg, trained)["seed"])) as env:
        encoder = trained.build_agent(env).trajectory_encoder
    if cfg.attention and not isinstance(encoder, TransformerEncoder):
        name = type(encoder).__name__
        raise UsageError(
            f"attention=true needs a TransformerEncoder, {trained.source} has a {name}"
        )


def setting_of(cfg: DictConfig, trained: Trained) -> dict[str, Any]:
    """How a run is played: as in the evaluations of its training, but for what the command line
    says.
    """
    return {
        name: trained.config.evaluation[name] if cfg[name] is None else cfg[name]
        for name in ("num_envs", *PLAYED_WITH)
    }


def acting_gamma(cfg: DictConfig, trained: Trained) -> int:
    """The place of the discount factor that acts."""
    if cfg.gamma is not None:
        return trained.gamma_index(cfg.gamma)
    count, index = len(trained.gammas), -1 if cfg.gamma_index is None else cfg.gamma_index
    if not -count <= index < count:
        raise UsageError(f"gamma_index must be in {-count}..{count - 1}, got {index}")
    return index % count


def play(cfg: DictConfig, trained: Trained) -> dict[str, Any]:
    """Plays the held-out tasks with one or all discount factors."""
    setting, acts = setting_of(cfg, trained), acting_gamma(cfg, trained)
    options = {name: setting[name] for name in PLAYED_WITH}
    num_envs = min(setting["num_envs"] or setting["num_episodes"], setting["num_episodes"])
    outcomes = []
    with closing(trained.build_env(num_envs=num_envs, seed=setting["seed"])) as env:
        agent, novelty = trained.build_agent(env), trained.what_is_new(env)
        for index in range(len(agent.gammas)) if cfg.gammas == "all" else [acts]:
            policy = agent.policy(gamma_index=index)
            result = evaluate(policy, env, **options)
            outcome = {"gamma": agent.gammas[index], "acting": index == acts}
            outcome |= numbers_of(result, cfg.confidence)
            outcome["episodes"] = {
                "return": result.returns.tolist(),
                "length": result.lengths.tolist(),
            }
            if result.success is not None:
                outcome["episodes"]["success"] = result.success.tolist()
            if cfg.control:
                control = evaluate(policy, env, memory_wiped=True, **options)
                outcome["control"] = numbers_of(control, cfg.confidence)
            outcomes.append(outcome)
    return {
        "source": trained.source,
        "step": trained.step,
        "seed": trained.config.seed,
        "task": trained.task,
        "evaluated_on": novelty,
        "evaluation": setting,
        "gammas": outcomes,
    }


def numbers_of(result: EvaluationResult, confidence: float) -> dict[str, Any]:
    """The summary of an evaluation and its in-context curve."""
    return {
        **result.summary(confidence=confidence),
        "trials": result.trial_curve(confidence=confidence),
    }


def diagnosis(cfg: DictConfig, trained: Trained, twin: Trained | None) -> dict[str, Any]:
    """What is asked of a run's memory, written into its directory too; empty where nothing is."""
    names = select_diagnoses(listed(cfg.diagnose))
    subject = DiagnosedRun(
        trained,
        acting_gamma(cfg, trained),
        setting_of(cfg, trained),
        twin,
        most_steps=cfg.diagnose_steps,
        confidence=cfg.confidence,
    )
    found = diagnose(names, subject, all_of_them="all" in listed(cfg.diagnose))
    if found:
        store_diagnosis(trained, found)
    return found


def attention(cfg: DictConfig, trained: Trained) -> torch.Tensor:
    """Where the encoder looks during the first held-out episode: ``[layers, H, L, L]``."""
    setting = setting_of(cfg, trained)
    with closing(trained.build_env(num_envs=1, seed=setting["seed"])) as env:
        agent = trained.build_agent(env)
        encoder = agent.trajectory_encoder
        assert isinstance(encoder, TransformerEncoder)
        limits = (cfg.attention_steps, setting["max_steps"], encoder.context_length)
        episode = play_episode(
            agent.policy(gamma_index=acting_gamma(cfg, trained)),
            env,
            max_steps=min(limit for limit in limits if limit is not None),
            greedy=setting["greedy"],
            seed=setting["seed"],
        )
    with torch.no_grad():
        return attention_maps(encoder, agent.timestep_encoder(episode))[:, 0].cpu()


def acting(run: dict[str, Any]) -> dict[str, Any]:
    """What came out with the discount factor that acts."""
    return next(outcome for outcome in run["gammas"] if outcome["acting"])


def compare(played: dict[str, list[dict[str, Any]]], resampling: Resampling) -> dict[str, Any]:
    """What several runs say together, per metric that all of them know."""
    groups = {name: runs for name, runs in played.items() if runs}
    together: dict[str, Any] = {"aggregate": {name: {} for name in groups}, "improvement": {}}
    for metric in METRICS:
        if not all(f"{metric}_mean" in acting(run) for runs in groups.values() for run in runs):
            continue
        tables = []
        for name, runs in groups.items():
            scores = [acting(run)[f"{metric}_mean"] for run in runs]
            tasks, table = score_table([run["task"] for run in runs], scores)
            together["aggregate"][name] |= {"tasks": tasks, "num_runs": len(table)}
            together["aggregate"][name][metric] = {
                statistic: aggregate(table, statistic=statistic, resampling=resampling)._asdict()
                for statistic in get_args(Statistic)
            }
            tables.append(table[:, sorted(range(len(tasks)), key=tasks.__getitem__)])
        if len(tables) > 1:
            better = probability_of_improvement(*tables, resampling=resampling)
            together["improvement"][metric] = better._asdict()
    return together


def write(folder: Path, report: dict[str, Any], maps: list[torch.Tensor]) -> None:
    """Writes numbers and pictures, in place of those of an earlier evaluation, and shows the
    tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (
        "in_context.png",
        "attention.png",
        "attention-[0-9]*.png",
        "recall.png",
        "probes.png",
    ):
        for picture in folder.glob(name):
            picture.unlink()
    played = report["run"] + report["against"]
    curves = in_context_curves(played)
    if curves:
        learning_curve(folder / "in_context.png", curves, x_label="trial", y_label="return")
    for index, probabilities in enumerate(maps):
        name = f"attention-{index}.png" if len(played) > 1 else "attention.png"
        draw_attention(folder / name, probabilities, title=played[index]["source"])
    found = {name: run["diagnosis"] for name, run in named(played).items() if "diagnosis" in run}
    draw_memory(folder, found)
    path = write_json(folder / "evaluation.json", report)
    novelties = "; ".join(dict.fromkeys(run["evaluated_on"] for run in played))
    print_columns(f"evaluation ({novelties})", [line for run in played for line in lines_of(run)])
    for name, one in found.items():
        print_columns(f"memory of {name}", table_rows(one))
    if "aggregate" in report:
        groups = report["aggregate"].items()
        print_columns(
            "over runs and tasks", [line for name, group in groups for line in sums(name, group)]
        )
    better = {metric: interval(**found) for metric, found in report.get("improvement", {}).items()}
    if better:
        rows = [{"metric": metric, "probability": text} for metric, text in better.items()]
        print_columns("how likely a run is better than one of against", rows)
    print(path)


def named(played: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The runs by the names of their directories; those of one name by their place too."""
    names = [Path(run["source"]).name for run in played]
    return {
        name if names.count(name) == 1 else f"{index} {name}": run
        for index, (run, name) in enumerate(zip(played, names, strict=True))
    }


def in_context_curves(played: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """The return of every trial with its interval, of runs whose episodes have several trials."""
    curves = {}
    for name, run in named(played).items():
        for suffix, numbers in (("", acting(run)), (", memory wiped", acting(run).get("control"))):
            trials = numbers and numbers["trials"]
            if trials and len(trials["mean"]) > 1:
                places = [float(place) for place in range(1, len(trials["mean"]) + 1)]
                curves[name + suffix] = [places, trials["mean"], trials["low"], trials["high"]]
    return curves


def lines_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a run in the table, two for a discount factor with the control."""
    lines = []
    for outcome in run["gammas"]:
        for who, numbers in (("agent", outcome), ("memory wiped", outcome.get("control"))):
            if numbers is None:
                continue
            line = {"run": run["source"], "gamma": outcome["gamma"], "who": who}
            for metric in METRICS:
                if f"{metric}_mean" in numbers:
                    line[metric] = interval(
                        *(numbers[f"{metric}_{end}"] for end in ("mean", "low", "high"))
                    )
            if len(numbers["trials"]["mean"]) > 1:
                line["return per trial"] = " ".join(
                    f"{mean:.3g}" for mean in numbers["trials"]["mean"]
                )
            whole, count = f"{numbers['finished']:.0%}", int(numbers["num_episodes"])
            line |= {"length": numbers["length_mean"], "episodes": count}
            if "num_tasks" in numbers:
                line["tasks"] = int(numbers["num_tasks"])
            line["interval over"] = "tasks" if "intervals_over_tasks" in numbers else "episodes"
            line["played to the end"] = whole
            lines.append(line)
    return lines


def sums(name: str, group: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a group in the table over runs, one per metric."""
    start = {"group": name, "runs": group["num_runs"], "tasks": len(group["tasks"])}
    return [
        {
            **start,
            "metric": metric,
            **{key: interval(**found) for key, found in group[metric].items()},
        }
        for metric in METRICS
        if metric in group
    ]


def interval(value: float, low: float | None, high: float | None, method: str | None = None) -> str:
    """A number and its interval, if it has one, with its name as text."""
    known = None if low is None or high is None else with_width(low, high)
    ends = "-" if known is None else f"{known[0]:.3g}, {known[1]:.3g}"
    return " ".join(filter(None, (f"{value:.3g}", f"[{ends}]", method)))


if __name__ == "__main__":
    main(score, config_name="evaluate")
