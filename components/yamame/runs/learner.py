"""One gradient step at a time, as every recipe makes it."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import LossModule, TargetNetUpdater

from yamame.capturing import cuda_recorder
from yamame.runs.graphed import Accept, GraphedUpdates, refuse_obstacles
from yamame.runs.guard import NonFiniteGuard


class Learner:
    """Loss, gradients, guard, clipping, optimizer, target networks, learning-rate warm-up: in this order.

    Args:
        loss: Writes terms ``loss_*`` whose sum is minimised.
        optimizer: Over all parameters that are learned.
        target_updater: Moves the targets after the optimizer's step.
        max_grad_norm: Global norm at which gradients are clipped.
        warmup_updates: Updates over which the learning rate rises linearly to its value.
        total_updates: Updates over which it falls linearly to zero, those of the warm-up included; None: it stays.
        autocast: Precision of the networks' matrix products; None for that of the weights. Weights, losses,
            statistics and the optimizer keep theirs.
        cuda_graph: Record the update of batches of a shape that comes again and again, and replay it: see
            `yamame.runs.graphed`. Makes the optimizer capturable and its learning rate a tensor.

    Raises:
        ValueError: If ``max_grad_norm`` is not positive, ``warmup_updates`` negative, ``total_updates`` not
            positive or ``autocast`` unknown; if ``cuda_graph`` is wanted on a CPU, or of an optimizer or an encoder
            that cannot be recorded.
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        target_updater: TargetNetUpdater,
        *,
        max_grad_norm: float,
        warmup_updates: int,
        total_updates: int | None = None,
        autocast: Literal["bfloat16"] | None = None,
        cuda_graph: bool = False,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError(f"Learner: max_grad_norm must be positive, got {max_grad_norm}")
        if warmup_updates < 0:
            raise ValueError(f"Learner: warmup_updates must not be negative, got {warmup_updates}")
        if total_updates is not None and total_updates < 1:
            raise ValueError(f"Learner: total_updates must be at least 1 or None, got {total_updates}")
        if autocast not in (None, "bfloat16"):
            raise ValueError(f"Learner: autocast must be None or 'bfloat16', got {autocast!r}")
        self.loss = loss
        self.autocast = autocast
        self.optimizer = optimizer
        self.target_updater = target_updater
        self.max_grad_norm = max_grad_norm
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, partial(learning_rate_share, warmup=warmup_updates, total=total_updates)
        )
        self._make: Callable[..., dict[str, Tensor]] = self._ordinary
        if cuda_graph:
            recorder = cuda_recorder(optimizer.param_groups[0]["params"][0].device, "Learner")
            refuse_obstacles(loss, optimizer)
            parts = (self._ordinary, self._learn, self._move)
            self._make = GraphedUpdates(*parts, optimizer=optimizer, recorder=recorder).update

    def update(
        self,
        batch: TensorDictBase,
        guard: NonFiniteGuard,
        *,
        step: int,
        seed: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[str, Tensor]:
        """Learns from one batch.

        Args:
            batch: What the loss takes.
            guard: Decides whether the update is made, and keeps the evidence when it is not.
            step: Number of this update, for the evidence.
            seed: The run's seed, for the evidence.
            meanwhile: Called while the device computes the gradients, before the host reads whether they are finite.

        Returns:
            Detached metrics: what the loss wrote, ``loss`` and ``grad_norm``. Empty if no update was made.
        """

        def accept(metrics: dict[str, Tensor]) -> bool:
            meanwhile()
            finite = {name: metrics[name] for name in ("loss", "grad_norm")}
            return guard.check(finite, batch, step=step, seed=seed)

        metrics = self._make(batch, accept)
        if metrics:
            self.schedule.step()
        return metrics

    def precision(self) -> torch.autocast:
        """The context in which networks compute as they do in an update."""
        device = self.optimizer.param_groups[0]["params"][0].device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.autocast is not None)

    def _ordinary(self, batch: TensorDictBase, accept: Accept) -> dict[str, Tensor]:
        """One update but for the learning rate's; nothing, and no metrics, if it is not accepted."""
        metrics = self._learn(batch)
        return self._move(metrics) if accept(metrics) else {}

    def _learn(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """All of an update that comes before the decision whether to make it: gradients, and its metrics."""
        with self.precision():
            out = self.loss(batch)
        total = torch.stack([value for key, value in out.items() if key.startswith("loss_")]).sum()
        self.optimizer.zero_grad()
        total.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters() if p.grad is not None])
        return {key: value.detach() for key, value in {**out, "loss": total, "grad_norm": norm}.items()}

    def _move(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Moves parameters and targets along the gradients, clipped by their norm; gives the metrics on."""
        nn.utils.clip_grads_with_norm_(self._parameters(), self.max_grad_norm, metrics["grad_norm"])
        self.optimizer.step()
        self.target_updater.step()
        return metrics

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def components(self) -> dict[str, Any]:
        """What a checkpoint needs to go on learning."""
        return {"loss": self.loss, "optimizer": self.optimizer, "schedule": self.schedule}


def learning_rate_share(updates: int, *, warmup: int, total: int | None) -> float:
    """The learning rate after so many updates, as a share of its value: up, then straight down to zero at ``total``.

    >>> [learning_rate_share(k, warmup=2, total=6) for k in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    rise = (updates + 1) / max(1, warmup)
    fall = 1.0 if total is None else max(0.0, (total - updates) / max(1, total - warmup))
    return min(1.0, rise, fall)
