"""The script that measures on a GPU runs without one, whatever its parts do, with the packages of
the GPU machine.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib import metadata
from io import BytesIO
from pathlib import Path

import psutil
import pytest
import yamame
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools/first_gpu_run.py"

# Both are executed when an interpreter starts: PYTHONPATH has a folder with one of them as
# sitecustomize.py.
HIDING = """
import json, sys
from importlib.machinery import PathFinder

HIDDEN = set(json.loads('''{names}'''))
MISSING = "jinja2"  # neither importable nor among the packages that are installed

class Finder(PathFinder):
    @classmethod
    def find_distributions(cls, *arguments):
        found = PathFinder.find_distributions(*arguments)
        return [each for each in found if each.metadata["Name"].lower() != MISSING]

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN | {{MISSING}}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""
HANGING = """
import signal, subprocess, sys, time
from pathlib import Path

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

if "part" in sys.orig_argv and {parts}.intersection(sys.orig_argv):
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    command = [sys.executable, "-c", program]
    child = subprocess.Popen(command, start_new_session=True)  # in no process group of the part
    with Path({pids!r}).open("a") as file:
        file.write(f"{{child.pid}}\\n")
    hang()
"""


FAILING = """
import os, sys

if "part" in sys.orig_argv and "speed:acting" in sys.orig_argv:
    os._exit(7)
"""


@pytest.fixture
def customized(tmp_path, monkeypatch):
    """Has a text executed whenever Python starts in a process that a test starts."""

    def customized(text):
        (tmp_path / "sitecustomize.py").write_text(text)
        path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    return customized


@pytest.fixture
def tool(monkeypatch):
    """A module of the script."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module


def command(out, *arguments):
    return [
        sys.executable,
        str(SCRIPT),
        "run",
        "--tiny",
        "--device=cpu",
        f"--out={out}",
        *arguments,
    ]


def results(out):
    """Values by part and name."""
    path = out / "results.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return {(line["part"], line["name"]): line["value"] for line in lines}


def assert_ended(pids):
    numbers = [int(text) for text in pids.read_text().split()]
    assert numbers
    end = time.monotonic() + 5
    while time.monotonic() < end and any(map(runs, numbers)):
        time.sleep(0.1)
    assert not [number for number in numbers if runs(number)]


def runs(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def installed(requirement):
    """The version that is installed here, and what it requires."""
    asked = Requirement(requirement)
    version = metadata.version(asked.name)
    assert asked.specifier.contains(version, prereleases=True), f"{requirement}, not {version}"
    return version, metadata.requires(asked.name) or []


def hidden_modules(wheels):
    """Modules that are importable here, but neither preinstalled on the GPU machine nor carried
    there.
    """
    python = ".".join(map(str, sys.version_info[:2]))
    present = set(wheels.carried(installed, python)) | {"yamame"}
    waiting = list(wheels.PREINSTALLED)
    while waiting:
        name = canonicalize_name(waiting.pop())
        present.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):  # triton, say
            needed = [Requirement(text) for text in metadata.requires(name) or []]
            applying = [r for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
            waiting += [r.name for r in applying if canonicalize_name(r.name) not in present]
    owners = metadata.packages_distributions()
    return {
        name
        for name, own in owners.items()
        if not present.intersection(map(canonicalize_name, own))
    }


@pytest.mark.timeout(1800)
def test_all_others_have_results_where_a_part_hangs_one_fails_and_a_package_is_missing(
    customized, tool, tmp_path
):
    """With the packages that will be installed on the GPU machine, but one."""
    hidden = hidden_modules(tool("gpu.wheels"))
    assert {"mlflow", "nox"} <= hidden  # of the packages that a developer has
    assert not hidden & {"torch", "yaml", "tensordict", "_pytest", "sympy", "yamame", "antlr4"}
    assert not hidden & {"pandas", "pydantic", "pydantic_core", "hydra_plugins"}
    hanging = HANGING.format(parts={"parity:acting"}, pids=str(tmp_path / "pids"))
    customized(HIDING.format(names=json.dumps(sorted(hidden))) + hanging + FAILING)
    out = tmp_path / "out"
    # One group of each: all of them run on the emulated device.
    parts = (
        "--parts=machine:products,parity:acting,smoke:door,speed:acting,parity:losses,tests,"
        "speed:updates,fit"
    )
    limits = ["--minutes=30", "--limit=parity:acting=5"]
    begin = time.monotonic()
    done = subprocess.run(command(out, parts, *limits), capture_output=True, text=True, check=False)
    print(f"{time.monotonic() - begin:.0f} s")
    printed = done.stdout + done.stderr + (out / "output.txt").read_text()[-5000:]
    assert done.returncode == 1, printed
    found = results(out)
    ended = {name: value for (part, name), value in found.items() if part == "run"}
    assert ended["packages missing"] == ["jinja2"]
    assert ended["parity:acting ended"] == "stopped at its limit of 5 s"
    assert ended["speed:acting ended"] == "status 7"
    others = {name: value for name, value in ended.items() if name.endswith(" ended")}
    assert list(others.values()).count("status 0") == 6, printed
    assert_ended(tmp_path / "pids")
    assert found["smoke", "door"] == "ok"
    assert found["parity", "recorded losses, largest relative difference"] == 0
    assert found["tests", "collected"] >= 64
    assert found["speed", "update of 16 x 501, float32"] > 0
    assert isinstance(found["fit", "held-out return at the end"], float)
    assert "held_out_return |\n" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "not measured" not in line]
    assert any(
        line.startswith("| parity | recorded losses") and line.endswith("| yes |") for line in rows
    )
    assert done.stdout.endswith((out / "table.md").read_text() + "\n")


def test_a_part_that_hangs_is_killed_with_its_children_and_ends_no_other(customized, tmp_path):
    out, pids = tmp_path / "out", tmp_path / "pids"
    customized(HANGING.format(parts={"parity"}, pids=str(pids)))
    parts = "--parts=machine:products,parity,machine:copies"
    done = subprocess.run(
        command(out, parts, "--limit=parity=2"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    found = results(out)
    assert found["run", "parity ended"] == "stopped at its limit of 2 s"
    assert found["run", "machine:copies ended"] == "status 0"
    assert {("machine", "product in float32"), ("machine", "copy")} <= found.keys()
    assert_ended(pids)


DAEMON = """
import os, signal, sys, time

read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # its parent ends at once, so that no chain of parents leads to it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(sys.argv[1], "w") as file:
            file.write(f"{os.getpid()}\\n")
        os.close(write)
        time.sleep(600)
    os._exit(0)
os.close(write)
os.read(read, 1)
"""


SUPERVISED = """
import os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from gpu import supervise

command = [sys.executable, "-c", sys.argv[2], "pids"]
sys.exit(supervise.run_limited(command, seconds=60, output=Path("output"), env=dict(os.environ)))
"""


def test_a_process_whose_parents_have_ended_is_killed(tmp_path):
    # In a process of its own, since all children of the process that supervises are ended.
    given = [sys.executable, "-c", SUPERVISED, str(SCRIPT.parent), DAEMON]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + (tmp_path / "output").read_text()
    assert_ended(tmp_path / "pids")


def test_the_whole_run_keeps_to_its_minutes_when_every_part_hangs(customized, tmp_path):
    out, pids = tmp_path / "out", tmp_path / "pids"
    customized(
        HANGING.format(
            parts={"machine", "smoke", "parity", "tests", "speed", "fit"}, pids=str(pids)
        )
    )
    begin = time.monotonic()
    done = subprocess.run(
        command(out, "--minutes=0.2"), capture_output=True, text=True, check=False
    )
    assert time.monotonic() - begin < 60 * 0.2 + 5, "the start of Python included"
    assert done.returncode == 1, done.stderr
    assert "no time was left" in results(out).values()
    assert_ended(pids)


def test_a_run_that_is_interrupted_ends_its_part_and_shows_what_it_has(customized, tmp_path):
    out, pids = tmp_path / "out", tmp_path / "pids"
    customized(HANGING.format(parts={"parity"}, pids=str(pids)))
    given = command(out, "--parts=machine:products,parity")
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not pids.exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, printed
    assert "| machine | product in float32 | at most 67 TFLOP/s | not measured" not in printed
    assert printed.endswith((out / "table.md").read_text() + "\n")
    assert_ended(pids)


def test_a_measurement_that_fails_costs_no_other_result(tool, tmp_path, monkeypatch):
    machine, job = tool("gpu.machine"), tool("gpu.job")

    def products(job):
        job.note("before", 1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(machine, "products", products)
    monkeypatch.setattr(machine, "attention", lambda job: None)
    own = job.Job("machine", "", "cpu", True, tmp_path, time.time() + 60, [])
    machine.run(own)
    found = results(tmp_path)
    assert found["machine", "before"] == 1
    assert "out of memory" in found["machine", "products"]
    assert ("machine", "copy") in found
    assert own.failures == ["products"]


@pytest.mark.parametrize(("choice", "known"), [("losses", True), ("loss", False)])
def test_a_group_that_a_part_does_not_have_is_a_failure(choice, known, tool, tmp_path):
    own = tool("gpu.job").Job("parity", choice, "cpu", True, tmp_path, time.time() + 60, [])
    for group in ("acting", "losses"):
        own.chosen(group)
    own.check_choice()
    assert (own.failures == []) == known


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_fit_is_that_of_the_paper_whatever_the_defaults_of_training_are(device, tool, tmp_path):
    own = tool("gpu.job").Job("fit", "", device, False, tmp_path, time.time() + 60, [])
    cfg = yamame.compose(*tool("gpu.fit").settings(own))
    assert (cfg.encoder.num_layers, cfg.encoder.d_model, cfg.encoder.sigma_reparam) == (
        3,
        256,
        True,
    )
    assert cfg.optimizer._target_.endswith("AdamW")
    assert (cfg.schedule.regulator, cfg.schedule.batch_timesteps) == (None, None)
    assert (cfg.schedule.batch_size, cfg.schedule.updates_per_step) == (24, 0.016)
    assert (cfg.env.time_limit, cfg.context_length) == (500, 501)
    assert (cfg.device, cfg.schedule.cuda_graph) == (device, device == "cuda")


def test_a_line_that_was_cut_off_and_an_earlier_run_are_left_out(tool, tmp_path):
    file = tool("gpu.results")
    for value in (1, 2):
        file.append(tmp_path, "run", "began", "now")
        file.append(tmp_path, "speed", f"value {value}", value)
        with (tmp_path / file.FILE).open("a") as cut:
            cut.write('{"part": "speed", "na\n')
    assert [line["name"] for line in file.read(tmp_path)] == ["began", "value 2"]


def test_predictions_are_judged_and_those_of_speed_are_not_in_a_rehearsal(tool, tmp_path):
    file = tool("gpu.results")
    names = {
        "update of 16 x 501, bfloat16, recorded": {3.0: "yes", 5.0: "**no**"},
        "waits of the host in a recorded step": {0: "yes", 1: "**no**"},
    }
    for rehearsal in (False, True):
        for name, verdicts in names.items():
            for value, verdict in verdicts.items():
                file.append(tmp_path, "run", "began", "now", rehearsal=rehearsal)
                file.append(tmp_path, "speed", name, value)
                row = next(
                    line for line in file.table(tmp_path).splitlines() if f"| {name} |" in line
                )
                shown = "" if rehearsal and "update" in name else verdict
                assert row.split("|")[-2].strip() == shown


def test_the_page_has_every_prediction(tool):
    page = (ROOT / "docs/lab/gpu/README.md").read_text()
    predictions = tool("gpu.results").PREDICTIONS
    assert len(predictions) > 20
    rows = [f"| {each.part} | {each.name} | {each} |" for each in predictions]
    assert [row for row in rows if row not in page] == []


# Wheels

INDEX = {
    "torchrl": {"0.14.1": ["torch", "tensordict<0.15,>=0.14.3", "orjson; python_version < '3.13'"]},
    "tensordict": {"0.15.0": ["numpy"], "0.14.3": ["orjson"]},
    "hydra-core": {"9.9": [], "1.3.8": ["omegaconf<2.4", "antlr4-python3-runtime==4.9.*"]},
    "omegaconf": {"2.3.1": ["PyYAML>=5", "own>=1", "more; extra == 'all'"]},
    "gymnasium": {"1.4.0": ["numpy", "old; python_version < '3.0'"]},
    "pydantic": {"2.13.0": ["pydantic-core==2.46.0", "test; extra == 'test'"]},
    "pydantic-core": {"2.47.0": [], "2.46.0": []}, "orjson": {"3.13.0": []}, "own": {"6.0": []},
    "antlr4-python3-runtime": {"4.13": [], "4.9.3": []},
}  # fmt: skip


def test_what_is_carried_keeps_to_all_bounds_and_is_complete(tool):
    index = dict(INDEX)

    def newest(requirement):
        asked = Requirement(requirement)
        own = index[canonicalize_name(asked.name)]
        version = next(version for version in own if asked.specifier.contains(version))
        return version, own[version]

    carried = tool("gpu.wheels").carried
    expected = {name: list(versions)[-1] for name, versions in INDEX.items()}
    assert carried(newest, "3.12") == expected
    index["tensordict"] = {"0.14.3": []}
    assert "orjson" in carried(newest, "3.12")
    assert "orjson" not in carried(newest, "3.13")


def wheel(folder, name, version, tag, requires=()):
    about = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{module}.py", "")
        archive.writestr(f"{info}/METADATA", "\n".join(about) + "\n")
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(f"{info}/RECORD", "")


BACKEND = """
import base64, sys, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "plain-2.0-{tag}.whl"
    with zipfile.ZipFile(f"{{folder}}/{{name}}", "w") as archive:
        metadata = "Metadata-Version: 2.1\\nName: plain\\nVersion: 2.0\\n"
        archive.writestr("plain-2.0.dist-info/METADATA", metadata)
        wheel = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {tag}\\n"
        archive.writestr("plain-2.0.dist-info/WHEEL", wheel)
        archive.writestr("plain-2.0.dist-info/RECORD", "")
    return name
"""


def source(folder, tag):
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = "
        '"own"\nbackend-path = ["."]\n',
        "own.py": BACKEND.format(tag=tag),
        "PKG-INFO": "Metadata-Version: 2.1\nName: plain\nVersion: 2.0\n",
    }
    with tarfile.open(folder / "plain-2.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            about = tarfile.TarInfo(f"plain-2.0/{name}")
            about.size = len(text)
            archive.addfile(about, BytesIO(text.encode()))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder in which alone pip looks for packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {
        "NO_INDEX": "1",
        "FIND_LINKS": str(folder),
        "CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def test_wheels_are_those_of_the_machine_that_is_named(tool, index, tmp_path):
    wheels = tool("gpu.wheels")
    for version, tag in {
        "1.0": "cp312-cp312-manylinux2014_x86_64", "1.1": "cp312-cp312-manylinux_2_17_x86_64",
        "1.2": "cp311-cp311-manylinux_2_17_x86_64", "1.3": "cp312-cp312-manylinux_2_34_x86_64",
        "1.4": "cp312-cp312-manylinux_2_17_aarch64", "1.5": "cp312-cp312-macosx_14_0_arm64",
    }.items():  # fmt: skip
        wheel(index, "binary", version, tag, ["other>=1"])
    folder = tmp_path / "wheels"
    folder.mkdir()
    got = wheels.download("binary", folder, "3.12", "manylinux_2_28_x86_64")
    assert got == ("1.1", ["other>=1"])
    assert wheels.download("binary<1.1", folder, "3.12", "manylinux_2_28_x86_64")[0] == "1.0"
    assert [path.name for path in folder.iterdir()] == [
        "binary-1.0-cp312-cp312-manylinux2014_x86_64.whl"
    ]
    with pytest.raises(
        SystemExit, match=r"binary>=1.2: no wheel for Python 3.12 on manylinux_2_28_x86_64"
    ):
        wheels.download("binary>=1.2", folder, "3.12", "manylinux_2_28_x86_64")


@pytest.mark.parametrize(
    ("tag", "fits"), [("py3-none-any", True), ("cp312-cp312-linux_x86_64", False)]
)
def test_a_source_is_built_if_it_is_pure_python(tag, fits, tool, index, tmp_path):
    source(index, tag)
    with (
        contextlib.nullcontext() if fits else pytest.raises(SystemExit, match=r"plain>=2: no wheel")
    ):
        assert tool("gpu.wheels").download(
            "plain>=2", tmp_path, "3.12", "manylinux_2_28_x86_64"
        ) == (
            "2.0",
            [],
        )
    assert (tmp_path / f"plain-2.0-{tag}.whl").exists() == fits
