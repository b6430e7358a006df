"""Runs of learners of other libraries on the tasks of a suite, under the rules of our own runs.

Environment, budget, held-out tasks and evaluations are those of a configuration of `train`, and so
is the count of CPU-seconds. A finished run is not repeated; an interrupted one starts again.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from yamame.baselines import Learner
from yamame.checks import UsageError, at_key, require_setting
from yamame.cli.names import file_name
from yamame.cli.nodes import instantiate, plain, select
from yamame.cli.sections import AnyConfig, Node
from yamame.evaluation import EvaluationResult
from yamame.files.atomic import make_folder, read_json, write_json
from yamame.runs.build import build_env
from yamame.runs.held_out import held_out_env, play_held_out
from yamame.runs.limits import with_minutes
from yamame.runs.schedules import NUM_EVALUATIONS, STEPS_PER_EVALUATION, reaches_part
from yamame.system.budget import Budget
from yamame.system.messages import print_stderr
from yamame.system.signals import exit_if_received
from yamame.tracking.costs import CostMeter
from yamame.training import GlobalRNGState

_UNSEEN = ("num_envs", "video_frames")
"""Settings of evaluations that do not change a result."""


class ComparedTask:
    """Task, seed and budget of a run, as a learner gets them (`yamame.baselines.LearningTask`).

    Args:
        cfg: Composed configuration of `train`. Its agent and its schedule are not used.
        exits: Closes the environments.

    Attributes:
        seed: Seed of the run.
        curve: Evaluations so far, as in ``summary.json`` of a run.
        is_over: Whether the budget is spent and the last evaluation made.
        env_steps, updates: Counts of the last call of `goes_on`.
        costs: CPU-seconds and wall-clock seconds.
    """

    def __init__(self, cfg: AnyConfig, exits: ExitStack) -> None:
        self.costs = CostMeter(is_part=True)  # first, because it measures from here on
        self._cfg = with_minutes(cfg)
        self._exits = exits
        with at_key("budget"):
            limits = plain(self._cfg)["budget"]
            self._budget = Budget(**limits, cpu_clock=self.costs.recent_cpu_s)
        self._held_out = self._closing(held_out_env(self._cfg))
        self.seed = int(cfg.seed)
        self.curve: list[dict[str, float]] = []
        self.is_over = False
        self.env_steps = 0
        self.updates = 0
        self._has_begun = False
        # Share of the budget and environment steps at the last evaluation, and the steps it took.
        self._evaluated_share = 0.0
        self._evaluated_at = 0
        self._evaluation_steps = 0
        self._evaluation_share = 0.0

    def _closing(self, env: EnvBase) -> EnvBase:
        self._exits.callback(lambda: None if env.is_closed else env.close())
        return env

    def build_env(self, num_envs: int) -> EnvBase:
        """Build the training environment."""
        return self._closing(build_env(self._cfg, num_envs=num_envs, seed=self.seed))

    def goes_on(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        *,
        env_steps: int,
        updates: int,
    ) -> bool:
        """Evaluate if it is due, and return whether budget is left."""
        exit_if_received()
        if not self._has_begun:
            self._budget.start()
            self._has_begun = True
        self.env_steps = env_steps
        self.updates = updates
        if self.is_over:
            return False
        self.is_over = self._budget.ended(env_steps=env_steps, updates=updates) is not None
        if self.is_over or self._is_due():
            self._evaluate(policy)
        return not self.is_over

    def _share(self) -> float:
        return self._budget.fraction(env_steps=self.env_steps, updates=self.updates)

    def _is_due(self) -> bool:
        """Return whether to evaluate, by the rule of `yamame.runs.schedules`."""
        interval = self._cfg.evaluation.interval
        since = self.env_steps - self._evaluated_at
        if interval is not None:
            return bool(since >= interval)
        share = self._share()
        if not reaches_part(self._evaluated_share, share, NUM_EVALUATIONS):
            return False
        if share - self._evaluated_share < STEPS_PER_EVALUATION * self._evaluation_share:
            return False
        return since > STEPS_PER_EVALUATION * self._evaluation_steps

    def _evaluate(self, policy: Callable[[TensorDictBase], TensorDictBase]) -> None:
        in_budget = self._cfg.evaluation.in_budget
        before = self._share()
        with nullcontext() if in_budget else self._budget.paused():
            result: EvaluationResult = play_held_out(self._cfg, policy, self._held_out)
        self.curve.append({"env_steps": self.env_steps, **result.summary()})
        self._evaluated_at = self.env_steps
        self._evaluated_share = self._share()
        self._evaluation_share = self._evaluated_share - before
        self._evaluation_steps = int(result.lengths.sum())


def compared_run(cfg: AnyConfig, name: str, node: Node) -> dict[str, Any]:
    """Let a learner learn a task, or return what it did before.

    Args:
        cfg: Composed configuration of `train`, with task, seed, budget and evaluations.
        name: Name of the learner.
        node: Node of the learner, whose class is a `yamame.baselines.Learner`.

    Returns:
        ``settings``; ``curve``: evaluations; ``env_steps``, ``updates``, ``cpu_s``, ``wall_s``. It
        is the content of ``comparison.json`` in a folder of ``run.root`` that is named after the
        settings.

    Raises:
        UsageError: The learner cannot be built, or it has ended before its budget.
    """
    settings = _settings_of(cfg, node)
    text = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    folder = Path(cfg.run.root) / file_name([name], end=f"-{digest}-seed={cfg.seed}")
    path = folder / "comparison.json"
    with suppress(FileNotFoundError, UsageError):  # never written, or damaged
        known = read_json(path)
        if known.get("settings") == settings:
            return known

    print_stderr(f"{folder.name}: starts")
    generators = GlobalRNGState()
    former = generators.state_dict()
    try:
        with ExitStack() as exits:
            task = ComparedTask(cfg, exits)
            build_learner(node).learn(task)
    finally:
        generators.load_state_dict(former)  # a learner may seed them
    if not task.is_over:
        message = "learn() must continue until goes_on() returns False, got an earlier end"
        raise UsageError(message, key=f"compare.{name}")

    counts = {"env_steps": task.env_steps, "updates": task.updates}
    report = {"settings": settings, "curve": task.curve, **counts, **task.costs.state_dict()}
    make_folder(folder)
    write_json(path, report)
    return report


def build_learner(node: Node) -> Learner:
    """Build a learner of ``compare``.

    Raises:
        UsageError: It cannot be built, or has no method ``learn``.
    """
    learner: Learner = instantiate(node)
    can_learn = callable(getattr(learner, "learn", None))
    target = node["_target_"]
    require_setting("compare", target, can_learn, "be a class with the method learn(task)")
    return learner


def _settings_of(cfg: AnyConfig, node: Node) -> dict[str, Any]:
    """Return all settings that a result depends on."""
    config = plain(with_minutes(cfg))
    env = {key: value for key, value in config["env"].items() if key != "workers"}
    evaluation = config["evaluation"]
    evaluation = {key: value for key, value in evaluation.items() if key not in _UNSEEN}
    return {
        "learner": plain(node),
        "env": env,
        "trials": plain(select(cfg, "trials")),
        "budget": config["budget"],
        "evaluation": evaluation,
        "seed": config["seed"],
    }
