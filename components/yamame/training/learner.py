"""Learner: one gradient step at a time, used by every recipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import NonNegativeInt, PositiveFloat, PositiveInt, UsageError, check_bounds
from yamame.distributed import all_reduce_means, average_gradients_, world_size
from yamame.execution.capturing import NUM_SEGMENTS
from yamame.execution.precision import Precision, check_precision, in_precision
from yamame.execution.recorded_updates import (
    Metrics,
    RecordedUpdates,
    keep_ordinary,
    refuse_obstacles,
)
from yamame.execution.recorder import Compiled, Recorder, check_compiler, cuda_recorder
from yamame.training.averaging import AveragedWeights
from yamame.training.guard import NonFiniteGuard
from yamame.training.optimizer_state import name_parameters
from yamame.training.saved_buffers import SavedBuffers


class Learner:
    """Makes updates of the parameters of a loss.

    An update computes gradients, checks that they are finite, clips them, steps the optimizer,
    moves target networks and sets the learning rate, in this order.

    Args:
        loss: Writes terms ``loss_*`` whose sum is minimised. Its ``update_targets``, if it has one,
            is called after the optimizer's step.
        optimizer: Optimizer over all parameters that are learned.
        max_grad_norm: Global norm at which gradients are clipped.
        warmup_updates: Updates over which the learning rate rises linearly to its value.
        total_updates: Updates over which it falls linearly to zero, those of the warm-up included;
            None: it stays.
        fall: Returns the largest share of the learning rate after a number of updates, such as
            `falling_share` of a budget, in place of ``total_updates``.
        autocast: Precision of the networks' matrix products: ``"bfloat16"``, ``"auto"`` for
            bfloat16 on devices that multiply it, None for the precision of the weights. Weights,
            losses, statistics and the optimizer keep their precision.
        cuda_graph: Record the update of batches of a shape that comes again and again, and replay
            it: see `yamame.execution.recorded_updates`. Makes the optimizer capturable and its
            learning rate a tensor.
        compile: Compile the loss and its backward pass for batches of a shape that comes again: see
            `yamame.execution.recorder.Compiled`. With ``cuda_graph``, recordings contain the
            compiled code.
        guard: Skips updates that are not finite; None: a guard that keeps no evidence.
        averaged: Averaged weights to update after every step; None: no average.

    Raises:
        ValueError: If a setting is out of its range; if ``cuda_graph`` is set on a CPU, or with an
            optimizer or an encoder that cannot be recorded; if ``compile`` is set without a
            compiler, or with an encoder that cannot be compiled.

    >>> from tensordict.nn import TensorDictModule
    >>> from tensordict import TensorDict
    >>> loss = TensorDictModule(nn.Linear(2, 1), ["observation"], ["loss_linear"])
    >>> learner = Learner(loss, torch.optim.SGD(loss.parameters(), lr=0.1), max_grad_norm=1.0)
    >>> metrics = learner.update(TensorDict({"observation": torch.ones(2)}))
    >>> {"loss", "grad_norm", "loss_linear"} <= set(metrics)
    True
    """

    @check_bounds
    def __init__(
        self,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: PositiveFloat,
        warmup_updates: NonNegativeInt = 0,
        total_updates: PositiveInt | None = None,
        fall: Callable[[int], float] | None = None,
        autocast: Precision = None,
        cuda_graph: bool = False,
        compile: bool = False,
        guard: NonFiniteGuard | None = None,
        averaged: AveragedWeights[Any] | None = None,
    ) -> None:
        self.loss = loss
        self.optimizer = optimizer
        # A state that is loaded must belong to the same parameters.
        name_parameters(optimizer, loss)
        self.max_grad_norm = max_grad_norm
        self.autocast = autocast
        self.guard = NonFiniteGuard() if guard is None else guard
        self.averaged = averaged

        def share_of_learning_rate(updates: int) -> float:
            share = learning_rate_share(updates, warmup=warmup_updates, total=total_updates)
            return share if fall is None else min(share, fall(updates))

        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_learning_rate)
        device = self._parameters()[0].device
        check_precision("Learner", autocast, device)
        self._compute: Callable[[TensorDictBase], Any] = loss
        if compile:
            check_compiler(device, "Learner")
            refuse_obstacles("compile", loss, optimizer)
            # The loss alone: optimizers and `Tensor.backward` cannot be compiled as one graph.
            self._compute = Compiled(
                lambda batch: dict(loss(batch).items()), name="Learner: the loss"
            )
        self._saved_buffers = SavedBuffers(loss)
        self._recorded: RecordedUpdates | None = None
        if cuda_graph:
            self._recorded = self._record(cuda_recorder(device, "Learner"))
        else:
            keep_ordinary(optimizer)

    def _record(self, recorder: Recorder, **options: Any) -> RecordedUpdates:
        def extra_state() -> list[Tensor]:
            averaged = [] if self.averaged is None else self.averaged.tensors()
            return [*self._saved_buffers.tensors, *averaged]

        def after_replay() -> None:
            if self.averaged is not None:
                self.averaged.mark_stale()

        return RecordedUpdates(
            self._gradients,
            self._step,
            loss=self.loss,
            optimizer=self.optimizer,
            recorder=recorder,
            extra_state=extra_state,
            after_replay=after_replay,
            **options,
        )

    def update(
        self, batch: TensorDictBase, *, meanwhile: Callable[[], None] = lambda: None
    ) -> Metrics:
        """Learn from one batch.

        Args:
            batch: Input of the loss, on its device.
            meanwhile: Called while the device computes the gradients, before the host reads whether
                they are finite.

        Returns:
            Detached metrics: the entries that the loss wrote, ``loss`` and ``grad_norm``, and the
            ``padding_share`` of a batch with a ``mask``. Empty if the guard skipped the update,
            which then changed nothing: running statistics are as they were before.

        Raises:
            FloatingPointError: If the guard has skipped too many updates.
            UsageError: A term of the loss is not a scalar, or there is no term.
        """
        if self._recorded is not None:
            compute_gradients, step = self._recorded.halves(batch)
        else:
            compute_gradients = self._gradients
            step = self._step
        rng = _random_state(batch)
        metrics = compute_gradients(batch)
        own_loss = metrics.pop("own_loss", metrics["loss"])
        meanwhile()
        checked = {"loss": metrics["loss"], "grad_norm": metrics["grad_norm"]}
        if not self.guard.accepts(checked):
            self._saved_buffers.restore()
            evidence = None
            # If the loss of another rank is not finite, that rank has the evidence.
            if bool(metrics["loss"].isfinite() | ~own_loss.isfinite()):
                tensors = batch.exclude(NUM_SEGMENTS)
                evidence = {"loss": self.loss, "update": {"batch": tensors, "rng": rng}}
            self.guard.refuse(checked, step=self.schedule.last_epoch, evidence=evidence)
            return {}
        step(metrics["grad_norm"])
        self.schedule.step()
        return metrics

    @torch.no_grad()
    def evaluate(self, batch: TensorDictBase) -> Metrics:
        """Compute the loss of a batch without learning from it.

        All modules of the loss are in evaluation mode meanwhile. Their buffers, such as running
        statistics, and their modes are as before afterwards. The loss may draw random numbers.

        Args:
            batch: Input of the loss, on its device.

        Returns:
            Metrics: the entries that the loss wrote, and ``loss``, the sum of its terms.

        Raises:
            UsageError: A term of the loss is not a scalar, or there is no term.
        """
        with self._observing():
            out = self.loss(batch)
        metrics = dict(out.items())
        metrics["loss"] = torch.stack(self._terms(out)).sum()
        return all_reduce_means(metrics)

    @torch.no_grad()
    def td_errors(self, batch: TensorDictBase) -> Tensor:
        """Compute the temporal-difference errors ``[B, T]`` of a batch without learning from it.

        As with `evaluate`, nothing changes; random numbers that targets need are drawn from a copy
        of the generators.

        Args:
            batch: Input of the loss ``[B, L]``, on its device.

        Raises:
            UsageError: The loss has no method ``td_errors``.
        """
        method = getattr(self.loss, "td_errors", None)
        if not callable(method):
            name = type(self.loss).__name__
            raise UsageError(f"Learner: {name} must have td_errors(batch) to score tasks by them")
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices=devices), self._observing():
            errors: Tensor = method(batch)
        return errors

    @contextmanager
    def _observing(self) -> Iterator[None]:
        """Within the block, evaluate the loss; restore its modes and buffers afterwards."""
        # Copies of its own: a recorded update writes to those of the learner.
        saved = SavedBuffers(self.loss)
        saved.save()
        modes = {module: module.training for module in self.loss.modules()}
        self.loss.eval()
        try:
            with self.precision():
                yield
        finally:
            # Not `train`, which would change modules that were in evaluation mode before.
            for module, mode in modes.items():
                module.training = mode
            saved.restore()

    def precision(self) -> torch.autocast:
        """Return the context in which networks compute as they do in an update."""
        return in_precision(self._parameters()[0].device, self.autocast)

    def _gradients(self, batch: TensorDictBase) -> Metrics:
        """Compute the first half of an update: the loss, its gradients and their norm."""
        self._saved_buffers.save()
        with self.precision():
            out = self._compute(batch)
        total = torch.stack(self._terms(out)).sum()
        self.optimizer.zero_grad()
        total.backward()
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        average_gradients_(gradients)

        metrics = dict(out.items())
        # Padding costs as much as timesteps do.
        if "mask" in batch.keys():
            metrics["padding_share"] = 1.0 - batch["mask"].float().mean()
        metrics["loss"] = total
        metrics = all_reduce_means(metrics)
        metrics["grad_norm"] = nn.utils.get_total_norm(gradients)
        # The mean is not finite if the loss of one rank is not. This shows which rank it is.
        if world_size() > 1:
            metrics["own_loss"] = total.detach()
        return metrics

    def _terms(self, out: Metrics) -> list[Tensor]:
        """Return the terms that are minimised, after a check that each is a scalar."""
        name = type(self.loss).__name__
        terms = []
        for key, value in out.items():
            if not key.startswith("loss_"):
                continue
            # The sum of tensors of different shapes would broadcast silently.
            if value.numel() != 1:
                raise UsageError(
                    f"Learner: {key} of {name} must be a scalar, as its mean or sum, got shape "
                    f"{list(value.shape)}"
                )
            terms.append(value.reshape(()))
        if not terms:
            raise UsageError(f"Learner: {name} must write terms loss_*, got {sorted(out.keys())}")
        return terms

    def _step(self, grad_norm: Tensor) -> None:
        """Compute the second half: clip gradients by their norm, step, and move targets."""
        nn.utils.clip_grads_with_norm_(self._parameters(), self.max_grad_norm, grad_norm)
        self.optimizer.step()
        update_targets = getattr(self.loss, "update_targets", None)
        if update_targets is not None:
            update_targets()
        if self.averaged is not None:
            self.averaged.update()

    def _parameters(self) -> list[Tensor]:
        parameters: list[Tensor] = []
        for group in self.optimizer.param_groups:
            parameters.extend(group["params"])
        return parameters

    def components(self) -> dict[str, Any]:
        """Return the components of a checkpoint from which learning can continue."""
        components = {"loss": self.loss, "optimizer": self.optimizer, "schedule": self.schedule}
        if self.averaged is not None:
            components["averaged"] = self.averaged
        return components


def _random_state(batch: TensorDictBase) -> dict[str, Tensor]:
    """Return the states of the generators that an update may draw from."""
    state = {"cpu": torch.get_rng_state()}
    if batch.device is not None and batch.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(batch.device)
    return state


def learning_rate_share(updates: int, *, warmup: int, total: int | None) -> float:
    """Return the learning rate after a number of updates, as a share of its full value.

    It rises linearly during the warm-up and falls linearly to zero at ``total``.

    Args:
        updates: Number of updates made.
        warmup: Updates over which it rises.
        total: Updates at which it is zero; None: it stays.

    >>> [learning_rate_share(k, warmup=2, total=6) for k in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    rise = (updates + 1) / max(1, warmup)
    fall = 1.0
    if total is not None:
        fall = max(0.0, (total - updates) / max(1, total - warmup))
    return min(1.0, rise, fall)


def falling_share(spent: float, *, start: float) -> float:
    """Return a value that is 1 until a share of the budget is spent, and falls linearly to 0.

    Args:
        spent: Spent share of the budget, in [0, 1].
        start: Share at which the value begins to fall, in [0, 1).

    >>> [falling_share(spent, start=0.5) for spent in (0.0, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.5, 0.0]
    """
    return min(1.0, max(0.0, (1.0 - spent) / (1.0 - start)))
