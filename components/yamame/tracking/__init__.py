"""MLflow: nothing else of the package talks to it. Importing this imports no MLflow."""

from yamame.tracking.log import MetricRecord as MetricRecord
from yamame.tracking.log import read_metrics as read_metrics
from yamame.tracking.tracker import MLflowTracker as MLflowTracker
from yamame.tracking.tracker import NullTracker as NullTracker
from yamame.tracking.tracker import Tracker as Tracker
from yamame.tracking.tracker import send_rest as send_rest
