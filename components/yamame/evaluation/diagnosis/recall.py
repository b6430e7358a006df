"""Recall density: how much decisions depend on each timestep of their past.

A timestep is replaced by the same timestep of another episode, all of what was seen, done and paid
there; the effect on a later decision is by how many nats the log-probability of the action changes
that the agent chose. Nothing else of the episode changes. Gradients (recall density in "POPGym
Arcade", arXiv 2503.01450) cost a backward pass per decision and vanish where a policy is sure of
itself, as a T-Maze's last decision is; a replacement costs a forward pass and measures what the
timestep is worth there. One of another episode, not of zeros, keeps what the encoder meets a
timestep that it knows (interchange interventions, arXiv 2106.02997).
"""

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from yamame.agent import InContextAgent
from yamame.checks import require, require_at_least
from yamame.evaluation.diagnosis.episodes import contexts_of


@dataclass(frozen=True)
class RecallCurve:
    """The effect of timesteps on decisions.

    Attributes:
        lags: ``[K]`` int64, ascending: how many steps before the decision a timestep lies; at 0 it
            is the present one.
        effect: ``[K]`` float64, nats, the mean over the decisions that have such a timestep.
        first: Share of an episode's first timestep in what decisions after it depend on, in [0, 1].
    """

    lags: Tensor
    effect: Tensor
    first: float

    @property
    def density(self) -> Tensor:
        """``[K]``, the effect as shares that add up to 1; zeros where no decision depends on
        anything.
        """
        return self.effect / self.effect.sum().clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def past(self) -> float:
        """Share of all timesteps before the present one: 0 without memory."""
        return float(self.density[self.lags > 0].sum())


@torch.no_grad()
def recall_density(
    agent: InContextAgent, episodes: TensorDict, *, gamma_index: int = -1, most_steps: int = 256
) -> tuple[RecallCurve, RecallCurve]:
    """Replaces the timesteps of recorded episodes one after the other.

    Args:
        agent: In evaluation mode.
        episodes: ``[E, T]`` of at least two episodes, from `record_episodes`.
        gamma_index: Which of the agent's policies decides.
        most_steps: Timesteps that are replaced, at most; of longer episodes the first and others at
            equal distances.

    Returns:
        The curve of all decisions, and that of the last decision of every episode.

    Raises:
        ValueError: If there is one episode alone, or a number is not positive.
    """
    require("recall_density", "episodes", len(episodes), len(episodes) > 1, "be at least two")
    require_at_least("recall_density", 1, most_steps=most_steps)
    features, mask = episodes["features"], episodes["mask"].squeeze(-1)
    num_steps, lengths = mask.shape[1], mask.sum(1)
    steps = torch.linspace(0, num_steps - 1, min(num_steps, most_steps)).round().long().tolist()
    at_end = torch.arange(num_steps, device=mask.device) == lengths.unsqueeze(1) - 1
    everywhere, end = _Effects(num_steps, len(steps)), _Effects(num_steps, len(steps))
    before = _log_probs(agent, episodes, features, gamma_index)
    for step in steps:
        num_alive = int((lengths > step).sum())  # the longest episodes come first
        if num_alive < 2:
            break
        replaced = features.clone()
        replaced[:num_alive, step] = features[:num_alive, step].roll(1, 0)
        effect = (
            (_log_probs(agent, episodes, replaced, gamma_index) - before).abs().double()[:num_alive]
        )
        everywhere.add(step, effect, mask[:num_alive])
        end.add(step, effect, at_end[:num_alive])
    return everywhere.curve(), end.curve()


def _log_probs(
    agent: InContextAgent, episodes: TensorDict, features: Tensor, gamma_index: int
) -> Tensor:
    """Log-probabilities ``[E, T]`` of what was done, had the encodings been these."""
    params = agent.actor(contexts_of(agent, episodes, features).float())[..., gamma_index, :]
    distribution = agent.action_space.distribution(params, episodes.get("action_mask", None))
    return distribution.log_prob(episodes["action"])


class _Effects:
    """Sums of the effects of replaced timesteps on some of the decisions.

    Args:
        num_steps: Timesteps of the longest episode.
        num_replaced: How many of them are replaced; all but the first one stand for their
            neighbours too.
    """

    def __init__(self, num_steps: int, num_replaced: int) -> None:
        self.total = torch.zeros(num_steps, dtype=torch.float64)
        self.count = torch.zeros(num_steps, dtype=torch.int64)
        self.first = self.others = 0.0
        self.weight = (num_steps - 1) / max(num_replaced - 1, 1)

    def add(self, step: int, effect: Tensor, counts: Tensor) -> None:
        """Adds the effect ``[N, T]`` of a timestep where ``counts`` ``[N, T]`` says so, and not
        before it.
        """
        reached = torch.where(counts, effect, 0.0)[:, step:].sum(0).cpu()
        self.total[: len(reached)] += reached
        self.count[: len(reached)] += counts[:, step:].sum(0).cpu()
        if step == 0:
            self.first = float(reached[1:].sum())
        else:
            self.others += self.weight * float(reached.sum())

    def curve(self) -> RecallCurve:
        """The means."""
        lags = self.count.nonzero().squeeze(-1)
        whole = self.first + self.others
        return RecallCurve(
            lags, self.total[lags] / self.count[lags], self.first / whole if whole else 0.0
        )
