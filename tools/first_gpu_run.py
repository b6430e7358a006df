"""The first minutes on a GPU: checks that everything runs there, and measures what `docs/howto/gpu.md` predicts.

    python tools/first_gpu_run.py                    # all probes, the most important first, until --minutes are over
    python tools/first_gpu_run.py --probe update     # one of them
    python tools/first_gpu_run.py --out results      # where gpu.json is written, after every probe
    python tests/gpu_emulation/program.py run tools/first_gpu_run.py --tiny      # on an emulated device, all but tests

Each probe is a process of its own, for a capture that fails spoils the device for its process. The table that is
printed at the end, in Markdown, has every prediction beside what was measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmark_sections import Nowhere, Subject
from speed import Clock
from tensordict import TensorDict
from yamame.cli.nodes import instantiate
from yamame.replay import TrajectoryReplayBuffer, Window, pack
from yamame.training import Prefetcher
from yamame.training.prefetch import with_num_segments

ROOT = Path(__file__).parents[1]
BFLOAT16 = ("float32_matmul_precision=high", "schedule.autocast=bfloat16", "collector.autocast=bfloat16")
RECORDED = ("schedule.cuda_graph=true", "collector.cuda_graph=true")
STEPS, UPDATES = 8_000_000, 127_872
"""Of the published fit of Dark Key-To-Door."""
PREDICTED = {
    "machine": "products below 67 TFLOP/s in float32, above 250 in TF32, above 600 in bfloat16; a launch 3 to 6 us, "
    "in a graph 1.5 to 2.5",
    "smoke": "every line is 0: nothing is on the wrong device, and captures succeed",
    "waits": "0 a batched step within a block, at most 1 an update",
    "update": "ms of an update of 16 x 501: 8 to 15 launched one by one, whatever the precision; recorded 6 to 9 in "
    "float32, 2 to 4.5 in bfloat16",
    "acting": "ms of a batched step: 2 to 3.5 launched one by one, up to 256 envs; recorded whole 0.2 to 0.6",
    "parity": "recorded losses equal ordinary ones; environments equal those of the CPU bit for bit",
    "sampling": "ms to sample and pin 16 x 501: 1 to 3, hidden behind the device",
    "tests": "pytest -m gpu passes",
    "fit": "minutes of 8,000,000 steps and 127,872 updates: 40 to 70 with the settings of the experiment, 6 to 12 with "
    "hardware=gpu",
}


class Probes:
    """What is measured, a method each.

    Args:
        tiny: Small networks and short sequences, to try the probes themselves.
    """

    def __init__(self, tiny: bool) -> None:
        self.tiny, self.length = tiny, 33 if tiny else 501
        self.clock = Clock("cuda")
        small = ("encoder.d_model=16", "encoder.num_heads=2", "encoder.num_layers=1") if tiny else ()
        self.door = ["experiment=dark_key_to_door", "schedule.batch_size=16", "encoder.dropout=0", *small]

    def subject(self, *overrides: str) -> Subject:
        """The published agent, with its learner."""
        precision = "high" if "float32_matmul_precision=high" in overrides else "highest"
        torch.set_float32_matmul_precision(precision)
        return Subject([*self.door, *overrides], "cuda")

    def machine(self) -> dict[str, Any]:
        """Rates of the device and of its host."""
        size = 256 if self.tiny else 8192
        measured: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
        kinds = {
            "float32": ("highest", torch.float32),
            "tf32": ("high", torch.float32),
            "bfloat16": ("high", torch.bfloat16),
        }
        for name, (precision, dtype) in kinds.items():
            torch.set_float32_matmul_precision(precision)
            a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
            seconds = self.clock.time(lambda a=a, b=b: a @ b, seconds=0.3)
            measured[f"{name}_tflops"] = round(2 * size**3 / seconds / 1e12, 1)
        x = torch.zeros(8, device="cuda")

        def chain() -> None:
            for _ in range(500):
                x.add_(1)

        measured["launch_us"] = round(self.clock.time(chain) / 500 * 1e6, 2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        measured["in_graph_us"] = round(self.clock.time(graph.replay) / 500 * 1e6, 2)
        return measured

    def smoke(self) -> dict[str, Any]:
        """Exit status and last lines of tiny runs of recipes."""
        tiny, preset = [[setting, "debug=tiny", "logger=none"] for setting in ("device=cuda", "hardware=gpu")]
        more = [
            "budget.updates=9",
            "schedule.updates_per_step=0.1",
            "schedule.num_envs=4",
            "schedule.steps_per_iteration=64",
        ]
        runs = {
            "maze": tiny,
            "rarity": [*tiny, "relabel=rarity"],
            "gru": [*tiny, "encoder=gru", "env=tmaze"],
            "recorded": [*tiny, *more, *RECORDED],
            "hardware=gpu": [
                "env=dark_key_to_door",
                "env.time_limit=60",
                *preset,
                *more,
            ],
        }
        results = {}
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, arguments) in enumerate(runs.items()):
                recipe = [*python(), str(ROOT / "recipes/train.py")]
                command = [*recipe, f"run.root={folder}", f"run.name=r{number}"]
                done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=150)
                results[name] = 0 if done.returncode == 0 else (done.stderr + done.stdout)[-800:]
        return results

    def waits(self) -> dict[str, Any]:
        """Lines of the project at which the host waits for the device."""
        results: dict[str, Any] = {}
        for name, more in {"one by one": (), "recorded": RECORDED}.items():
            subject = self.subject(*more, "env.time_limit=200")
            batch = batch_of(subject, 4, 33)
            for _ in range(6):
                subject.update(batch)
            results[f"update, {name}"] = waits_of(lambda s=subject, b=batch: s.update(b))
            collector = self.collector(subject, 12)
            collector.collect(12 * 16)
            results[f"block of 32 steps, {name}"] = waits_of(lambda c=collector: c.collect(12 * 32))
        return results

    def update(self) -> dict[str, Any]:
        """Milliseconds of an update, and the most memory."""
        results = {}
        for name, more in self.settings().items():
            subject = self.subject(*more)
            batch = batch_of(subject, 16, self.length)
            torch.cuda.reset_peak_memory_stats()
            for _ in range(6):
                subject.update(batch)
            seconds = self.clock.time(lambda s=subject, b=batch: s.update(b), seconds=1.0, least=10)
            memory = torch.cuda.max_memory_allocated() / 2**20
            results[name] = {"ms": round(1e3 * seconds, 2), "memory_mb": round(memory)}
        return results

    def acting(self) -> dict[str, Any]:
        """Milliseconds of a step of all environments, half-way through an episode."""
        results = {}
        for name, more in self.settings().items():
            subject = self.subject(*more)
            for num_envs in (2, 4) if self.tiny else (12, 128, 1024):
                collector = self.collector(subject, num_envs)
                collector.collect(num_envs * self.length // 2)
                seconds = self.clock.time(lambda c=collector, n=num_envs: c.collect(n * 32), seconds=0.5) / 32
                results[f"{name}, {num_envs} envs"] = round(1e3 * seconds, 3)
        return results

    def parity(self) -> dict[str, Any]:
        """Losses of recorded and of ordinary updates; entries in which an environment differs from the CPU's."""
        losses = {}
        for name, more in {"one by one": (), "recorded": RECORDED}.items():
            subject = self.subject(*more, "agent.loss.num_target_critics=4")
            batch = batch_of(subject, 8, min(self.length, 101))
            losses[name] = [round(float(subject.learner.update(batch)["loss"]), 5) for _ in range(10)]
        results: dict[str, Any] = {"losses": losses}
        for env in (
            "dark_key_to_door",
            "mazerunner",
            "wind",
            "tmaze",
            "frozenlake",
            "package_delivery",
            "bandits",
        ):
            played = {device: play(Subject([f"env={env}"], device)) for device in ("cpu", "cuda")}
            names = [
                key
                for key in played["cpu"].keys(True, True)
                if not torch.equal(*(p[key] for p in played.values()))
            ]
            results[env] = "equal" if not names else [str(name) for name in names]
        return results

    def sampling(self) -> dict[str, Any]:
        """Milliseconds of the host to sample a batch, and to sample it and begin its copy."""
        subject = Subject([*self.door, "env.time_limit=500"], "cpu")
        data = pack(subject.make_env(4 if self.tiny else 64).rollout(500, break_when_any_done=False))
        with tempfile.TemporaryDirectory() as folder:
            buffer = TrajectoryReplayBuffer(
                Path(folder) / "r", capacity=10**6, batch_size=16, transform=Window(501)
            )
            buffer.extend(data)
            batches = Prefetcher(buffer.sample, "cuda")

            def fetch() -> None:
                batches.fetch()
                batches.take()

            clock = Clock("cpu")
            return {
                name: round(1e3 * clock.time(call), 2)
                for name, call in {"sample": buffer.sample, "fetch": fetch}.items()
            }

    def tests(self) -> dict[str, Any]:
        """The last line of the tests that need a GPU."""
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
        return {"status": done.returncode, "last": done.stdout.strip().splitlines()[-1:]}

    def settings(self) -> dict[str, tuple[str, ...]]:
        """Settings that are compared, by name."""
        return {
            "float32": (),
            "bfloat16": BFLOAT16,
            "float32, recorded": RECORDED,
            "bfloat16, recorded": (*BFLOAT16, *RECORDED),
        }

    def collector(self, subject: Subject, num_envs: int) -> Any:
        """The collector of the configuration, with its exploration."""
        exploration = instantiate(subject.cfg.exploration, action_space=subject.agent.action_space)
        given = {"policy": subject.agent.policy(), "replay": Nowhere(), "exploration": exploration}
        return instantiate(subject.cfg.collector, env=subject.make_env(num_envs), **given)


def batch_of(subject: Subject, size: int, length: int) -> Any:
    """Sequences as a run gets them: counted on the host."""
    return with_num_segments(subject.batch(size, length).cpu()).to(subject.device)


def python() -> list[str]:
    """What runs a script as this one was run, so that an emulated device is there for it, too."""
    return [sys.executable, *sys.orig_argv[1 : sys.orig_argv.index(sys.argv[0])]]


ORDER = ("machine", "smoke", "waits", "update", "acting", "parity", "sampling", "tests")


def play(subject: Subject) -> TensorDict:
    """Sixty steps of 64 environments with actions that are drawn on the CPU."""
    torch.manual_seed(1)
    env, steps = subject.make_env(64), []
    timestep, spec = env.reset(), env.full_action_spec["action"].to("cpu")
    for _ in range(60):
        timestep["action"] = spec.rand().to(subject.device)
        step, timestep = env.step_and_maybe_reset(timestep)
        steps.append(step["next"].cpu())
    return torch.stack(steps)


def waits_of(call: Callable[[], Any]) -> dict[str, int]:
    """How often PyTorch says that the host waited for the device, by line of the project."""
    lines: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchron" in str(message):
            stack = [frame for frame in traceback.extract_stack() if f"{os.sep}yamame" in frame.filename]
            lines[f"{Path(stack[-1].filename).name}:{stack[-1].lineno}" if stack else "elsewhere"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return dict(lines)


def projected(results: dict[str, Any]) -> dict[str, float]:
    """Minutes of the published fit by what was measured, evaluations aside."""
    minutes = {}
    found = (results.get(name) for name in ("update", "acting"))  # why a probe failed is a text
    updates, steps = (result if isinstance(result, dict) else {} for result in found)
    rows = {"float32, 12 envs": ("float32", 12), "bfloat16, recorded, 128 envs": ("bfloat16, recorded", 128)}
    for name, (setting, num_envs) in rows.items():
        update = updates.get(setting, {}).get("ms")
        step = steps.get(f"{setting}, {num_envs} envs")
        if update and step:
            minutes[name] = round((UPDATES * update + STEPS / num_envs * step) / 6e4, 1)
    return minutes


def table(results: dict[str, Any]) -> str:
    """Predictions beside what was measured, in Markdown."""
    rows = [
        f"| {name} | {PREDICTED[name]} | {json.dumps(results.get(name, 'not run'))} |" for name in PREDICTED
    ]
    return "\n".join(["| probe | predicted | measured |", "|---|---|---|", *rows])


def run_all(minutes: float, out: Path, tiny: bool) -> None:
    """Runs the probes one after the other and writes what they measured."""
    begin, results = time.monotonic(), dict[str, Any]()
    for name in ORDER:
        left = 60 * minutes - (time.monotonic() - begin)
        command = [*python(), __file__, "--probe", name, *(["--tiny"] if tiny else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, left))
            lines = done.stdout.strip().splitlines()
            results[name] = (
                json.loads(lines[-1]) if done.returncode == 0 else (done.stderr + done.stdout)[-1500:]
            )
        except subprocess.TimeoutExpired:
            results[name] = f"not done after {left:.0f} s"
        results["fit"] = projected(results)
        out.mkdir(parents=True, exist_ok=True)
        (out / "gpu.json").write_text(json.dumps({"predicted": PREDICTED, "measured": results}, indent=1))
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    print(table(results))


def main() -> None:
    """Runs one probe or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--probe", choices=ORDER)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--tiny", action="store_true", help="small networks, to try the probes themselves")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "first_gpu_run: torch must see a GPU, there is none; `nox -s tests -- tests/gpu_emulation` emulates one"
        )
    if options.probe is None:
        run_all(options.minutes, options.out, options.tiny)
    else:
        print(json.dumps(getattr(Probes(options.tiny), options.probe)(), default=str))


if __name__ == "__main__":
    main()
