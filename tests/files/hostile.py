"""Runs commands on directories that a stranger wrote, in a process that records what it touches.

It reads a mapping of JSON from the standard input, ``home`` (a folder with ``runs/mine``, ``agent``
and ``victim``) and ``work`` (an empty folder), and prints one of results: for each case the
outcomes of its commands and the events outside of its folder.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import struct
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

import torch
import yamame
from yamame.checks import UsageError
from yamame.files.atomic import write_json
from yamame.files.checkpoint import Checkpointer
from yamame.files.run_directory import RunDirectory
from yamame.replay.disk.files import _checksum
from yamame.replay.disk.follower import TrajectoryFollower
from yamame.runs.bundles import bundle_file
from yamame.runs.trained import load_trained
from yamame.system.messages import one_line
from yamame.tracking import send_rest
from yamame.tracking.log import read_metrics

warnings.simplefilter("ignore")
SECONDS = 20
"""Seconds after which a command counts as hanging."""
CHANGING = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link")
CASES = {}


class Watch:
    """Records paths outside of a folder that this process changes, and those of ``victim`` that it
    opens at all.
    """

    def __init__(self):
        self.own = self.victim = None
        self.opened = set()
        self.outside = []

    def __call__(self, event, arguments):
        if self.own is None:
            return
        if event == "socket.connect":
            self.outside.append(f"connect {arguments[1]}")
        if event == "open":
            path, _, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            self.note(event, path, writes)
        elif event in CHANGING:
            self.note(event, arguments[0], True)
            if event == "os.rename":
                self.note(event, arguments[1], True)

    def note(self, event, path, changes):
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor that was opened before
        own, self.own = self.own, None  # what follows is no event
        real = os.path.realpath(os.fsdecode(path))
        is_own = real.startswith(f"{own}{os.sep}") or real == own
        if is_own:
            self.opened.add(real)
        elif real.startswith(self.victim) or (changes and not real.startswith("/dev/")):
            self.outside.append(f"{event} {real}")
        self.own = own


def case(*commands):
    """Registers a function that makes something hostile of the copy of a run, and the commands that
    must refuse it.
    """

    def register(make):
        CASES[make.__name__] = (make, commands)
        return make

    return register


def evaluate(folder):
    load_trained(folder / "runs" / "mine")


def load(folder):
    yamame.load(folder / "agent")


def load_run(folder):
    yamame.load(folder / "runs" / "mine")


def resume(folder):
    RunDirectory.open(folder / "runs", "mine", resume=True).close()


def restore(folder):
    Checkpointer(folder / "runs" / "mine" / "checkpoints").load({"progress": None, "machine": None})


def sync(folder):
    send_rest(folder / "runs" / "mine")


def replay(folder):
    follower = TrajectoryFollower(folder / "runs" / "mine" / "replay")
    follower.verify()
    follower.get([0])


def replay_batch(folder):
    path = bundle_file(folder / "runs" / "mine" / "nonfinite" / "step-000000000001-1")
    Checkpointer(path.parent).load({"loss": None}, which=path)


def metrics(folder):
    list(read_metrics(folder / "runs" / "mine"))


def export(folder):
    yamame.load(folder / "agent").save_pretrained(folder / "runs" / "mine" / "exported")


WHOLE_RUN = (evaluate, load_run, resume, sync)


def victim_of(run):
    return run.parents[1] / "victim"


def link(run, name, target):
    place = run / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target if Path(target).is_absolute() else victim_of(run) / target)


def checkpoint_of(run):
    return max((run / "checkpoints").glob("step-*.pt"))


def with_payload(run, change):
    """Writes the checkpoint of a run anew, as torch alone does."""
    path = checkpoint_of(run)
    payload = torch.load(path, weights_only=True)
    changed = change(payload)
    torch.save(payload if changed is None else changed, path)


def weights(run, change):
    def in_payload(payload):
        state = dict(payload["components"]["agent"])
        name = next(name for name, value in state.items() if value.ndim > 1)
        state[name] = change(state[name])
        payload["components"] = {**payload["components"], "agent": state}
        payload["components"].pop("averaged", None)

    with_payload(run, in_payload)


def component(run, name, value):
    with_payload(run, lambda payload: payload["components"].update({name: value}))


def configured(run, change):
    with_payload(run, lambda payload: change(payload["config"]))


def agent_config(run, change):
    from yamame.deploy.folder import sealed

    path = run.parents[1] / "agent" / "config.json"
    data = json.loads(path.read_text())
    change(data)
    write_json(path, sealed(data))


def manifest(run, change):
    folder = run / "replay"
    path = max(folder.glob("*.manifest"), key=lambda file: int(file.stem))
    data = json.loads(path.read_text())
    del data["crc"]
    change(data)
    for file in folder.glob("*.manifest"):
        file.unlink()
    path.write_text(json.dumps({"crc": _checksum(data), **data}))


def sparse_file(path, size=2**42):
    with path.open("r+b") as file:
        file.truncate(size)


# Links.

for place in ("checkpoints", "replay", "evaluation", "play", "nonfinite", "model/data"):
    name = f"folder {place} is a link"
    CASES[name] = (lambda run, place=place: link(run, place, "folder"), WHOLE_RUN)
for place in (
    *("mlflow.jsonl", "metrics.jsonl", "summary.json", "mlflow.json", "config.yaml", ".lock"),
    *("replay/draft", "replay/lock", "replay/0.index", "checkpoints/step-000000000001.pt"),
    *(".former", f"summary.json.{os.getpid()}.partial", "a/b/c/deep"),
):
    name = f"file {place} is a link"
    CASES[name] = (lambda run, place=place: link(run, place, "thesis.tex"), WHOLE_RUN)


@case(resume, sync)
def a_lock_with_another_name_outside(run):
    (run / ".lock").unlink()
    os.link(victim_of(run) / "thesis.tex", run / ".lock")


@case(load, export)
def an_agent_of_links(run):
    agent = run.parents[1] / "agent"
    (agent / "model.safetensors").rename(victim_of(run) / "model.safetensors")
    (agent / "model.safetensors").symlink_to(victim_of(run) / "model.safetensors")


def evaluate_file(folder):
    load_trained(folder / "runs" / "mine" / "checkpoints" / "step-000000000001.pt")


@case(evaluate_file)
def a_checkpoint_that_leads_out_of_its_folder(run):
    link(run, "checkpoints/step-000000000001.pt", "folder/step-000000000001.pt")


@case(replay_batch)
def a_bundle_of_links(run):
    link(run, "nonfinite/step-000000000001-1/step-000000000001.pt", "thesis.tex")


# Pipes.

for place in ("mlflow.jsonl", "metrics.jsonl", "replay/0.index", "replay/9.manifest", "own/pipe"):

    def make(run, place=place):
        (run / place).unlink(missing_ok=True)
        (run / place).parent.mkdir(exist_ok=True)
        os.mkfifo(run / place)

    CASES[f"{place} is a pipe"] = (make, WHOLE_RUN)


@case(load)
def an_agent_with_a_pipe(run):
    (run.parents[1] / "agent" / "config.json").unlink()
    os.mkfifo(run.parents[1] / "agent" / "config.json")


@case(*WHOLE_RUN)
def a_socket(run):
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(run)
        server.bind("socket")
        os.chdir("/")


@case(*WHOLE_RUN)
def folders_without_end(run):
    (run / "/".join(["a"] * 100)).mkdir(parents=True)


# Sizes.


@case(evaluate, load_run)
def a_compressed_checkpoint(run):
    weights(run, lambda value: torch.zeros(2**24))
    path = checkpoint_of(run)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@case(evaluate, load_run)
def a_checkpoint_whose_list_of_members_lies_elsewhere(run):
    # Python finds the list right before the end record, PyTorch where this record says.
    content = checkpoint_of(run).read_bytes()
    checkpoint_of(run).write_bytes(bytes(64) + content)


@case(evaluate, load_run)
def a_checkpoint_of_holes(run):
    sparse_file(checkpoint_of(run))


@case(load)
def weights_of_holes(run):
    sparse_file(run.parents[1] / "agent" / "model.safetensors")


@case(load)
def a_configuration_of_holes(run):
    sparse_file(run.parents[1] / "agent" / "config.json")


@case(evaluate, load_run)
def an_expanded_tensor(run):
    weights(run, lambda value: torch.zeros(1).expand(10**12))


@case(evaluate, load_run)
def lists_of_the_same_lists(run):
    nested = [0]
    for _ in range(60):
        nested = [nested, nested]
    with_payload(run, lambda payload: payload["config"].update(surprise=nested))


@case(load_run)
def a_million_discount_factors(run):
    configured(run, lambda config: config["agent"].update(gammas=[0.9] * 10**6, multi_gamma=True))


@case(load)
def a_thousand_discount_factors(run):
    def change(data):
        data["config"]["agent"].update(gammas=[0.9] * 1000, multi_gamma=True)

    agent_config(run, change)


@case(load)
def two_huge_specs(run):
    spec = {"kind": "unbounded", "shape": [2**27], "dtype": "float32"}

    def change(data):
        data["observation_spec"]["entries"].update(a=spec, b=spec)

    agent_config(run, change)


@case(replay)
def a_manifest_of_many_parts(run):
    manifest(run, lambda data: data["held"].update(parts=[[0, 0, 1]] * 10**5))


# Forms.

TENSORS = {
    "meta": lambda value: value.to("meta"),
    "sparse": lambda value: value.to_sparse(),
    "quantized": lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
    "nested": lambda value: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "complex": lambda value: value.to(torch.complex64),
    "flags": lambda value: value > 0,
    "text": lambda value: "x",
    "nan": lambda value: torch.full_like(value, torch.nan),
}


def use(folder):
    trained = load_trained(folder / "runs" / "mine")
    with contextlib.closing(trained.build_env(num_envs=1, seed=0)) as env:
        trained.build_agent(env)


for kind, change in TENSORS.items():
    CASES[f"weights that are {kind}"] = (
        lambda run, change=change: weights(run, change),
        (use, load_run),
    )


@case(use, load_run)
def weights_whose_names_are_no_texts(run):
    component(run, "agent", {(1, 2): torch.ones(2)})


@case(load)
def a_horizon_beyond_all_numbers(run):
    agent_config(run, lambda data: data.update(horizon=2**70))


@case(load)
def a_step_that_is_a_text(run):
    agent_config(run, lambda data: data["about"].update(step="x"))


@case(load_run, restore)
def a_progress_that_is_a_number(run):
    component(run, "progress", 5)


@case(load_run, restore)
def versions_that_are_a_list(run):
    component(run, "machine", {"threads": 1, "versions": [1, 2]})


@case(evaluate, load_run)
def a_configuration_that_decodes_to_nothing(run):
    with_payload(run, lambda payload: payload.update(config={"__yamame__": "ndarray"}))


@case(replay)
def a_field_without_a_name(run):
    manifest(run, lambda data: data["fields"].append([[], "float32", [1]]))


@case(replay)
def a_field_of_texts(run):
    manifest(run, lambda data: data["fields"].append([["observation"], "float32", ["x"]]))


@case(replay)
def two_fields_in_one_place(run):
    def change(data):
        key, dtype, shape = data["fields"][0]
        data["fields"].append([[*key, "x"], dtype, shape])

    manifest(run, change)


@case(replay)
def timesteps_without_content(run):
    manifest(run, lambda data: data.update(fields=[[["a"], "float32", [0]]]))


@case(replay)
def lengths_whose_sum_overflows(run):
    pairs = struct.pack("<8q", *[2**62, zlib.crc32(b"")] * 4)
    (run / "replay" / "0.index").write_bytes(pairs)
    manifest(run, lambda data: data["held"].update(parts=[[0, 0, 4]]))


# Trust.


@case(evaluate, load_run)
def a_configuration_that_trusts_itself(run):
    def change(config):
        config.update(trust=["evil."])
        config["encoder"] = {"_target_": "evil.Encoder"}

    configured(run, change)


@case(evaluate)
def a_record_of_trust_in_the_run(run):
    def change(config):
        config["env"].update(_target_="yamame_envs.Gym", id="evil:Evil-v0")

    configured(run, change)
    state = run / "yamame" / "trusted.jsonl"
    state.parent.mkdir()
    entry = {"path": str(run), "packages": ["evil."], "trust": ["evil."]}
    state.write_text(json.dumps(entry) + "\n")


@case(evaluate)
def an_environment_that_opens_a_file(run):
    settings = {"xml_file": str(victim_of(run) / "thesis.tex")}
    env = {"_target_": "yamame_envs.Gym", "id": "Ant-v5", "settings": settings}
    configured(run, lambda config: config.update(env=env))


@case(evaluate)
def an_environment_that_leaves_its_folder(run):
    settings = {"map": ["a/../../x"]}
    env = {"_target_": "yamame_envs.Gym", "id": "CartPole-v1", "settings": settings}
    configured(run, lambda config: config.update(env=env))


@case(evaluate, load_run)
def an_encoder_that_downloads_weights(run):
    settings = {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet18"}}
    encoder = {"_target_": "yamame.trajectory.HFEncoder", "settings": settings}
    configured(run, lambda config: config.update(encoder=encoder))


# Nothing hostile.


@case()
def nothing(run):
    (run / "notes.txt").write_text("mine")


def evaluate_recipe(folder):
    yamame.evaluate(f"run={folder / 'runs' / 'mine'}", "num_episodes=1")


def resumed_training(folder):
    # As the run was made, with a larger budget.
    yamame.train(
        *("env=tmaze", "env.length=2", "encoder=gru", "debug=tiny", "logger=none", "resume=true"),
        *(f"run.root={folder / 'runs'}", "run.name=mine", "budget.env_steps=128"),
    )


CONTROLS = (
    *(evaluate_recipe, resumed_training, use, load_run, load, resume, restore, replay),
    *(replay_batch, metrics, export),
)


def careless(folder):
    (folder / "runs" / "mine" / "link").write_text("lost")


CARELESS = "a command that follows links"
CASES[CARELESS] = (lambda run: link(run, "link", "thesis.tex"), (careless,))
"""What the watch and the comparison of the victim must report."""


def outcome(command, folder):
    """How a command has ended, in one line."""

    def hangs(number, frame):
        raise TimeoutError("hangs")

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            command(folder)
    except UsageError as error:
        return f"refused: {one_line(error)}"
    except ValueError as error:
        return f"refused: {one_line(error)}" if "TrajectoryStorage" in str(error) else repr(error)
    except BaseException as error:
        return f"{type(error).__name__}: {one_line(error)}"
    finally:
        signal.alarm(0)
    return "accepted"


def contents(folder):
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes().hex() if path.is_file() else ""
        found[str(path)] = [status.st_mode, content]
    return found


class Trial:
    """Copies of a folder, each made hostile and used in its own place."""

    def __init__(self, home, work):
        self.home, self.work = home, Path(work)
        self.watch = Watch()
        self.number = 0
        sys.addaudithook(self.watch)

    def __call__(self, make, commands):
        self.number += 1
        home = self.work / str(self.number) / "home"
        shutil.copytree(self.home, home, symlinks=True)
        make(home / "runs" / "mine")
        watch = self.watch
        watch.victim = str(home / "victim")
        watch.outside, watch.opened = [], set()
        before = contents(home / "victim")
        outcomes = {}
        for command in commands:
            own = home if command in (export, resumed_training) else home / "runs" / "mine"
            watch.own = str(home / "agent" if command is load else own)
            outcomes[command.__name__] = outcome(command, home)
            watch.own = None
        names = []
        for path in map(Path, watch.opened):
            if not path.is_dir() and path.parent.is_relative_to(home):
                names.append(str(path.relative_to(home)))
        return {
            "outcomes": outcomes,
            "outside": watch.outside,
            "opened": sorted(names),
            "is_whole": contents(home / "victim") == before,
        }


def main():
    asked = json.load(sys.stdin)
    trial = Trial(asked["home"], asked["work"])
    results = {}
    for name, (make, commands) in CASES.items():
        results[name] = trial(make, commands or CONTROLS)

    # Whatever any of the commands opens may be a link or a pipe.
    for name in results["nothing"]["opened"]:
        commands = WHOLE_RUN if name.startswith("runs/mine/") else (load,)

        def linked(run, name=name):
            home = run.parents[1]
            link(home, name, home / "victim" / "thesis.tex")

        def piped(run, name=name):
            place = run.parents[1] / name
            place.unlink(missing_ok=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(place)

        if name.startswith(("agent/", "runs/mine/")):
            results[f"opened {name} is a link"] = trial(linked, commands)
            results[f"opened {name} is a pipe"] = trial(piped, commands)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
