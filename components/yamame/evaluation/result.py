"""What an evaluation brought, per episode, and its summary."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from yamame.evaluation.intervals import clustered_mean_interval, clustered_share_interval


@dataclass(frozen=True)
class EvaluationResult:
    """Outcome of E episodes, each played to its end; all tensors are on the CPU.

    Attributes:
        returns: ``[E]`` float64, sum of raw rewards over the whole episode, all its trials.
        lengths: ``[E]`` int64, transitions.
        finished: ``[E]`` bool, False where the step limit cut the episode or the environment
            failed.
        trial_returns: ``[E, max_trials]`` float64, sum of rewards within each trial, NaN where an
            episode had fewer.
        success: ``[E]`` bool, whether success was reported at any step; None if the environment
            does not tell.
        num_goals: ``[E]`` int64, goals of the instruction; None without instructions.
        tasks: ``[E]`` int64, hashes of the tasks, equal for episodes of one task; None if they are
            unknown.
        plays_all_tasks: Whether these are all tasks that the environment has, so that they are no
            sample of others.
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
        """Number of different tasks; None if the environment does not tell."""
        return None if self.tasks is None else len(self.tasks.unique())

    @property
    def clusters(self) -> Tensor | None:
        """Units of intervals for `clustered_mean_interval`: the tasks; None where episodes are the
        units.
        """
        return None if self.plays_all_tasks else self.tasks

    def summary(self, *, confidence: float = 0.95) -> dict[str, float]:
        """Flat metrics: means, with Wilson's interval for success and Student's for the return.

        Where tasks are known and are played more than once, the intervals take tasks as the unit,
        not episodes (`clustered_share_interval`, `clustered_mean_interval`). They are over episodes
        where tasks are unknown, and where the tasks are all that the environment has.

        Keys: ``num_episodes``; ``num_tasks`` where known; ``intervals_over_tasks``, 1 where tasks
        are the unit and else absent; ``finished`` (a share), ``length_mean``,
        ``return_mean|low|high``; with several trials ``return_mean_trial_<i>`` counted from 0;
        ``success_mean|low|high`` and ``success_mean_<k>_goals`` where known.

        Args:
            confidence: Coverage of both intervals, in (0, 1).
        """
        metrics = {
            "num_episodes": float(self.returns.numel()),
            "finished": float(self.finished.double().mean()),
            "length_mean": float(self.lengths.double().mean()),
            "return_mean": float(self.returns.mean()),
        }
        if self.num_tasks is not None:
            metrics["num_tasks"] = float(self.num_tasks)
            if not self.plays_all_tasks and 1 < self.num_tasks < self.returns.numel():
                metrics["intervals_over_tasks"] = 1.0
        interval = clustered_mean_interval(self.returns, self.clusters, confidence=confidence)
        metrics["return_low"], metrics["return_high"] = interval
        trials = self.common_trials()
        if trials.shape[1] > 1:
            metrics |= {
                f"return_mean_trial_{i}": value for i, value in enumerate(trials.mean(0).tolist())
            }
        if self.success is None:
            return metrics
        metrics["success_mean"] = int(self.success.sum()) / self.success.numel()
        interval = clustered_share_interval(self.success, self.clusters, confidence=confidence)
        metrics["success_low"], metrics["success_high"] = interval
        if self.num_goals is not None:
            for count in self.num_goals.unique().tolist():
                group = self.success[self.num_goals == count]
                metrics[f"success_mean_{count}_goals"] = float(group.double().mean())
        return metrics

    def common_trials(self) -> Tensor:
        """Returns ``[E, trials]`` of the trials that every episode played out, which compare like
        with like.

        Where episodes differ in their number of trials, the late ones are those of the quick
        episodes only, and the last one of the slowest was cut off by the end of the episode: these
        are left out.
        """
        had = int((~self.trial_returns.isnan()).all(0).sum())
        return self.trial_returns[
            :, : had if had == self.trial_returns.shape[1] else max(1, had - 1)
        ]

    def trial_curve(self, *, confidence: float = 0.95) -> dict[str, list[float]]:
        """The in-context learning curve: the return of each of the `common_trials`.

        Args:
            confidence: Coverage of the intervals, in (0, 1).

        Returns:
            ``mean``, ``low`` and ``high``, a number per trial each.
        """
        trials = self.common_trials().unbind(1)
        intervals = [
            clustered_mean_interval(trial, self.clusters, confidence=confidence) for trial in trials
        ]
        low, high = zip(*intervals, strict=True)
        return {
            "mean": [float(trial.mean()) for trial in trials],
            "low": list(low),
            "high": list(high),
        }


def described(num_episodes: int, num_tasks: int | None) -> str:
    """Numbers of episodes and tasks in words; the tasks are left out where they are unknown.

    >>> described(256, 18), described(64, None), described(1, 1)
    ('256 episodes of 18 tasks', '64 episodes', '1 episode of 1 task')
    """
    text = f"{num_episodes} episode{'s' * (num_episodes != 1)}"
    return text if num_tasks is None else f"{text} of {num_tasks} task{'s' * (num_tasks != 1)}"


def concatenate(results: list[EvaluationResult]) -> EvaluationResult:
    """One result of the episodes of several, in order."""
    episodes = [episode for result in results for episode in result.trial_returns]
    success = [result.success for result in results if result.success is not None]
    tasks = [result.tasks for result in results if result.tasks is not None]
    num_goals = [result.num_goals for result in results if result.num_goals is not None]
    return EvaluationResult(
        returns=torch.cat([result.returns for result in results]),
        lengths=torch.cat([result.lengths for result in results]),
        finished=torch.cat([result.finished for result in results]),
        trial_returns=pad_sequence(episodes, batch_first=True, padding_value=torch.nan),
        success=torch.cat(success) if success else None,
        num_goals=torch.cat(num_goals) if num_goals else None,
        tasks=torch.cat(tasks) if len(tasks) == len(results) else None,
        plays_all_tasks=all(result.plays_all_tasks for result in results),
    )
