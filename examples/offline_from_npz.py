"""Clones demonstrations from a file of NumPy: python offline_from_npz.py [updates]. Prints their
success.
"""

import sys

import tmaze_demonstrations
import yamame


def main(updates: int = 400) -> None:
    """Learns from the file alone; docs/data.md says what it must hold."""
    tmaze_demonstrations.main("demos.npz", num_episodes=200, length=8)
    task = ["env=tmaze", "env.length=8", "encoder=gru"]
    data = ["data=npz", "data.path=demos.npz", "agent=bc"]
    run = yamame.train(*task, *data, f"budget.updates={updates}", "resume=auto", recipe="offline")
    print("success", run.summary["success"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
