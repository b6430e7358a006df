"""Costs: CPU of the process and its children, accumulated over resumes."""

import json
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from yamame.tracking.costs import CostMeter, SystemMetrics

# The operating system counts in hundredths of a second, so 0.3 seconds of work show as 0.29 or
# more.
BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_the_cpu_time_of_this_process_and_of_finished_children_counts():
    meter = CostMeter()
    start = time.process_time()
    while time.process_time() - start < 0.1:
        pass
    own = meter.cpu_s
    assert own >= 0.08
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert meter.cpu_s >= own + 0.28


def test_sleeping_costs_wall_time_but_no_cpu_time():
    meter = CostMeter()
    time.sleep(0.2)
    assert meter.wall_s >= 0.2
    assert meter.cpu_s < 0.2


@contextmanager
def busy_child():
    """Process that has used the processor, and lives until a line is sent to it."""
    code = BURN + "\nprint('done', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as child:
        child.stdout.readline()
        yield child


def test_a_living_child_counts_already():
    meter = CostMeter()
    with busy_child() as child:
        assert child.poll() is None
        assert meter.cpu_s >= 0.28
        child.communicate("\n")


def test_a_recent_reading_counts_no_second_twice():
    meter = CostMeter()
    with busy_child() as child:
        assert meter.cpu_s >= 0.28  # reads the living child
        child.communicate("\n")
    assert meter.recent_cpu_s() - meter.cpu_s < 0.1
    start = time.process_time()
    before = meter.recent_cpu_s()
    while time.process_time() - start < 0.1:
        pass
    assert meter.recent_cpu_s() >= before + 0.08  # its own seconds are always new


def test_costs_continue_from_a_checkpoint():
    meter = CostMeter()
    meter.load_state_dict({"cpu_s": 100.0, "wall_s": 200.0})
    assert 100 - 1e-9 <= meter.state_dict()["cpu_s"] < 110  # a difference of clocks is rounded
    assert 200 <= meter.state_dict()["wall_s"] < 210


def test_system_metrics_are_plausible_numbers():
    sample = SystemMetrics().sample()
    assert all(name.startswith("system/") and value >= 0 for name, value in sample.items())
    assert sample["system/process_memory_mebibytes"] > 10
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100


def used_by_children():
    """CPU-seconds of all children of this process that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_run_costs_what_its_processes_do(tmp_path):
    """Only the end of the interpreter, a fifth of a second, comes after the number."""
    recipe = Path(__file__).parents[2] / "recipes" / "train.py"
    settings = ["debug=tiny", "encoder=gru", "logger=none", "run.name=a", "resume=auto"]

    def session(updates):
        before = used_by_children()
        command = [sys.executable, str(recipe), *settings, f"budget.updates={updates}"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
        return used_by_children() - before, summary["cpu_s"]

    spent, cost = session(2)
    assert spent - 0.5 < cost <= spent
    spent_later, cost_of_both = session(3)
    assert spent_later - 0.5 < cost_of_both - cost <= spent_later
