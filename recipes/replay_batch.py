"""Recompute the loss of a skipped update, and show which numbers are not finite.

    yamame replay_batch runs/mine/nonfinite/step-000000000120-1 [key=value]
    yamame replay_batch bundle=runs/mine/nonfinite/step-000000000120-1 device=cuda

A run writes a bundle when an update is not finite: a checkpoint with the batch, the random state,
the weights and statistics before the update, and the configuration. The recipe prints the first
number that is not finite of every batch entry, weight, loss term and gradient, and the largest
numbers of the batch. On a CPU the numbers are those of the run, bit for bit.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    first = sys.argv[1] if len(sys.argv) > 1 else "-"
    if Path(first).exists() or ("=" not in first and not first.startswith("-")):  # a bundle alone
        sys.argv[1] = f"bundle={first}"
    # Prints help and usage errors before torch is imported.
    check_command_line("replay_batch")

# isort: split
from collections.abc import Mapping
from contextlib import closing

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.settings import ReplayBatchConfig
from yamame.files.checkpoint import Checkpointer
from yamame.report.terminal import print_columns
from yamame.runs.build import build_agent, build_env, build_learner
from yamame.runs.bundles import bundle_file, describe_tensors, recompute
from yamame.runs.trained import load_trained
from yamame.system.messages import one_line
from yamame.training.learner import Learner

NUM_LARGEST = 3
"""Batch entries that are shown for their size."""
MOST_ROWS = 8
"""Rows of a table."""


def replay(cfg: ReplayBatchConfig) -> float:
    """Run the recipe; return the number of entries, terms and gradients that are not finite."""
    path = bundle_file(Path(cfg.bundle))
    trained = load_trained(path, device=cfg.device, trust=list(cfg.trust))
    # Recorded and compiled updates cannot be computed term by term.
    config = OmegaConf.merge(trained.config, {"schedule": {"cuda_graph": False, "compile": False}})
    bundle = Checkpointer(path.parent).load({"loss": None, "update": None}, which=path).values
    try:
        learner = rebuild(config, bundle["loss"])
        batch = bundle["update"]["batch"].to(cfg.device)
        entries = {}
        for key, value in batch.items(True, True):
            entries[".".join(key) if isinstance(key, tuple) else key] = value
        parts = {"batch": entries, "weights": bundle["loss"]}
        set_random_state(bundle["update"]["rng"], cfg.device)
        parts |= recompute(learner, batch)
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        # A bundle may be of another version, or damaged in any way.
        reason = one_line(error, longest=200)
        message = f"{path} must hold an update of its configuration: {reason}"
        raise UsageError(message, key="bundle") from error

    rows = describe_tensors(entries)
    rows.sort(key=lambda row: -abs(row["number"]))
    print_columns(f"largest of the batch: {len(rows[:NUM_LARGEST])}", rows[:NUM_LARGEST])
    num_bad = 0
    firsts = []
    for part, tensors in parts.items():
        bad = [row for row in describe_tensors(tensors) if row["not finite"]]
        if bad:
            print_columns(f"{part}: {len(bad)}", bad[:MOST_ROWS])
            first = bad[0]
            firsts.append(f"{part} {first['what']}{first['at']} = {first['number']:g}")
            num_bad += len(bad)
    print(f"not finite: {'; '.join(firsts)}" if firsts else f"everything is finite on {cfg.device}")
    return float(num_bad)


def rebuild(config: DictConfig, state: Mapping[str, Tensor]) -> Learner:
    """Build the learner as it was before the update."""
    with closing(build_env(config, num_envs=1, seed=0)) as env:
        learner = build_learner(config, build_agent(config, env))
    learner.loss.load_state_dict(state)
    return learner


def set_random_state(rng: Mapping[str, Tensor], device: str) -> None:
    """Set the generators to their state before the update."""
    torch.set_rng_state(rng["cpu"])
    if "cuda" in rng and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(rng["cuda"], device)


if __name__ == "__main__":
    main(replay, config_name="replay_batch")
