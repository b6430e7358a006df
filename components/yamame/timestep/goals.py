"""Goal encoders: a shown instruction ``[*, K, d]`` becomes an embedding ``[*, E]``.

Both read goals as `yamame.goals` shows them (completed and unused slots carry magic values), may
first restrict what is seen (`yamame.goals.view`), treat the magic values as kinds and never as
numbers, and end in LayerNorm.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.checks import require_at_least
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, GOAL_TOLERANCE, view
from yamame.normalization import RunningNormalizer
from yamame.timestep.tokens import TokenSequence


class GoalEncoder(nn.Module):
    """What the goal encoders share: sizes, the restricted view and the check of the input's shape.

    Args:
        num_slots: K, slots of an instruction.
        goal_size: d, numbers per goal.
        out_features: E, size of the embedding.
        hide_future_goals: Goals after the active one are hidden.
        single_goal: Only the active goal is seen.

    Raises:
        ValueError: If a size is not positive or an instruction has another shape than
            ``[*, K, d]``.
    """

    def __init__(
        self,
        num_slots: int,
        goal_size: int,
        out_features: int,
        hide_future_goals: bool,
        single_goal: bool,
    ) -> None:
        super().__init__()
        sizes = {"num_slots": num_slots, "goal_size": goal_size, "out_features": out_features}
        require_at_least(type(self).__name__, 1, **sizes)
        self.num_slots, self.goal_size, self.out_features = num_slots, goal_size, out_features
        self.restriction = {"hide_future_goals": hide_future_goals, "single_goal": single_goal}

    def visible(self, goal: Tensor) -> Tensor:
        """The part of the instruction that may be seen, ``[*, K, d]`` float32."""
        if goal.shape[-2:] != (self.num_slots, self.goal_size):
            raise ValueError(
                f"{type(self).__name__}: goal must end in (num_slots, goal_size)="
                f"{(self.num_slots, self.goal_size)}, got shape {tuple(goal.shape)}"
            )
        return view(goal.to(torch.float32), **self.restriction)


class MLPGoalEncoder(GoalEncoder):
    """Embeds an instruction of vector goals (positions, states) with a small MLP.

    Each slot becomes d numbers and two flags: the goal's coordinates, normalised and set to zero in
    special slots, *is completed* and *is unused*. The coordinates share one `RunningNormalizer`
    over all slots (a coordinate means the same in each), which moves only from slots that show a
    goal at real timesteps, so the magic values neither distort the statistics nor lie on the scale
    of the coordinates.

    Args:
        num_slots, goal_size, out_features, hide_future_goals, single_goal: As for `GoalEncoder`.
        hidden_size: Width of the hidden layer.

    >>> MLPGoalEncoder(3, 2)(torch.full((5, 3, 2), GOAL_PAD)).shape
    torch.Size([5, 32])
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"mlp.0": "input"}

    def __init__(
        self,
        num_slots: int,
        goal_size: int,
        *,
        out_features: int = 32,
        hidden_size: int = 64,
        hide_future_goals: bool = False,
        single_goal: bool = False,
    ) -> None:
        super().__init__(num_slots, goal_size, out_features, hide_future_goals, single_goal)
        require_at_least("MLPGoalEncoder", 1, hidden_size=hidden_size)
        self.normalizer = RunningNormalizer(goal_size)
        in_features = num_slots * (goal_size + 2)
        self.mlp = MLP(
            in_features, out_features, num_cells=[hidden_size], activation_class=nn.LeakyReLU
        )
        self.norm = nn.LayerNorm(out_features)

    def forward(self, goal: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeds ``goal`` ``[*, K, d]``; ``mask`` ``[*]`` bool marks real timesteps."""
        goal = self.visible(goal)
        completed = (goal == GOAL_COMPLETED).all(-1, keepdim=True)
        unused = (goal == GOAL_PAD).all(-1, keepdim=True)
        real = ~(completed | unused)
        counted = real.squeeze(-1) if mask is None else real.squeeze(-1) & mask.unsqueeze(-1)
        values = torch.where(real, self.normalizer(goal, counted), 0.0)
        slots = torch.cat([values, completed.to(values.dtype), unused.to(values.dtype)], dim=-1)
        return self.norm(self.mlp(slots.flatten(-2)))


class TokenGoalEncoder(GoalEncoder):
    """Embeds an instruction whose goals are words: every coordinate is a token of a closed
    vocabulary.

    Each coordinate becomes an id: a token v in ``0 .. num_tokens - 1`` its own, `GOAL_PAD` and
    `GOAL_COMPLETED` one each, and **any other value** (out of the vocabulary, or not whole) the id
    *unknown*: it is neither clamped onto a legal token nor an error, so unseen goals stay
    distinguishable from known ones, but not from each other. The K * d ids pass a `TokenSequence`,
    whose learned queries can single out, say, the first goal that is not completed.

    Args:
        num_slots, goal_size, out_features, hide_future_goals, single_goal: As for `GoalEncoder`.
        num_tokens: Size of the vocabulary, without the special values.
        embedding_size, hidden_size, num_queries: As for `TokenSequence`.

    >>> TokenGoalEncoder(5, 3, num_tokens=37)(torch.full((4, 5, 3), GOAL_COMPLETED)).shape
    torch.Size([4, 32])
    """

    PAD, COMPLETED, UNKNOWN, NUM_SPECIAL = 0, 1, 2, 3

    def __init__(
        self,
        num_slots: int,
        goal_size: int,
        *,
        num_tokens: int,
        out_features: int = 32,
        embedding_size: int = 16,
        hidden_size: int = 64,
        num_queries: int = 4,
        hide_future_goals: bool = False,
        single_goal: bool = False,
    ) -> None:
        super().__init__(num_slots, goal_size, out_features, hide_future_goals, single_goal)
        sizes = {
            "embedding_size": embedding_size,
            "hidden_size": hidden_size,
            "num_queries": num_queries,
        }
        require_at_least("TokenGoalEncoder", 1, num_tokens=num_tokens, **sizes)
        self.num_tokens = num_tokens
        self.sequence = TokenSequence(
            num_tokens + self.NUM_SPECIAL,
            length=num_slots * goal_size,
            out_features=out_features,
            embedding_size=embedding_size,
            hidden_size=hidden_size,
            num_queries=num_queries,
        )

    def token_ids(self, goal: Tensor) -> Tensor:
        """Ids of every coordinate, int64, in ``0 .. num_tokens + 2``; same shape as ``goal``."""
        whole = goal.round()
        known = (goal - whole).abs() < GOAL_TOLERANCE
        known &= (whole >= 0) & (whole < self.num_tokens)
        ids = (
            torch.where(known, whole, self.UNKNOWN - self.NUM_SPECIAL).to(torch.int64)
            + self.NUM_SPECIAL
        )
        ids = torch.where(goal == GOAL_PAD, self.PAD, ids)
        return torch.where(goal == GOAL_COMPLETED, self.COMPLETED, ids)

    def forward(self, goal: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeds ``goal`` ``[*, K, d]``; ``mask`` changes nothing."""
        return self.sequence(self.token_ids(self.visible(goal)).flatten(-2))
