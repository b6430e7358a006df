"""Plays trained runs on held-out tasks: return, success and the in-context curve, with intervals.

    python recipes/evaluate.py run=runs/mine [key=value]      # --help lists the keys
    python recipes/evaluate.py run=runs/mine env.size=13 context_length=2048 control=true
    python recipes/evaluate.py run=[runs/a,runs/b] against=[runs/c,runs/d]

A run is a directory, a checkpoint file or the id of an MLflow run. All runs play the same roster of tasks, that of
their training's evaluations unless settings say otherwise. Results go to <output>/evaluation.json, once everything
was played; the same command writes the same file. Several runs are summed up over seeds and tasks: a run's score is
its mean over the roster, and runs with the same environment are runs of one task.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig
from yamame import runs
from yamame.agent import InContextAgent
from yamame.evaluation import EvaluationResult, evaluate, play_episode
from yamame.runs.arguments import ease_command_line
from yamame.runs.atomic import atomic_writer
from yamame.runs.attention_picture import draw_attention
from yamame.runs.directory import check_folder
from yamame.runs.hydra import main, objective, plain
from yamame.runs.terminal import print_columns
from yamame.runs.trained import Trained, load_trained
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.attention_maps import attention_maps

if TYPE_CHECKING:
    from yamame.runs.statistics import Array, Estimate

OVERRIDABLE = ("num_episodes", "num_envs", "seed", "greedy", "max_steps")
METRICS = ("success", "return")


def evaluate_runs(cfg: DictConfig) -> float:
    """The recipe: the mean score of the runs, success or the return where an environment knows no success."""
    check(cfg)
    asked = plain(cfg)
    groups = {name: [load(cfg, source) for source in listed(asked[name])] for name in ("run", "against")}
    if not groups["run"]:
        raise runs.UsageError("run must name a run, got none")
    check_folder(output_of(cfg, groups["run"]), "output")
    played = {name: [Evaluation(cfg, trained) for trained in group] for name, group in groups.items()}
    try:
        check_tasks(groups)
        for evaluation in (*played["run"], *played["against"]):
            evaluation.check()
        report = {
            "settings": asked,
            **{name: [evaluation.play() for evaluation in group] for name, group in played.items()},
        }
        if len(groups["run"]) + len(groups["against"]) > 1:
            report |= compare(cfg, report)
    except ValueError as error:
        raise runs.UsageError(str(error)) from error
    write(cfg, output_of(cfg, groups["run"]), report, played["run"] + played["against"])
    return objective(sum(acting(run)[metric_of(run)] for run in report["run"]) / len(report["run"]))


def check(cfg: DictConfig) -> None:
    """Refuses settings that exclude each other."""
    if cfg.gammas not in (None, "all"):
        raise runs.UsageError(f"gammas must be all or null, got {cfg.gammas}")
    if cfg.gamma is not None and cfg.gamma_index is not None:
        raise runs.UsageError(
            f"gamma={cfg.gamma} and gamma_index={cfg.gamma_index} must not be given together"
        )
    if not 0.0 < cfg.confidence < 1.0:
        raise runs.UsageError(f"confidence must be in (0, 1), got {cfg.confidence}")
    if cfg.attention_steps < 1:
        raise runs.UsageError(f"attention_steps must be positive, got {cfg.attention_steps}")


def check_tasks(groups: dict[str, list[Trained]]) -> None:
    """Refuses runs that cannot be summed up or compared.

    Raises:
        ValueError: A task has fewer runs than another, or the groups have other tasks.
    """
    if sum(map(len, groups.values())) == 1:
        return
    # Imported here, as below: one run needs none of it, and it costs seconds.
    from yamame.runs.statistics import score_table

    tasks = [[trained.task for trained in group] for group in groups.values() if group]
    names = [score_table(group, [0.0] * len(group))[0] for group in tasks]
    if len({tuple(sorted(group)) for group in names}) > 1:
        raise runs.UsageError(f"run and against must have the same tasks, got {names[0]} and {names[1]}")


def listed(value: Any) -> list[str]:
    """One name or several."""
    return [] if value is None else [str(item) for item in (value if isinstance(value, list) else [value])]


def load(cfg: DictConfig, source: str) -> Trained:
    """A run with what the command line changes in it."""
    return load_trained(
        source,
        checkpoint=cfg.checkpoint,
        tracking_uri=cfg.tracking_uri,
        device=cfg.device,
        env=plain(cfg.env),
        trials=plain(cfg.trials),
        context_length=cfg.context_length,
    )


class Evaluation:
    """One run on the roster."""

    def __init__(self, cfg: DictConfig, trained: Trained) -> None:
        self.cfg, self.trained = cfg, trained
        given = {name: cfg[name] for name in OVERRIDABLE if cfg[name] is not None}
        self.setting = {**{name: trained.config.evaluation[name] for name in OVERRIDABLE}, **given}
        self.gamma_index = self._gamma_index()
        self.maps: torch.Tensor | None = None

    def _gamma_index(self) -> int:
        if self.cfg.gamma is not None:
            return self.trained.gamma_index(self.cfg.gamma)
        count, index = len(self.trained.gammas), self.cfg.gamma_index
        index = -1 if index is None else index
        if not -count <= index < count:
            raise runs.UsageError(f"gamma_index must be in {-count}..{count - 1}, got {index}")
        return index % count

    def check(self) -> None:
        """Refuses, before anything is played, weights that do not fit and pictures that cannot be drawn."""
        env = self.trained.build_env(num_envs=1, seed=self.setting["seed"])
        try:
            encoder = self.trained.build_agent(env).trajectory_encoder
        finally:
            env.close()
        if self.cfg.attention and not isinstance(encoder, TransformerEncoder):
            name = type(encoder).__name__
            raise runs.UsageError(
                f"attention=true needs a TransformerEncoder, {self.trained.source} has a {name}"
            )

    def play(self) -> dict[str, Any]:
        """Plays the roster with one or all discount factors."""
        episodes = self.setting["num_episodes"]
        rows = min(self.setting["num_envs"] or episodes, episodes)
        env = self.trained.build_env(num_envs=rows, seed=self.setting["seed"])
        try:
            agent = self.trained.build_agent(env)
            indices = range(len(agent.gammas)) if self.cfg.gammas == "all" else [self.gamma_index]
            outcomes = [self._outcome(agent, env, index) for index in indices]
        finally:
            env.close()
        if self.cfg.attention:
            self.maps = self._attention(agent)
        return {
            "source": self.trained.source,
            "step": self.trained.step,
            "seed": self.trained.config.seed,
            "task": self.trained.task,
            "evaluation": self.setting,
            "gammas": outcomes,
        }

    def _outcome(self, agent: InContextAgent, env: Any, index: int) -> dict[str, Any]:
        policy = agent.policy(gamma_index=index)
        names = ("num_episodes", "greedy", "max_steps", "seed")
        options = {name: self.setting[name] for name in names}
        result = evaluate(policy, env, **options)
        outcome = {"gamma": agent.gammas[index], "acting": index == self.gamma_index, **self._told(result)}
        outcome["episodes"] = {"return": result.returns.tolist(), "length": result.lengths.tolist()}
        if result.success is not None:
            outcome["episodes"]["success"] = result.success.tolist()
        if self.cfg.control:
            outcome["control"] = self._told(evaluate(policy, env, memory_wiped=True, **options))
        return outcome

    def _told(self, result: EvaluationResult) -> dict[str, Any]:
        confidence = self.cfg.confidence
        return {**result.summary(confidence=confidence), "trials": result.trial_curve(confidence=confidence)}

    def _attention(self, agent: InContextAgent) -> torch.Tensor:
        """Where the encoder looks in the first episode of the roster: ``[layers, H, L, L]``."""
        encoder = agent.trajectory_encoder
        assert isinstance(encoder, TransformerEncoder)
        limits = (self.cfg.attention_steps, self.setting["max_steps"], encoder.context_length)
        env = self.trained.build_env(num_envs=1, seed=self.setting["seed"])
        try:
            episode = play_episode(
                agent.policy(gamma_index=self.gamma_index),
                env,
                max_steps=min(limit for limit in limits if limit is not None),
                greedy=self.setting["greedy"],
                seed=self.setting["seed"],
            )
        finally:
            env.close()
        with torch.no_grad():
            return attention_maps(encoder, agent.timestep_encoder(episode))[:, 0].cpu()


def acting(run: dict[str, Any]) -> dict[str, Any]:
    """What came out with the discount factor that acts."""
    return next(outcome for outcome in run["gammas"] if outcome["acting"])


def metric_of(run: dict[str, Any]) -> str:
    """The score of a run: success where the environment knows it."""
    return "success_mean" if "success_mean" in acting(run) else "return_mean"


def compare(cfg: DictConfig, report: dict[str, Any]) -> dict[str, Any]:
    """What several runs say together, per metric that all of them know."""
    from yamame.runs.statistics import aggregate, probability_of_improvement, score_table

    groups = {name: report[name] for name in ("run", "against") if report[name]}
    found: dict[str, Any] = {"aggregate": {}, "improvement": {}}
    for metric in METRICS:
        if not all(f"{metric}_mean" in acting(run) for group in groups.values() for run in group):
            continue
        tables = {}
        for name, group in groups.items():
            scores = [acting(run)[f"{metric}_mean"] for run in group]
            tasks, tables[name] = score_table([run["task"] for run in group], scores)
            found["aggregate"].setdefault(name, {"tasks": tasks, "num_runs": len(tables[name])})[metric] = {
                statistic: known(
                    aggregate(tables[name], statistic=statistic, confidence=cfg.confidence), tables[name]
                )
                for statistic in ("iqm", "mean", "median")
            }
        if len(groups) > 1:
            first, second = (found["aggregate"][name]["tasks"] for name in ("run", "against"))
            columns = [second.index(task) for task in first]
            pair = tables["run"], tables["against"][:, columns]
            better = probability_of_improvement(*pair, confidence=cfg.confidence)
            found["improvement"][metric] = known(better, *pair)
    return found


def known(estimate: "Estimate", *tables: "Array") -> dict[str, float | None]:
    """An estimate whose interval is None where a task has one run: this says nothing of other seeds."""
    several = all(len(table) > 1 for table in tables)
    return estimate._asdict() if several else {"value": estimate.value, "low": None, "high": None}


def output_of(cfg: DictConfig, trained: list[Trained]) -> Path:
    """The directory of the results."""
    if cfg.output is not None:
        return Path(cfg.output)
    source = Path(trained[0].source)
    return source / "evaluation" if len(trained) == 1 and source.is_dir() else Path("runs/evaluation")


def write(cfg: DictConfig, path: Path, report: dict[str, Any], played: list[Evaluation]) -> None:
    """Writes numbers and pictures and shows the table; the path of the numbers is the last line."""
    path.mkdir(parents=True, exist_ok=True)
    for picture in (path / "in_context.png", path / "attention.png", *path.glob("attention-[0-9]*.png")):
        picture.unlink(missing_ok=True)
    curves = in_context_curves(report["run"] + report["against"])
    if curves:
        runs.learning_curve(path / "in_context.png", curves, x_label="trial", y_label="return")
    for index, evaluation in enumerate(played):
        if evaluation.maps is not None:
            name = f"attention-{index}.png" if len(played) > 1 else "attention.png"
            draw_attention(path / name, evaluation.maps, title=evaluation.trained.source)
    with atomic_writer(path / "evaluation.json") as file:
        file.write((json.dumps(report, indent=2, allow_nan=False) + "\n").encode())
    print_columns(
        "held-out tasks", [line for run in report["run"] + report["against"] for line in lines(run)]
    )
    if "aggregate" in report:
        print_columns("over runs and tasks", summed_up(report))
        better = [
            {"metric": metric, "probability": interval(estimate, centre="value")}
            for metric, estimate in report["improvement"].items()
        ]
        if better:
            print_columns("how likely a run is better than one of against", better)
    print(path / "evaluation.json")


def in_context_curves(played: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """The return of every trial with its interval, of runs whose episodes have several trials."""
    curves = {}
    names = [Path(run["source"]).name for run in played]
    for index, (run, name) in enumerate(zip(played, names, strict=True)):
        name = name if names.count(name) == 1 else f"{index} {name}"
        for suffix, outcome in (("", acting(run)), (", memory wiped", acting(run).get("control"))):
            trials = outcome and outcome["trials"]
            if trials and len(trials["mean"]) > 1:
                numbers = [float(number + 1) for number in range(len(trials["mean"]))]
                curves[name + suffix] = [numbers, trials["mean"], trials["low"], trials["high"]]
    return curves


def lines(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a run in the table."""
    shown = []
    for outcome in run["gammas"]:
        for kind, numbers in (("agent", outcome), ("memory wiped", outcome.get("control"))):
            if numbers:
                line = {"run": run["source"], "gamma": outcome["gamma"], "who": kind}
                known = [metric for metric in METRICS if f"{metric}_mean" in numbers]
                line |= {metric: interval(numbers, f"{metric}_") for metric in known}
                means = numbers["trials"]["mean"]
                if len(means) > 1:
                    line["return per trial"] = " ".join(f"{mean:.3g}" for mean in means)
                shown.append(
                    {**line, "length": numbers["length_mean"], "episodes": int(numbers["num_episodes"])}
                )
    return shown


def interval(numbers: dict[str, Any], prefix: str = "", centre: str = "mean") -> str:
    """A number and its interval, if it has one, as text."""
    value, low, high = (numbers[f"{prefix}{name}"] for name in (centre, "low", "high"))
    if low is None or high is None:
        return f"{value:.3g} [-]"
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def summed_up(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of the table over runs."""
    shown = []
    for name, told in report["aggregate"].items():
        for metric in (metric for metric in METRICS if metric in told):
            line = {"group": name, "runs": told["num_runs"], "tasks": len(told["tasks"]), "metric": metric}
            shown.append(line | {key: interval(told[metric][key], centre="value") for key in told[metric]})
    return shown


def command_line() -> None:
    """Runs the recipe with the arguments of this process."""
    ease_command_line(texts=("run", "against", "output"), below=("env", "trials"))
    main(evaluate_runs, config_name="evaluate")


if __name__ == "__main__":
    command_line()
