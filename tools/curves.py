"""Draws an evaluation metric of several runs over environment steps, and writes its numbers beside the picture.

python tools/curves.py docs/relabelling.png some-0 none-0                    # success, from mlflow.db
python tools/curves.py docs/returns.png a b --metric return --database sqlite:///other.db
"""

import argparse
import csv
from pathlib import Path

from mlflow.tracking import MlflowClient
from yamame.runs import learning_curve


def curve(client: MlflowClient, name: str, metric: str) -> list[list[float]]:
    """Steps, means and both ends of the interval of the latest run of a name."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"attributes.run_name = '{name}'", max_results=1)
    if not runs:
        raise SystemExit(f"curves: there is no run {name!r} in {client.tracking_uri}")
    histories = [
        sorted((point.step, point.value) for point in client.get_metric_history(runs[0].info.run_id, key))
        for key in (f"eval/{metric}_mean", f"eval/{metric}_low", f"eval/{metric}_high")
    ]
    return [[step for step, _ in histories[0]], *([value for _, value in history] for history in histories)]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "picture", type=Path, help="the PNG file; the numbers go to the CSV file of the same name"
    )
    parser.add_argument("runs", nargs="+", help="names of runs, one line each")
    parser.add_argument("--metric", default="success")
    parser.add_argument("--database", default="sqlite:///mlflow.db")
    options = parser.parse_args()
    client = MlflowClient(options.database)
    curves = {name: curve(client, name, options.metric) for name in options.runs}
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    learning_curve(options.picture, curves, y_label=options.metric)
    with options.picture.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "env_steps", "mean", "low", "high"])
        for name, columns in curves.items():
            writer.writerows([name, *row] for row in zip(*columns, strict=True))


if __name__ == "__main__":
    main()
