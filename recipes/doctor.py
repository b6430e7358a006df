"""Check what a run of train needs, try it for some seconds, and forecast what the whole run takes.

    yamame doctor env=mazerunner encoder=gru
    yamame doctor experiment=cpu_tmaze measure.seconds=60
    yamame doctor env=gym env.id=mylab.envs:make trust=[mylab.]

Options are those of recipes/train.py. The trial is the run itself, with updates from the first
episodes on and without a tracker, in a folder below run.root that is deleted afterwards. The
forecast is of the run from its beginning, also with resume. Problems are printed in lines that
begin with `problem:`; the exit status is then 1.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.doctor.packages import require_packages

    require_packages("yamame", "train")  # before an import of a missing package fails
    from yamame.cli.front import check_command_line

    check_command_line("doctor", without_sweeps="the doctor looks at one run")

# isort: split
import io
from contextlib import closing, redirect_stderr

from yamame.cli.app import main
from yamame.cli.front import fail
from yamame.cli.nodes import with_changes
from yamame.cli.training_settings import DoctorConfig
from yamame.doctor import machine
from yamame.doctor.costs import cost_problems, costs_of, describe_costs
from yamame.doctor.packages import describe_packages
from yamame.doctor.problems import collecting
from yamame.doctor.trial import Stopwatch, forecast, run_trial
from yamame.runs.build import build_agent, build_env
from yamame.runs.machine import check_machine
from yamame.system.compiling import compiling_seconds
from yamame.tracking.mlflow_store import check_store


def doctor(cfg: DoctorConfig) -> None:
    """Run the recipe; each step needs those before it to be without a problem."""
    print_line("packages", describe_packages())
    print_line("machine", machine.describe_machine(cfg))
    store_problems: list[str] = []
    with collecting(store_problems):
        check_store({"logger": cfg.logger})
    # A run can be tried without its store.
    problems = list(machine.problems(cfg))
    if not problems:
        problems = check_parts(cfg)
    if not problems:
        problems = try_out(cfg)

    for problem in store_problems + problems:
        print_line("problem", problem)
    if store_problems or problems:
        fail("doctor", f"{len(store_problems + problems)} to mend", status=1)


def print_line(title: str, text: str) -> None:
    """Print a line with its title."""
    print(f"{title + ':':<10} {text}", flush=True)


def check_parts(cfg: DoctorConfig) -> list[str]:
    """Build the environment and the agent; return a line for each problem."""
    problems: list[str] = []
    with collecting(problems):
        check_machine(cfg)
    if problems:
        # Other problems show on the CPU, too.
        cfg = with_changes(cfg, {"device": "cpu"})
    # The trial builds the same parts and collects their warnings.
    with (
        collecting(problems),
        redirect_stderr(io.StringIO()),
        closing(build_env(cfg, num_envs=1, seed=0)) as env,
    ):
        build_agent(cfg, env)
    return problems


def try_out(cfg: DoctorConfig) -> list[str]:
    """Try the run, and print the forecast; return a line for each problem."""
    seconds = cfg.measure.seconds
    print_line("trial", f"of {seconds:g} s and an evaluation")
    watch = Stopwatch(seconds)
    problems: list[str] = []
    with collecting(problems):
        problems += run_trial(cfg, watch)
    if problems:
        return problems

    whole = forecast(watch, cfg)
    costs = costs_of(watch, whole, cfg)
    lines = describe_costs(watch, whole, costs)
    if compiling_seconds() >= 1:
        lines["compiling"] = f"{compiling_seconds():.0f} s, once, which no speed above includes"
    for title, text in lines.items():
        print_line(title, text)
    return cost_problems(watch, whole, costs, cfg)


if __name__ == "__main__":
    main(doctor, config_name="doctor", needs_store=False)
