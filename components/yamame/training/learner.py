"""One gradient step at a time, as every recipe makes it."""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import UsageError, require, require_at_least
from yamame.distributed import all_reduce_means, average_gradients_, world_size
from yamame.execution.capturing import NUM_SEGMENTS
from yamame.execution.precision import Precision, check_precision, in_precision
from yamame.execution.recorder import Compiled, check_compiler, cuda_recorder
from yamame.training.averaging import AveragedWeights
from yamame.training.guard import NonFiniteGuard
from yamame.training.optimizer_state import name_parameters
from yamame.training.recorded_updates import (
    Metrics,
    RecordedUpdates,
    keep_ordinary,
    refuse_obstacles,
)


class Learner:
    """Makes updates: gradients of a loss, guard, clipping, optimizer, target networks, learning
    rate, in this order.

    Args:
        loss: Writes terms ``loss_*`` whose sum is minimised. Its ``update_targets``, if it has one,
            is called after the optimizer's step.
        optimizer: Over all parameters that are learned.
        max_grad_norm: Global norm at which gradients are clipped.
        warmup_updates: Updates over which the learning rate rises linearly to its value.
        total_updates: Updates over which it falls linearly to zero, those of the warm-up included;
            None: it stays.
        autocast: Precision of the networks' matrix products: ``"bfloat16"``, ``"auto"`` for that
            where the device multiplies it, None for that of the weights. Weights, losses,
            statistics and the optimizer keep theirs.
        cuda_graph: Record the update of batches of a shape that comes again and again, and replay
            it: see `yamame.training.recorded_updates`. Makes the optimizer capturable and its
            learning rate a tensor.
        compile: Compile the loss, and what differentiates it, for batches of a shape that comes
            again: see `yamame.execution.recorder.Compiled`. With ``cuda_graph`` it is recorded when
            it is compiled.
        guard: Refuses updates that are not finite; None for one that keeps no evidence.
        averaged: Weights that follow those that are learned; None for none.
        time_spent: Share of the time there is that was spent, in [0, 1]. Once it exceeds a half,
            the learning rate falls at least as fast as it must to be zero at 1.

    Raises:
        ValueError: If a setting is out of its range; if ``cuda_graph`` is wanted on a CPU, or of an
            optimizer or an encoder that cannot be recorded; if ``compile`` is wanted without a
            compiler, or of an encoder that cannot be compiled.

    >>> from tensordict.nn import TensorDictModule
    >>> from tensordict import TensorDict
    >>> loss = TensorDictModule(nn.Linear(2, 1), ["observation"], ["loss_linear"])
    >>> learner = Learner(loss, torch.optim.SGD(loss.parameters(), lr=0.1), max_grad_norm=1.0)
    >>> metrics = learner.update(TensorDict({"observation": torch.ones(2)}))
    >>> {"loss", "grad_norm", "loss_linear"} <= set(metrics)
    True
    """

    def __init__(
        self,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float,
        warmup_updates: int = 0,
        total_updates: int | None = None,
        autocast: Precision = None,
        cuda_graph: bool = False,
        compile: bool = False,
        guard: NonFiniteGuard | None = None,
        averaged: AveragedWeights[Any] | None = None,
        time_spent: Callable[[], float] = lambda: 0.0,
    ) -> None:
        require("Learner", "max_grad_norm", max_grad_norm, max_grad_norm > 0, "be positive")
        require_at_least("Learner", 0, warmup_updates=warmup_updates)
        ends = total_updates is None or total_updates >= 1
        require("Learner", "total_updates", total_updates, ends, "be at least 1 or None")
        self.loss = loss
        self.optimizer = optimizer
        name_parameters(optimizer, loss)  # a state that is loaded must be of the same parameters
        self.max_grad_norm = max_grad_norm
        self.autocast = autocast
        self.guard = NonFiniteGuard() if guard is None else guard
        self.averaged = averaged
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda updates: learning_rate_share(
                updates, warmup=warmup_updates, total=total_updates, time_spent=time_spent()
            ),
        )
        self._recorded: RecordedUpdates | None = None
        self._compute: Callable[[TensorDictBase], Any] = loss  # what it writes, by name
        device = self._parameters()[0].device
        check_precision("Learner", autocast, device)
        if compile:
            check_compiler(device, "Learner")
            refuse_obstacles("compile", loss, optimizer)
            # Nothing else is, for optimizers and `Tensor.backward` are not taken whole.
            self._compute = Compiled(
                lambda batch: dict(loss(batch).items()), name="Learner: the loss"
            )
        if cuda_graph:
            self._recorded = RecordedUpdates(
                self._gradients,
                self._step,
                loss=loss,
                optimizer=optimizer,
                recorder=cuda_recorder(device, "Learner"),
                averaged=averaged,
            )
        else:
            keep_ordinary(optimizer)

    def update(
        self, batch: TensorDictBase, *, meanwhile: Callable[[], None] = lambda: None
    ) -> Metrics:
        """Learns from one batch.

        Args:
            batch: What the loss takes, on its device.
            meanwhile: Called while the device computes the gradients, before the host reads whether
                they are finite.

        Returns:
            Detached metrics: what the loss wrote, ``loss`` and ``grad_norm``, and the
            ``padding_share`` of a batch with a ``mask``. Empty if the guard refused the update,
            which then changed nothing: running statistics are as they were before.

        Raises:
            FloatingPointError: If the guard has refused too many updates.
            UsageError: A term of the loss is no scalar, or there is none.
        """
        if self._recorded is not None:
            gradients, step = self._recorded.halves(batch)
        else:
            gradients, step = self._gradients, self._step
        former, rng = self.statistics(), _random_state(batch)
        metrics = gradients(batch)
        own_loss = metrics.pop("own_loss", metrics["loss"])
        meanwhile()
        finite = {name: metrics[name] for name in ("loss", "grad_norm")}
        if not self.guard.accepts(finite):
            self.restore(former)
            is_here = bool(
                metrics["loss"].isfinite() | ~own_loss.isfinite()
            )  # and not on another rank
            tensors = batch.exclude(NUM_SEGMENTS)
            evidence = (
                {"loss": self.loss, "update": {"batch": tensors, "rng": rng}} if is_here else None
            )
            self.guard.refuse(finite, step=self.schedule.last_epoch, evidence=evidence)
            return {}
        step(metrics["grad_norm"])
        self.schedule.step()
        return metrics

    def statistics(self) -> list[tuple[Tensor, Tensor]]:
        """Every buffer of the loss, what networks learn by looking, with a copy of its present
        content.
        """
        return [(buffer, buffer.clone()) for buffer in self.loss.buffers()]

    @torch.no_grad()
    def restore(self, statistics: list[tuple[Tensor, Tensor]]) -> None:
        """Undoes what happened to buffers since `statistics` returned this."""
        for buffer, former in statistics:
            buffer.copy_(former)

    def precision(self) -> torch.autocast:
        """The context in which networks compute as they do in an update."""
        return in_precision(self._parameters()[0].device, self.autocast)

    def _gradients(self, batch: TensorDictBase) -> Metrics:
        """The first half of an update: the loss, its gradients and their norm."""
        with self.precision():
            out = self._compute(batch)
        total = torch.stack(self._terms(out)).sum()
        self.optimizer.zero_grad()
        total.backward()
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        average_gradients_(gradients)
        if "mask" in batch.keys():  # what is no timestep costs as much as one
            out = {**out, "padding_share": 1.0 - batch["mask"].float().mean()}
        metrics = {
            **all_reduce_means({**out, "loss": total}),
            "grad_norm": nn.utils.get_total_norm(gradients),
        }
        if (
            world_size() > 1
        ):  # the mean is not finite where the loss of one rank is not: which one has the evidence?
            metrics["own_loss"] = total.detach()
        return metrics

    def _terms(self, out: Metrics) -> list[Tensor]:
        """What the loss wrote to be minimised; refuses what has no sum of one meaning."""
        terms = {key: value for key, value in out.items() if key.startswith("loss_")}
        name = type(self.loss).__name__
        if not terms:
            raise UsageError(f"Learner: {name} must write terms loss_*, got {sorted(out.keys())}")
        for key, value in terms.items():
            if value.numel() != 1:
                raise UsageError(
                    f"Learner: {key} of {name} must be a scalar, as its mean or sum, got shape {list(value.shape)}"
                )
        return [value.reshape(()) for value in terms.values()]

    def _step(self, grad_norm: Tensor) -> None:
        """The second half: moves parameters along their gradients, clipped by their norm, and
        targets after them.
        """
        nn.utils.clip_grads_with_norm_(self._parameters(), self.max_grad_norm, grad_norm)
        self.optimizer.step()
        update_targets = getattr(self.loss, "update_targets", None)
        if update_targets is not None:
            update_targets()
        if self.averaged is not None:
            self.averaged.update()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def components(self) -> dict[str, Any]:
        """What a checkpoint needs to go on learning."""
        averaged = {} if self.averaged is None else {"averaged": self.averaged}
        return {
            "loss": self.loss,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            **averaged,
        }


def _random_state(batch: TensorDictBase) -> dict[str, Tensor]:
    """Of the generators that an update may draw from."""
    state = {"cpu": torch.get_rng_state()}
    if batch.device is not None and batch.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(batch.device)
    return state


def learning_rate_share(
    updates: int, *, warmup: int, total: int | None, time_spent: float = 0.0
) -> float:
    """The learning rate after so many updates, as a share of its value: up, then straight down to
    zero at ``total``.

    Where time runs out before, it is zero then. Time counts only in its second half, so that a run
    that ends by its updates has the same rates however fast it is, if it is about equally fast
    throughout.

    >>> [learning_rate_share(k, warmup=2, total=6) for k in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    >>> [learning_rate_share(k, warmup=2, total=10, time_spent=k / 4) for k in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rise = (updates + 1) / max(1, warmup)
    fall = 1.0 if total is None else max(0.0, (total - updates) / max(1, total - warmup))
    return min(1.0, rise, fall, max(0.0, 2.0 * (1.0 - time_spent)))
