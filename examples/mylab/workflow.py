"""Train, evaluate and report in Python: run it in this folder."""

import yamame

runs = []
for encoder in ("fading_sum", "gru"):
    for seed in (0, 1):
        settings = ["experiment=doors", f"encoder={encoder}", f"seed={seed}", "resume=auto"]
        runs.append(yamame.train(*settings, config_dir="conf"))
for run in runs:
    print(run.name, run.summary["return_mean"], run.checkpoints.best)

# Trained with three trials per task, and evaluated with six.
shots = yamame.train("experiment=levers", "resume=auto", config_dir="conf")
report = yamame.evaluate(
    f"run={shots.path}", "trials.num_trials=6", "control=true", "trust=[mylab.]"
)
print("return per trial:", report["run"][0]["gammas"][-1]["trials"]["mean"])
print(yamame.make_report("directory=report"))
