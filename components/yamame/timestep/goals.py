"""Goal encoders: a shown instruction ``[*, K, d]`` to an embedding ``[*, E]``.

Both encoders read goals as `yamame.goals` shows them: completed and unused slots hold special
values, which the encoders treat as kinds and never as numbers. Both can restrict the instruction
first (`yamame.goals.view`), and end in LayerNorm.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.checks import PositiveInt, check_bounds, require
from yamame.execution.capturing import Constant
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, GOAL_TOLERANCE, view
from yamame.normalization import RunningNormalizer
from yamame.timestep.tokens import TokenSequence

_SPECIAL = Constant(torch.tensor([GOAL_COMPLETED, GOAL_PAD], device="cpu"))
"""Values of slots that hold no goal."""


class GoalEncoder(nn.Module):
    """Base class of goal encoders: sizes, restriction of the instruction, check of its shape.

    Args:
        num_slots: Number K of slots of an instruction.
        goal_size: Numbers d per goal.
        out_features: Size E of the embedding.
        hide_future_goals: Hide the goals after the active one.
        single_goal: Show the active goal only.

    Raises:
        ArgumentError: A size is not positive, or an instruction has another shape than
            ``[*, K, d]``.
    """

    @check_bounds
    def __init__(
        self,
        num_slots: PositiveInt,
        goal_size: PositiveInt,
        out_features: PositiveInt,
        hide_future_goals: bool,
        single_goal: bool,
    ) -> None:
        super().__init__()
        self.num_slots = num_slots
        self.goal_size = goal_size
        self.out_features = out_features
        self.hide_future_goals = hide_future_goals
        self.single_goal = single_goal

    def visible(self, goal: Tensor) -> Tensor:
        """Return the part of an instruction ``[*, K, d]`` that is shown, as float32."""
        expected = (self.num_slots, self.goal_size)
        fits = tuple(goal.shape[-2:]) == expected
        condition = f"end in (num_slots, goal_size)={expected}"
        require(type(self).__name__, "goal", tuple(goal.shape), fits, condition)
        return view(
            goal.to(torch.float32),
            hide_future_goals=self.hide_future_goals,
            single_goal=self.single_goal,
        )


class MLPGoalEncoder(GoalEncoder):
    """Multilayer perceptron over an instruction of vector goals (positions, states).

    Each slot becomes d coordinates, normalised and zero in special slots, and two flags: completed
    and unused. One `RunningNormalizer` serves the coordinates of all slots.

    Args:
        num_slots: As for `GoalEncoder`.
        goal_size: As for `GoalEncoder`.
        out_features: As for `GoalEncoder`.
        hidden_size: Width of the hidden layer.
        hide_future_goals: As for `GoalEncoder`.
        single_goal: As for `GoalEncoder`.

    >>> MLPGoalEncoder(3, 2)(torch.full((5, 3, 2), GOAL_PAD)).shape
    torch.Size([5, 32])
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"mlp.0": "input"}

    @check_bounds
    def __init__(
        self,
        num_slots: PositiveInt,
        goal_size: PositiveInt,
        *,
        out_features: PositiveInt = 32,
        hidden_size: PositiveInt = 64,
        hide_future_goals: bool = False,
        single_goal: bool = False,
    ) -> None:
        super().__init__(num_slots, goal_size, out_features, hide_future_goals, single_goal)
        # A coordinate means the same in every slot.
        self.normalizer = RunningNormalizer(goal_size)
        self.mlp = MLP(
            num_slots * (goal_size + 2),
            out_features,
            num_cells=[hidden_size],
            activation_class=nn.LeakyReLU,
        )
        self.norm = nn.LayerNorm(out_features)

    def forward(self, goal: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embed ``goal`` ``[*, K, d]``; ``mask`` ``[*]`` bool marks real timesteps."""
        goal = self.visible(goal)
        special = _SPECIAL.on(goal.device)
        flags = (goal.unsqueeze(-1) == special).all(-2)  # [*, K, 2], completed and unused
        is_special = flags.any(-1)  # [*, K]
        is_counted = None
        if self.training:
            # Special values must not distort the statistics, nor must padding.
            is_counted = ~is_special
            if mask is not None:
                is_counted = is_counted & mask.unsqueeze(-1)
        values = self.normalizer(goal, is_counted)
        values = values.masked_fill(is_special.unsqueeze(-1), 0.0)
        slots = torch.cat([values, flags], dim=-1)  # [*, K, d + 2]
        return self.norm(self.mlp(slots.flatten(-2)))


class TokenGoalEncoder(GoalEncoder):
    """Embedding of an instruction whose goals are words: every coordinate is a token.

    A token v in ``0 .. num_tokens - 1`` has an id of its own, and `GOAL_PAD` and `GOAL_COMPLETED`
    have one each. All other values (outside of the vocabulary, or not whole) share the id
    *unknown*, so that unseen goals can be told from known ones, though not from each other. The
    K * d ids pass a `TokenSequence`, whose learned queries can select, for example, the first goal
    that is not completed.

    Args:
        num_slots: As for `GoalEncoder`.
        goal_size: As for `GoalEncoder`.
        num_tokens: Size of the vocabulary, without the special values.
        out_features: As for `GoalEncoder`.
        embedding_size: As for `TokenSequence`.
        hidden_size: As for `TokenSequence`.
        num_queries: As for `TokenSequence`.
        hide_future_goals: As for `GoalEncoder`.
        single_goal: As for `GoalEncoder`.

    >>> TokenGoalEncoder(5, 3, num_tokens=37)(torch.full((4, 5, 3), GOAL_COMPLETED)).shape
    torch.Size([4, 32])
    """

    PAD = 0
    COMPLETED = 1
    UNKNOWN = 2
    NUM_SPECIAL = 3

    @check_bounds
    def __init__(
        self,
        num_slots: PositiveInt,
        goal_size: PositiveInt,
        *,
        num_tokens: PositiveInt,
        out_features: PositiveInt = 32,
        embedding_size: PositiveInt = 16,
        hidden_size: PositiveInt = 64,
        num_queries: PositiveInt = 4,
        hide_future_goals: bool = False,
        single_goal: bool = False,
    ) -> None:
        super().__init__(num_slots, goal_size, out_features, hide_future_goals, single_goal)
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
        """Return the id of every coordinate, int64 in ``0 .. num_tokens + 2``."""
        whole = goal.round()
        is_known = (goal - whole).abs() < GOAL_TOLERANCE
        is_known &= (whole >= 0) & (whole < self.num_tokens)
        # Values are selected before the cast, which is undefined for large or infinite floats.
        tokens = torch.where(is_known, whole, 0.0).to(torch.int64)
        ids = torch.where(is_known, tokens + self.NUM_SPECIAL, self.UNKNOWN)
        ids = torch.where(goal == GOAL_PAD, self.PAD, ids)
        return torch.where(goal == GOAL_COMPLETED, self.COMPLETED, ids)

    def forward(self, goal: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embed ``goal`` ``[*, K, d]``; ``mask`` has no effect, because nothing is normalised."""
        ids = self.token_ids(self.visible(goal))
        return self.sequence(ids.flatten(-2))
