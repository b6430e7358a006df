"""Bundles of skipped updates: the batch, the loss and the random state before the update.

A run writes a bundle to <run>/nonfinite when the loss or a gradient of an update is not finite.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import SettingError
from yamame.files.paths import check_tree, typed_file
from yamame.training.learner import Learner

Row = dict[str, Any]


def bundle_file(path: Path) -> Path:
    """Return the file of a bundle, given the file or its directory.

    Raises:
        UsageError: There is no bundle, or its directory holds a link or a pipe.
    """
    file: Path | None = path
    if path.is_dir():
        check_tree(path)
        file = max(path.glob("step-*.pt"), default=None)
    if file is None or not file.exists():
        condition = "be a bundle, as runs write them to <run>/nonfinite"
        raise SettingError("bundle", str(path), condition)
    return typed_file(file)


def recompute(learner: Learner, batch: TensorDictBase) -> dict[str, dict[str, Tensor]]:
    """Compute the terms of the loss, and the gradient of every term by every parameter.

    Returns:
        ``term``: the terms, their sum, and the norm of the gradient of each. ``gradient``: the
        gradients.
    """
    with learner.precision():
        out = learner.loss(batch)
    terms = {key: value for key, value in out.items() if key.startswith("loss_")}
    parameters = {name: p for name, p in learner.loss.named_parameters() if p.requires_grad}

    gradients: dict[str, Tensor] = {}
    norms: dict[str, Tensor] = {}
    for term, value in terms.items():
        if not value.requires_grad:
            continue
        # The terms share their graph, which is kept for the next one.
        found = torch.autograd.grad(
            value, list(parameters.values()), retain_graph=True, allow_unused=True
        )
        used = []
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                gradients[f"of {term} by {name}"] = gradient
                used.append(gradient)
        norms[f"norm of the gradient of {term}"] = nn.utils.get_total_norm(used)
    return {"term": {**terms, "their sum": sum(terms.values()), **norms}, "gradient": gradients}


def describe_tensors(named: Mapping[str, Tensor]) -> list[Row]:
    """Return a row per tensor: how many numbers are not finite, and one of the numbers.

    It is the first number that is not finite, or else the largest one by its absolute value.
    """
    rows = []
    for name, value in named.items():
        if value.numel() == 0:
            continue
        flat = value.detach().double().flatten()
        is_bad = ~flat.isfinite()
        ranking = is_bad.int() if is_bad.any() else flat.abs()
        position = ranking.argmax()
        indices = torch.unravel_index(position.cpu(), value.shape)
        row = {"what": name, "not finite": int(is_bad.sum()), "of": value.numel()}
        row["at"] = [int(index) for index in indices] or ""  # nothing for a scalar
        row["number"] = float(flat[position])
        rows.append(row)
    return rows
