"""Trains in Python, with a callback that ends the run: python train_in_python.py [minutes]. Prints
the curve.
"""

import sys

import yamame


class StopWhenSolved(yamame.Callback):
    """Ends a run as soon as an evaluation is good enough."""

    def on_evaluate(self, run, result):
        """Is called after every evaluation on held-out tasks."""
        print(f"{run.progress.env_steps} steps: success {result.summary()['success_mean']:.2f}")
        if result.summary()["success_mean"] > 0.95:
            run.stop("solved")


def main(minutes: float = 5.0) -> None:
    """Learns to recall what was shown eight steps before."""
    settings = [
        "env=tmaze",
        "env.length=8",
        "encoder=gru",
        f"budget.minutes={minutes}",
        "resume=auto",
    ]
    run = yamame.train(*settings, "evaluation.interval=5000", callbacks=[StopWhenSolved()])
    print(run.path, run.objective)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
