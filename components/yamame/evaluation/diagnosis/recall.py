"""Recall density: how much decisions depend on each timestep of their past.

A timestep is replaced by the same timestep of another episode: its observation, action and reward.
The effect on a later decision is the change, in nats, of the log-probability of the action that was
chosen. Nothing else of the episode changes.

Gradients (recall density in "POPGym Arcade", arXiv 2503.01450) cost a backward pass per decision
and vanish when a policy is certain. A replacement costs a forward pass and measures the timestep's
effect directly (interchange interventions, arXiv 2106.02997).
"""

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from yamame.agent import InContextAgent
from yamame.checks import PositiveInt, check_bounds, require
from yamame.evaluation.diagnosis.episodes import contexts_of


@dataclass(frozen=True)
class RecallCurve:
    """Effect of timesteps on later decisions.

    Attributes:
        lags: ``[K]`` int64, ascending: number of steps between a timestep and the decision; 0 is
            the current timestep.
        effect: ``[K]`` float64, nats, the mean over the decisions that have such a timestep.
        first: Share of an episode's first timestep in the total effect on the decisions after it,
            in [0, 1].
    """

    lags: Tensor
    effect: Tensor
    first: float

    @property
    def density(self) -> Tensor:
        """Effect ``[K]`` as shares that add up to 1; zeros if there is no effect at all."""
        return self.effect / self.effect.sum().clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def past(self) -> float:
        """Share of all timesteps before the current one: 0 without memory."""
        return float(self.density[self.lags > 0].sum())


@torch.no_grad()
@check_bounds
def recall_density(
    agent: InContextAgent,
    episodes: TensorDict,
    *,
    gamma_index: int = -1,
    most_steps: PositiveInt = 256,
) -> tuple[RecallCurve, RecallCurve]:
    """Measure the effect of the timesteps of recorded episodes by replacing one after the other.

    Args:
        agent: In evaluation mode.
        episodes: ``[E, T]`` of at least two episodes, from `record_episodes`.
        gamma_index: Index of the agent's policy that decides.
        most_steps: Largest number of timesteps that are replaced. In longer episodes these are the
            first and others at equal distances.

    Returns:
        The curve of all decisions, and that of the last decision of every episode.

    Raises:
        ArgumentError: There is only one episode, or a number is not positive.
    """
    require("recall_density", "episodes", len(episodes), len(episodes) > 1, "be at least two")
    features = episodes["features"]
    mask = episodes["mask"].squeeze(-1)
    num_steps = mask.shape[1]
    lengths = mask.sum(1)
    is_last = torch.arange(num_steps, device=mask.device) == lengths.unsqueeze(1) - 1

    num_replaced = min(num_steps, most_steps)
    steps = torch.linspace(0, num_steps - 1, num_replaced).round().long().tolist()
    all_decisions = _Effects(num_steps, len(steps))
    last_decisions = _Effects(num_steps, len(steps))
    before = _log_probs(agent, episodes, features, gamma_index)
    for step in steps:
        num_running = int((lengths > step).sum())  # the longest episodes come first
        if num_running < 2:
            break
        replaced = features.clone()
        # A timestep of another episode, not zeros, is one that the encoder knows from training.
        replaced[:num_running, step] = features[:num_running, step].roll(1, 0)
        after = _log_probs(agent, episodes, replaced, gamma_index)
        effect = (after - before).abs().double()[:num_running]
        all_decisions.add(step, effect, mask[:num_running])
        last_decisions.add(step, effect, is_last[:num_running])
    return all_decisions.curve(), last_decisions.curve()


def _log_probs(
    agent: InContextAgent, episodes: TensorDict, features: Tensor, gamma_index: int
) -> Tensor:
    """Compute log-probabilities ``[E, T]`` of the recorded actions, given other encodings."""
    contexts = contexts_of(agent, episodes, features)
    params = agent.actor(contexts.float())[..., gamma_index, :]
    distribution = agent.action_space.distribution(params, episodes.get("action_mask", None))
    return distribution.log_prob(episodes["action"])


class _Effects:
    """Sums of the effects of replaced timesteps on some of the decisions.

    Args:
        num_steps: Timesteps of the longest episode.
        num_replaced: Number of them that are replaced.
    """

    def __init__(self, num_steps: int, num_replaced: int) -> None:
        self.total = torch.zeros(num_steps, dtype=torch.float64)
        self.count = torch.zeros(num_steps, dtype=torch.int64)
        self.first = 0.0
        self.others = 0.0
        # A replaced timestep also stands for its neighbours. Only the first one does not.
        self.weight = (num_steps - 1) / max(num_replaced - 1, 1)

    def add(self, step: int, effect: Tensor, counts: Tensor) -> None:
        """Add the effect of replacing a timestep.

        Args:
            step: Timestep.
            effect: ``[N, T]``, on each decision. Decisions before the timestep are ignored.
            counts: ``[N, T]`` bool, the decisions that count.
        """
        counted = torch.where(counts, effect, 0.0)
        reached = counted[:, step:].sum(0).cpu()
        self.total[: len(reached)] += reached
        self.count[: len(reached)] += counts[:, step:].sum(0).cpu()
        if step == 0:
            self.first = float(reached[1:].sum())
        else:
            self.others += self.weight * float(reached.sum())

    def curve(self) -> RecallCurve:
        """Return the mean effects."""
        lags = self.count.nonzero().squeeze(-1)
        effect = self.total[lags] / self.count[lags]
        total = self.first + self.others
        first = self.first / total if total else 0.0
        return RecallCurve(lags, effect, first)
