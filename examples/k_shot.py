"""Trains briefly and asks for the in-context curve: python k_shot.py [minutes]. Prints return by
attempt.
"""

import sys

import yamame


def main(minutes: float = 5.0) -> None:
    """Five attempts at one frozen lake; then eight, which is more than it was trained with."""
    run = yamame.train("experiment=cpu_frozenlake", f"budget.minutes={minutes}", "resume=auto")
    for attempts in (5, 8):
        asked = [f"run={run.path}", f"env.num_trials={attempts}", "num_episodes=64", "control=true"]
        played = yamame.evaluate(*asked)["run"][0]
        print("with memory", [f"{mean:.2f}" for mean in played["gammas"][-1]["trials"]["mean"]])
        print(
            "wiped      ",
            [f"{mean:.2f}" for mean in played["gammas"][-1]["control"]["trials"]["mean"]],
        )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
