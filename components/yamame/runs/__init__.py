"""Runs: parts built from a configuration, and a run from its first to its last step.

`MLflowTracker` and `NullTracker` are exported here as well, because configurations in older
checkpoints name them so.
"""

from yamame.runs.callbacks import Callback as Callback
from yamame.runs.callbacks import EarlyStopping as EarlyStopping
from yamame.tracking import MLflowTracker as MLflowTracker
from yamame.tracking import NullTracker as NullTracker
