"""Computes the loss of a refused update once more, and shows what of it is not finite.

    python recipes/replay_batch.py runs/mine/nonfinite/step-000000000120-1 [key=value]
    python recipes/replay_batch.py bundle=runs/mine/nonfinite/step-000000000120-1 device=cuda

A bundle is what a run keeps of an update that was not finite: a checkpoint with the batch, the
random state, the weights and statistics before the update, and the configuration. Of every entry of
the batch, every weight, every term of the loss and every gradient of a term that is not finite, the
first such number is shown; and the largest numbers of the batch. On a CPU the numbers are those of
the run, bit for bit.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    first = sys.argv[1] if len(sys.argv) > 1 else "-"
    if Path(first).exists() or ("=" not in first and not first.startswith("-")):  # a bundle alone
        sys.argv[1] = f"bundle={first}"
    answer("replay_batch")  # prints help and usage errors before torch is imported

# isort: split
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDictBase
from torch import Tensor, nn
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.files.checkpoint import Checkpointer
from yamame.report.terminal import print_columns
from yamame.runs.build import build_agent, build_env, build_learner
from yamame.runs.trained import load_trained
from yamame.training.learner import Learner

LARGEST, MOST = 3, 8
"""Entries of the batch that are shown for their size, and the most rows of a table."""
Row = dict[str, Any]


def replay(cfg: DictConfig) -> float:
    """The recipe: how many entries, terms and gradients are not finite."""
    path = bundle_file(Path(cfg.bundle))
    trained = load_trained(path, device=cfg.device, trust=list(cfg.trust))
    config = OmegaConf.merge(trained.config, {"schedule": {"cuda_graph": False, "compile": False}})
    kept = Checkpointer(path.parent).load({"loss": None, "update": None}, which=path).values
    try:
        learner = rebuild(config, kept["loss"])
        batch, rng = kept["update"]["batch"].to(cfg.device), kept["update"]["rng"]
        entries = {
            ".".join(key) if isinstance(key, tuple) else key: value
            for key, value in batch.items(True, True)
        }
        parts = {"batch": entries, "weights": kept["loss"]}
        set_random_state(rng, cfg.device)
        parts |= recompute(learner, batch)
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"bundle: {path} must hold an update of its configuration: {reason}"
        ) from error
    bad = {part: [row for row in rows(named) if row["not finite"]] for part, named in parts.items()}
    large = sorted(rows(entries), key=lambda row: -abs(row["number"]))[:LARGEST]
    for title, shown in {"largest of the batch": large, **bad}.items():
        if shown:
            print_columns(f"{title}: {len(shown)}", shown[:MOST])
    firsts = [
        f"{part} {shown[0]['what']}{shown[0]['at']} = {shown[0]['number']:g}"
        for part, shown in bad.items()
        if shown
    ]
    print(f"not finite: {'; '.join(firsts)}" if firsts else f"everything is finite on {cfg.device}")
    return float(sum(map(len, bad.values())))


def bundle_file(path: Path) -> Path:
    """The file of a bundle, given itself or its directory."""
    file = max(path.glob("step-*.pt"), default=None) if path.is_dir() else path
    if file is None or not file.is_file():
        raise UsageError(f"bundle: {path} must be a bundle, as runs keep them in <run>/nonfinite")
    return file


def rebuild(config: DictConfig, state: Mapping[str, Tensor]) -> Learner:
    """The learner as it was before the update."""
    with closing(build_env(config, num_envs=1, seed=0)) as env:
        learner = build_learner(config, build_agent(config, env))
    learner.loss.load_state_dict(state)
    return learner


def set_random_state(rng: Mapping[str, Tensor], device: str) -> None:
    """As the generators stood before the update."""
    torch.set_rng_state(rng["cpu"])
    if "cuda" in rng and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(rng["cuda"], device)


def recompute(learner: Learner, batch: TensorDictBase) -> dict[str, dict[str, Tensor]]:
    """The terms of the loss, and the gradient of every term by every parameter."""
    with learner.precision():
        out = learner.loss(batch)
    terms = {key: value for key, value in out.items() if key.startswith("loss_")}
    parameters = {name: p for name, p in learner.loss.named_parameters() if p.requires_grad}
    gradients: dict[str, Tensor] = {}
    norms: dict[str, Tensor] = {}
    for term, value in terms.items():
        if value.requires_grad:
            found = torch.autograd.grad(
                value, list(parameters.values()), retain_graph=True, allow_unused=True
            )
            named = {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
            gradients |= {f"of {term} by {name}": gradient for name, gradient in named.items()}
            norms[f"norm of the gradient of {term}"] = nn.utils.get_total_norm(named.values())
    return {"term": {**terms, "their sum": sum(terms.values()), **norms}, "gradient": gradients}


def rows(named: Mapping[str, Tensor]) -> Iterable[Row]:
    """Of every tensor how many numbers are not finite, and where the first of them is, or else the
    largest.
    """
    for name, value in named.items():
        if value.numel() == 0:
            continue
        flat = value.detach().double().flatten()
        bad = ~flat.isfinite()
        place = int((bad.int() if bad.any() else flat.abs()).argmax())
        at = [int(index) for index in torch.unravel_index(torch.tensor(place), value.shape)]
        yield {
            "what": name,
            "not finite": int(bad.sum()),
            "of": value.numel(),
            "at": at or "",
            "number": float(flat[place]),
        }


if __name__ == "__main__":
    main(replay, config_name="replay_batch")
