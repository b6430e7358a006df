"""Instructions and the rewards for completing them: the one place for goal semantics."""

from yamame.goals.instruction import advance as advance
from yamame.goals.instruction import completion_times as completion_times
from yamame.goals.instruction import holds as holds
from yamame.goals.instruction import num_goals as num_goals
from yamame.goals.instruction import show as show
from yamame.goals.instruction import view as view
from yamame.keys import GOAL_COMPLETED as GOAL_COMPLETED
from yamame.keys import GOAL_PAD as GOAL_PAD
from yamame.keys import GOAL_TOLERANCE as GOAL_TOLERANCE
