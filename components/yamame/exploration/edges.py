"""Random actions at the edges of an episode, where long corridors leave no room for any in
between.
"""

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from yamame.actions import ActionSpace
from yamame.checks import require_at_least
from yamame.exploration.epsilon import LinearNoise


class EdgeEpsilon(LinearNoise):
    """Epsilon that is large in the first and last steps of an episode only, and falls over
    training.

    For tasks of pure memory: what is seen at first must be recalled at last, and any random action
    on the way ends the attempt. The horizon is taken from ``time`` (t / horizon) and ``step_index``
    (t), ``[N, 1]`` each. Meant for policies that act by their most probable action. After the
    T-Maze exploration of AMAGO (arXiv 2310.09971).

    Args:
        action_space: See `Exploration`.
        anneal_steps: Environment steps, over all envs, after which the edges stay at ``end``.
        start: Epsilon at the edges when training begins.
        end: Epsilon at the edges once annealed.
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

    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal_steps: int,
        start: float = 1.0,
        end: float = 0.05,
        random_steps: float = 0.5,
        first: int = 0,
        last: int = 1,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__(
            action_space, anneal_steps=anneal_steps, start=start, end=end, action_key=action_key
        )
        require_at_least("EdgeEpsilon", 0, random_steps=random_steps, first=first, last=last)
        self.random_steps, self.first, self.last = random_steps, first, last
        self.in_keys = [*self.in_keys, "time", "step_index"]

    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """Epsilon of every env ``[N]``."""
        time, step = (
            self._get(tensordict, key).reshape(tensordict.batch_size)
            for key in ("time", "step_index")
        )
        # The first step does not tell how long the episode is: it is far from the end, and random
        # only as an edge.
        horizon = torch.where(step == 0, torch.inf, (step / time).round())
        is_edge = (step < self.first) | (step >= horizon - self.last)
        middle = (self.random_steps / horizon).clamp(max=1.0)
        return torch.where(is_edge, self.anneal(self.start, self.end).to(step.device), middle)
