"""Results of an evaluation, per episode, and their summary."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from yamame.evaluation.intervals import clustered_mean_interval, clustered_share_interval


@dataclass(frozen=True)
class EvaluationResult:
    """Results of E episodes, each played to its end; all tensors are on the CPU.

    Attributes:
        returns: ``[E]`` float64, sum of raw rewards over the whole episode, all its trials.
        lengths: ``[E]`` int64, transitions.
        finished: ``[E]`` bool, False if the step limit cut the episode or the environment failed.
        trial_returns: ``[E, max_trials]`` float64, sum of rewards within each trial, NaN for
            trials that an episode did not reach.
        success: ``[E]`` bool, whether success was reported at any step, which repeated trials do
            for the last completed one; None if the environment does not report it.
        num_goals: ``[E]`` int64, goals of the instruction; None without instructions.
        tasks: ``[E]`` int64, hashes of the tasks, equal for episodes of one task; None if they are
            unknown.
        plays_all_tasks: Whether these are all tasks of the environment, not a sample of them.
    """

    returns: Tensor
    lengths: Tensor
    finished: Tensor
    trial_returns: Tensor
    success: Tensor | None = None
    num_goals: Tensor | None = None
    tasks: Tensor | None = None
    plays_all_tasks: bool = False

    @property
    def num_tasks(self) -> int | None:
        """Number of different tasks; None if they are unknown."""
        return None if self.tasks is None else len(self.tasks.unique())

    @property
    def clusters(self) -> Tensor | None:
        """Clusters ``[E]`` of `clustered_mean_interval`: the tasks.

        None, and so each episode by itself, if the tasks are unknown or all that there are.
        """
        return None if self.plays_all_tasks else self.tasks

    @property
    def scores(self) -> Tensor:
        """Score ``[E]`` float64 of each episode: success, or the return if it is not reported."""
        values = self.returns if self.success is None else self.success
        return values.double()

    def task_scores(self) -> Tensor:
        """Return the mean score of each task, float64, in the order of the tasks' hashes.

        Results of the same episodes have the same order. Episodes stand for tasks, in their own
        order, if no task was played twice, if all were of one task, or without `clusters`.
        """
        if self.clusters is None:
            return self.scores
        tasks, index = self.clusters.unique(return_inverse=True)
        if len(tasks) in (1, len(index)):
            return self.scores
        # A task that was drawn more often than others does not count more.
        sums = torch.zeros(len(tasks), dtype=torch.float64).index_add_(0, index, self.scores)
        return sums / index.bincount()

    def summary(self, *, confidence: float = 0.95) -> dict[str, float]:
        """Return metrics: means, with Wilson's interval for success and Student's for the return.

        If tasks are known and some were played more than once, the intervals take tasks as the
        unit, not episodes (`clustered_share_interval`, `clustered_mean_interval`).

        Keys: ``num_episodes``; ``num_tasks`` if known; ``intervals_over_tasks``, 1 if tasks are the
        unit and else absent; ``finished`` (a share), ``length_mean``, ``return_mean|low|high``;
        with several trials ``return_mean_trial_<i>`` counted from 0; ``success_mean|low|high`` and
        ``success_mean_<k>_goals`` if known.

        Args:
            confidence: Coverage of both intervals, in (0, 1).
        """
        num_episodes = self.returns.numel()
        metrics = {
            "num_episodes": float(num_episodes),
            "finished": float(self.finished.double().mean()),
            "length_mean": float(self.lengths.double().mean()),
            "return_mean": float(self.returns.mean()),
        }
        if self.num_tasks is not None:
            metrics["num_tasks"] = float(self.num_tasks)
            if not self.plays_all_tasks and 1 < self.num_tasks < num_episodes:
                metrics["intervals_over_tasks"] = 1.0
        low, high = clustered_mean_interval(self.returns, self.clusters, confidence=confidence)
        metrics["return_low"] = low
        metrics["return_high"] = high

        trials = self.common_trials()
        if trials.shape[1] > 1:
            for index, mean in enumerate(trials.mean(0).tolist()):
                metrics[f"return_mean_trial_{index}"] = mean

        if self.success is None:
            return metrics
        metrics["success_mean"] = int(self.success.sum()) / num_episodes
        low, high = clustered_share_interval(self.success, self.clusters, confidence=confidence)
        metrics["success_low"] = low
        metrics["success_high"] = high
        if self.num_goals is not None:
            for count in self.num_goals.unique().tolist():
                group = self.success[self.num_goals == count]
                metrics[f"success_mean_{count}_goals"] = float(group.double().mean())
        return metrics

    def numbers(self, *, confidence: float = 0.95) -> dict[str, Any]:
        """Return the `summary`, and the `trial_curve` as ``trials``."""
        curve = self.trial_curve(confidence=confidence)
        return {**self.summary(confidence=confidence), "trials": curve}

    def episodes(self) -> dict[str, list[Any]]:
        """Return ``return`` and ``length`` of every episode, and ``success`` if it is known."""
        episodes = {"return": self.returns.tolist(), "length": self.lengths.tolist()}
        if self.success is not None:
            episodes["success"] = self.success.tolist()
        return episodes

    def common_trials(self) -> Tensor:
        """Return the returns ``[E, trials]`` of the trials that every episode completed."""
        is_common = (~self.trial_returns.isnan()).all(0)
        count = int(is_common.sum())
        if count < self.trial_returns.shape[1]:
            # Episodes differ in their number of trials. Later trials are those of quick episodes
            # only, and the end of the episode cut off the last trial of the slowest one.
            count = max(1, count - 1)
        return self.trial_returns[:, :count]

    def trial_curve(self, *, confidence: float = 0.95) -> dict[str, list[float]]:
        """Return the in-context learning curve: the return of each of the `common_trials`.

        Args:
            confidence: Coverage of the intervals, in (0, 1).

        Returns:
            ``mean``, ``low`` and ``high``, each with a number per trial.
        """
        curve: dict[str, list[float]] = {"mean": [], "low": [], "high": []}
        for returns in self.common_trials().unbind(1):
            low, high = clustered_mean_interval(returns, self.clusters, confidence=confidence)
            curve["mean"].append(float(returns.mean()))
            curve["low"].append(low)
            curve["high"].append(high)
        return curve


def described(num_episodes: int, num_tasks: int | None) -> str:
    """Format the numbers of episodes and tasks; tasks are left out if they are unknown.

    >>> described(256, 18), described(64, None), described(1, 1)
    ('256 episodes of 18 tasks', '64 episodes', '1 episode of 1 task')
    """
    episodes = f"{num_episodes} episode{'' if num_episodes == 1 else 's'}"
    if num_tasks is None:
        return episodes
    return f"{episodes} of {num_tasks} task{'' if num_tasks == 1 else 's'}"


def concatenate(results: list[EvaluationResult]) -> EvaluationResult:
    """Join results in order.

    Success, goals and tasks are kept if they are known of every result.
    """
    joined: dict[str, Any] = {}
    for name in ("returns", "lengths", "finished", "success", "num_goals", "tasks"):
        parts = [getattr(result, name) for result in results]
        is_known = all(part is not None for part in parts)
        joined[name] = torch.cat(parts) if is_known else None

    trials: list[Tensor] = []
    for result in results:
        trials.extend(result.trial_returns)
    return EvaluationResult(
        # NaN for trials that an episode did not reach.
        trial_returns=pad_sequence(trials, batch_first=True, padding_value=torch.nan),
        plays_all_tasks=all(result.plays_all_tasks for result in results),
        **joined,
    )
