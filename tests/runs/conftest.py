"""What the tests of this folder share: one MLflow database, for its creation costs seconds."""

import pytest
from yamame.runs import MLflowTracker


@pytest.fixture(scope="session")
def tracking_uri(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def start(tracking_uri, tmp_path):
    """Starts a tracker in a run directory of its own."""

    def start(directory=tmp_path, **options):
        tracker = MLflowTracker(
            tracking_uri=tracking_uri, **{"system_metrics": False, "flush_s": 0.0, **options}
        )
        return tracker.start(directory, name="a run", params={"seed": 1, "agent.gammas": [0.9, 0.99]})

    return start
