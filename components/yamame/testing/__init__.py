"""Public checkers of the laws of components, for custom components as well as built-in ones."""

from yamame.testing.goal_trajectories import goal_trajectories as goal_trajectories
from yamame.testing.goal_trajectories import random_goal_trajectories as random_goal_trajectories
from yamame.testing.overlap import Overlap as Overlap
from yamame.testing.overlap import task_overlap as task_overlap
from yamame.testing.reads import DeclaredReads as DeclaredReads
from yamame.testing.reads import MemoryReplay as MemoryReplay
from yamame.testing.relabel import check_relabeller as check_relabeller
from yamame.testing.trajectory import check_trajectory_encoder as check_trajectory_encoder
