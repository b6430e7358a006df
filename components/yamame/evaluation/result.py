"""What an evaluation brought, per episode, and its summary."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from yamame.evaluation.intervals import mean_interval, wilson_interval


@dataclass(frozen=True)
class EvaluationResult:
    """Outcome of E episodes, each played to its end; all tensors are on the CPU.

    Attributes:
        returns: ``[E]`` float64, sum of raw rewards over the whole episode, all its trials.
        lengths: ``[E]`` int64, transitions.
        finished: ``[E]`` bool, False where the step limit cut the episode or the environment failed.
        trial_returns: ``[E, max_trials]`` float64, sum of rewards within each trial, NaN where an episode had
            fewer.
        success: ``[E]`` bool, whether success was reported at any step; None if the environment does not
            tell.
        num_goals: ``[E]`` int64, goals of the instruction; None without instructions.
    """

    returns: Tensor
    lengths: Tensor
    finished: Tensor
    trial_returns: Tensor
    success: Tensor | None = None
    num_goals: Tensor | None = None

    def summary(self, *, confidence: float = 0.95) -> dict[str, float]:
        """Flat metrics: means, with Wilson's interval for success and that of `mean_interval` for the return.

        Keys: ``num_episodes``, ``finished`` (a share), ``length_mean``, ``return_mean|low|high``; with
        several trials ``return_mean_trial_<i>`` counted from 0; ``success_mean|low|high`` and
        ``success_mean_<k>_goals`` where known.

        Args:
            confidence: Coverage of both intervals, in (0, 1).
        """
        metrics = {
            "num_episodes": float(self.returns.numel()),
            "finished": float(self.finished.double().mean()),
            "length_mean": float(self.lengths.double().mean()),
            "return_mean": float(self.returns.mean()),
        }
        interval = mean_interval(self.returns, confidence=confidence)
        metrics["return_low"], metrics["return_high"] = interval
        trials = self.common_trials()
        if trials.shape[1] > 1:
            metrics |= {f"return_mean_trial_{i}": value for i, value in enumerate(trials.mean(0).tolist())}
        if self.success is None:
            return metrics
        successes, total = int(self.success.sum()), self.success.numel()
        metrics["success_mean"] = successes / total
        interval = wilson_interval(successes, total, confidence=confidence)
        metrics["success_low"], metrics["success_high"] = interval
        if self.num_goals is not None:
            for count in self.num_goals.unique().tolist():
                group = self.success[self.num_goals == count]
                metrics[f"success_mean_{count}_goals"] = float(group.double().mean())
        return metrics

    def common_trials(self) -> Tensor:
        """Returns ``[E, trials]`` of the trials that every episode played out, which compare like with like.

        Where episodes differ in their number of trials, the late ones are those of the quick episodes only, and the
        last one of the slowest was cut off by the end of the episode: these are left out.
        """
        had = int((~self.trial_returns.isnan()).all(0).sum())
        return self.trial_returns[:, : had if had == self.trial_returns.shape[1] else max(1, had - 1)]

    def trial_curve(self, *, confidence: float = 0.95) -> dict[str, list[float]]:
        """The in-context learning curve: the return of each of the `common_trials`.

        Args:
            confidence: Coverage of the intervals, in (0, 1).

        Returns:
            ``mean``, ``low`` and ``high``, a number per trial each.
        """
        trials = self.common_trials().unbind(1)
        low, high = zip(*(mean_interval(trial, confidence=confidence) for trial in trials), strict=True)
        return {"mean": [float(trial.mean()) for trial in trials], "low": list(low), "high": list(high)}


def concatenate(results: list[EvaluationResult]) -> EvaluationResult:
    """One result of the episodes of several, in order."""
    episodes = [episode for result in results for episode in result.trial_returns]
    success = [result.success for result in results if result.success is not None]
    num_goals = [result.num_goals for result in results if result.num_goals is not None]
    return EvaluationResult(
        returns=torch.cat([result.returns for result in results]),
        lengths=torch.cat([result.lengths for result in results]),
        finished=torch.cat([result.finished for result in results]),
        trial_returns=pad_sequence(episodes, batch_first=True, padding_value=torch.nan),
        success=torch.cat(success) if success else None,
        num_goals=torch.cat(num_goals) if num_goals else None,
    )
