"""The same updates by one rank that records nothing, and by two ranks that record: what they end
with.

    python tests/gpu_emulation/program.py run tests/gpu_emulation/ranks.py FOLDER

Writes ``<world>-<rank>.pt`` into the folder. It computes in float64, as
`tests/distributed/learn.py` does.
"""

import importlib.util
import os
import socket
import sys
from collections import Counter
from pathlib import Path

import torch
from emulated_cuda.counting import counted
from tensordict import TensorDict
from yamame import distributed
from yamame.actions import distributions

LEARN = Path(__file__).parents[1] / "distributed" / "learn.py"
NUM = 7
PADDED, BROKEN = 4, 5
"""Updates for which rank 1 gets a batch of another shape, and one with a reward that is no number.
Three ordinary updates come before the first that is recorded.
"""
SETTINGS = ("device=cuda", "optimizer=adamw", "schedule.autocast=null", "schedule.regulator=null")
KINDS = {"transformer, maze": ("encoder.sigma_reparam=true",), "gru, box": ()}


def load():
    spec = importlib.util.spec_from_file_location("learn", LEARN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def learned(learn, overrides, given, folder):
    """Metrics, launches and messages of every update, and the state after it."""
    _, _, _, learner = learn.built(overrides, folder)
    seen = []
    for number, batch in enumerate(given):
        batch = batch.apply(lambda value: value.double() if value.is_floating_point() else value)
        share = batch[distributed.rank() :: distributed.world_size()].clone()
        if number == PADDED and distributed.rank() == 1:
            share = torch.stack([learn.padded(one, len(one) + 1) for one in share])
        share = share.to("cuda")
        with counted() as counts:
            metrics = learner.update(share)
        kinds = Counter()
        for (kind, _), number_of in counts.kernels.items():
            kinds[kind] += number_of
        state = {name: value.cpu().clone() for name, value in learner.loss.state_dict().items()}
        seen.append(
            {
                "metrics": {name: value.cpu() for name, value in metrics.items()},
                "state": state,
                "launches": kinds["graph launch"],
                "messages": kinds["all_reduce"],
                "kernels": kinds.total(),
                "waits": counts.waits.total(),
            }
        )
    return seen


class Part:
    """Part of a checkpoint with a tensor on the device."""

    def __init__(self, rank: int) -> None:
        self.held = TensorDict({"x": torch.full((2,), rank, device="cuda")}, [2], device="cuda")

    def state_dict(self) -> dict:
        return {"held": self.held}


def rank_of(world: int, rank: int, port: int, learn, data, folder: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    # As on two machines: each process has an emulated device of its own.
    os.environ |= {**place, "RANK": str(rank), "LOCAL_RANK": "0"}
    recorded = ()
    if world > 1:
        os.environ["TORCHELASTIC_RUN_ID"] = "test"
        recorded = ("schedule.cuda_graph=true",)
    with distributed.process_group("cuda"):
        seen = {}
        for kind, given in data.items():
            overrides = (*learn.CASES[kind], *SETTINGS, *KINDS[kind], *recorded)
            seen[kind] = learned(learn, overrides, given, folder / f"{world}-{rank}" / kind)
        torch.save(seen, folder / f"{world}-{rank}.pt")
        torch.save(distributed.PerRank(Part(rank)).state_dict(), folder / f"states-{rank}.pt")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    learn = load()
    data = {}
    for kind in KINDS:
        data[kind] = learn.batches((*learn.CASES[kind], "optimizer=adamw"), NUM)
        data[kind][BROKEN]["next", "reward"][1, 0] = torch.nan
    learn.compute_in_float64()
    distributions.TanhNormalDistribution.rsample = lambda self, shape=(): self.mode
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    children = []
    for world in (1, 2):
        for rank in range(world):
            children.append(os.fork())
            if children[-1] == 0:
                rank_of(world, rank, port, learn, data, folder)
                os._exit(0)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(len(failed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
