"""Random actions at the edges of an episode, for tasks whose middle allows none."""

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from yamame.actions import ActionSpace
from yamame.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, check_bounds
from yamame.exploration.base import Share
from yamame.exploration.epsilon import LinearNoise


class EdgeEpsilon(LinearNoise):
    """Epsilon that is large in the first and last steps of an episode and falls over training.

    For tasks of pure memory: an observation at the start must be recalled at the end, and any
    random action in between ends the attempt. The horizon is computed from ``time`` (t / horizon)
    and ``step_index`` (t), ``[N, 1]`` each. Meant for policies that act by their most probable
    action. After the T-Maze exploration of AMAGO (arXiv 2310.09971).

    Args:
        action_space: See `Exploration`.
        anneal: Share of the budget, in (0, 1], after which the edges (first and last steps of an
            episode) have the probability ``end``.
        anneal_steps: Environment steps, over all envs, after which they have, in place of
            ``anneal``; None: the share.
        start: Probability of a random action at the edges when training begins.
        end: Probability of a random action at the edges after annealing.
        random_steps: Expected number of random actions in a whole episode away from its edges.
        first: Steps at the beginning of an episode that are an edge.
        last: Steps at its end that are an edge.
        action_key: See `Exploration`.

    Raises:
        ValueError: If a setting is out of its range; at run time if ``time`` or ``step_index`` is
            missing.

    >>> from tensordict import TensorDict
    >>> from torchrl.data import Categorical
    >>> noise = EdgeEpsilon(Categorical(4, shape=(3,)), anneal_steps=100, random_steps=0.5, last=2)
    >>> step = torch.tensor([[0], [7], [8]])
    >>> td = TensorDict({"action": torch.zeros(3), "step_index": step, "time": step / 10}, [3])
    >>> noise.epsilon(td)
    tensor([0.0000, 0.0500, 1.0000])
    """

    @check_bounds
    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal: Share = 0.25,
        anneal_steps: PositiveInt | None = None,
        start: float = 1.0,
        end: float = 0.05,
        random_steps: NonNegativeFloat = 0.5,
        first: NonNegativeInt = 0,
        last: NonNegativeInt = 1,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__(
            action_space,
            anneal=anneal,
            anneal_steps=anneal_steps,
            start=start,
            end=end,
            action_key=action_key,
        )
        self.random_steps = random_steps
        self.first = first
        self.last = last
        self.in_keys = [*self.in_keys, "time", "step_index"]

    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """Return epsilon of every env ``[N]``."""
        time = self._get(tensordict, "time").reshape(tensordict.batch_size)
        step = self._get(tensordict, "step_index").reshape(tensordict.batch_size)
        # The length of the episode is unknown at its first step (0 / 0). With an infinite horizon
        # that step is far from the end, and random only as an edge.
        horizon = torch.where(step == 0, torch.inf, (step / time).round())
        is_first = step < self.first
        is_last = step >= horizon - self.last
        middle = (self.random_steps / horizon).clamp(max=1.0)
        edge = self.anneal(self.start, self.end).to(step.device)
        return torch.where(is_first | is_last, edge, middle)
