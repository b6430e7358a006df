"""What recipes share: run directories, checkpoints, seeds, tracking, progress, budgets.

This package is the only door to MLflow and Hydra. Importing it imports neither: `yamame.runs.hydra` (the door
to Hydra) is imported by name and `MLflowTracker` imports MLflow when it starts.
"""

from yamame.runs.budget import Budget as Budget
from yamame.runs.checkpoint import Checkpointer as Checkpointer
from yamame.runs.checkpoint import LoadedCheckpoint as LoadedCheckpoint
from yamame.runs.compare import compare_config as compare_config
from yamame.runs.compare import flatten as flatten
from yamame.runs.costs import CostMeter as CostMeter
from yamame.runs.costs import SystemMetrics as SystemMetrics
from yamame.runs.counters import Progress as Progress
from yamame.runs.directory import RunDirectory as RunDirectory
from yamame.runs.errors import UsageError as UsageError
from yamame.runs.expected import Expected as Expected
from yamame.runs.figures import learning_curve as learning_curve
from yamame.runs.figures import write_gif as write_gif
from yamame.runs.figures import write_mp4 as write_mp4
from yamame.runs.guard import NonFiniteGuard as NonFiniteGuard
from yamame.runs.learner import Learner as Learner
from yamame.runs.memory import keep_freed_memory as keep_freed_memory
from yamame.runs.progress import ProgressBar as ProgressBar
from yamame.runs.progress import print_table as print_table
from yamame.runs.seeding import GlobalRNGState as GlobalRNGState
from yamame.runs.seeding import seed_everything as seed_everything
from yamame.runs.signals import Terminated as Terminated
from yamame.runs.signals import terminate_on_signal as terminate_on_signal
from yamame.runs.summary import build_summary as build_summary
from yamame.runs.summary import git_revision as git_revision
from yamame.runs.summary import run_status as run_status
from yamame.runs.summary import versions as versions
from yamame.runs.tracking import MLflowTracker as MLflowTracker
from yamame.runs.tracking import NullTracker as NullTracker
from yamame.runs.tracking import Tracker as Tracker
