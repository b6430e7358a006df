"""Clone demonstrations from a NumPy file: python offline_from_npz.py [updates].

Prints the success rate.
"""

import sys

import tmaze_demonstrations
import yamame


def main(updates: int = 400) -> None:
    """Learn from the file alone; docs/data.md describes its arrays."""
    tmaze_demonstrations.main("demos.npz", num_episodes=200, length=8)
    task = ["env=tmaze", "env.length=8", "encoder=gru"]
    data = ["data=npz", "data.path=demos.npz", "agent=bc"]
    run = yamame.train(*task, *data, f"budget.updates={updates}", "resume=auto", recipe="offline")
    print("success", run.summary["success"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
