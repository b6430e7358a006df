"""Train in Python, with a callback that ends the run: python train_in_python.py [minutes].

Prints the success rate of every evaluation.
"""

import sys

import yamame


class StopWhenSolved(yamame.Callback):
    """Callback that ends a run once an evaluation succeeds in 95 % of the tasks."""

    def on_evaluate(self, run, result):
        """Check the result of an evaluation on held-out tasks."""
        success = result.summary()["success_mean"]
        print(f"{run.progress.env_steps} steps: success {success:.2f}")
        if success > 0.95:
            run.stop("solved")


def main(minutes: float = 5.0) -> None:
    """Learn to recall a sign that was shown eight steps before."""
    settings = [
        "env=tmaze",
        "env.length=8",
        "encoder=gru",
        "evaluation.interval=5000",
        f"budget.minutes={minutes}",
        "resume=auto",
    ]
    run = yamame.train(*settings, callbacks=[StopWhenSolved()])
    print(run.path, run.objective)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
