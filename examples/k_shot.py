"""Train briefly and measure in-context learning: python k_shot.py [minutes].

Prints the mean return of each attempt, with memory and with memory cleared at every step.
"""

import sys

import yamame


def main(minutes: float = 5.0) -> None:
    """Evaluate five attempts at each frozen lake, as in training, and then eight."""
    run = yamame.train("experiment=cpu_frozenlake", f"budget.minutes={minutes}", "resume=auto")
    for attempts in (5, 8):
        report = yamame.evaluate(
            f"run={run.path}", f"env.num_trials={attempts}", "num_episodes=64", "control=true"
        )
        # The last discount factor is the one that acts.
        played = report["run"][0]["gammas"][-1]
        curves = {"with memory": played["trials"], "wiped": played["control"]["trials"]}
        for name, trials in curves.items():
            print(f"{name:12}", [f"{mean:.2f}" for mean in trials["mean"]])


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
