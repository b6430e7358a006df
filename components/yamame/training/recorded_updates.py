"""Updates recorded as CUDA graphs: the host launches half an update at once instead of every
kernel.

A graph repeats the same kernels on the same memory. So there is one for every structure of a batch
(keys, shapes and dtypes), its input is a batch of its own that others are copied into, and what it
computes may not depend on reading anything back. An update has two halves, for between them the
host looks at the metrics: one up to the gradients, one that moves the parameters. The first updates
of a structure are ordinary ones: they are the warm-up that a capture needs, and every update,
recorded or not, trains. A capture executes nothing.

Source: PyTorch's documentation, https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
(warm-up on a side stream, static inputs, gradients allocated by the capture, one memory pool for
graphs that never run at the same time).
"""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from yamame.checks import require
from yamame.execution.capturing import recording
from yamame.execution.recorder import Recorder, structure, tensors_of
from yamame.system.messages import print_stderr
from yamame.training.averaging import AveragedWeights

Metrics = dict[str, Tensor]
Gradients = Callable[[TensorDictBase], Metrics]
Step = Callable[[Tensor], None]


class RecordedUpdates:
    """The halves of updates, recorded for batches of structures that come again.

    Of a structure, the first ``warmup`` updates that are made are ordinary ones; then it is
    recorded. Of the recorded ones, the last ``limit`` that were used are kept; one that was dropped
    begins anew, so that however many structures there are, at most one update in ``warmup + 1`` has
    the cost of a recording.

    Args:
        gradients: The first half: of a batch to metrics, among them ``grad_norm``.
        step: The second half, given ``grad_norm``.
        loss: What the first half computes.
        optimizer: What the second half steps; made capturable, now and whenever it loads a state.
        recorder: Runs and records.
        averaged: Averaged weights that the second half moves as well.
        warmup: At least one, for the optimizer makes its state in its first step.
        limit: Recorded structures kept at a time.

    Raises:
        ValueError: The optimizer reads back, or an encoder's sizes depend on data.
    """

    def __init__(
        self,
        gradients: Gradients,
        step: Step,
        *,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        averaged: AveragedWeights[Any] | None = None,
        warmup: int = 3,
        limit: int = 16,
    ) -> None:
        assert min(warmup, limit) >= 1
        refuse_obstacles("cuda_graph", loss, optimizer)
        self._gradients, self._step = gradients, step
        self._optimizer, self._recorder = optimizer, recorder
        self._loss, self._averaged = loss, averaged
        self._warmup, self._limit, self._has_told = warmup, limit, False
        self._made: Counter[Hashable] = Counter()
        self._recorded: OrderedDict[Hashable, tuple[Gradients, Step]] = (
            OrderedDict()
        )  # last used, last
        make_capturable(optimizer)
        optimizer.register_load_state_dict_post_hook(self._restart)

    def halves(self, batch: TensorDictBase) -> tuple[Gradients, Step]:
        """The two halves of an update of a batch: ordinary ones at first, then recorded ones."""
        key = structure(batch)
        if key in self._recorded:
            self._recorded.move_to_end(key)
        elif self._made[key] < self._warmup:
            return self._warm_gradients, lambda grad_norm: self._warm_step(grad_norm, key)
        else:
            self._recorded[key] = self._record(batch)
        return self._recorded[key]

    def _warm_gradients(self, batch: TensorDictBase) -> Metrics:
        return self._recorder.warm(lambda: self._gradients(batch))

    def _warm_step(self, grad_norm: Tensor, key: Hashable) -> None:
        with warnings.catch_warnings():
            # A capturable optimizer warns when it steps outside of a capture, which is what a
            # warm-up is.
            warnings.filterwarnings(
                "ignore", message="This instance was constructed with capturable=True"
            )
            self._recorder.warm(lambda: self._step(grad_norm))
        self._made[key] += 1

    def _record(self, batch: TensorDictBase) -> tuple[Gradients, Step]:
        while len(self._recorded) >= self._limit:
            oldest, _ = self._recorded.popitem(last=False)
            del self._made[oldest]
        own = batch.clone()
        if not self._has_told:
            self._has_told = True
            print_stderr(
                "Learner: records updates as CUDA graphs, which takes seconds for a batch of new shape"
            )

        def record_step() -> Metrics:
            self._step(metrics["grad_norm"])
            return {}

        reads = self._state()
        with recording():
            replay_gradients, metrics = self._recorder.record(
                lambda: self._gradients(own), reads=[*reads, *own.values(True, True)]
            )
            made = [*metrics.values(), *(p.grad for p in self._parameters() if p.grad is not None)]
            replay_step, _ = self._recorder.record(record_step, reads=[*reads, *made])
        # Only these two graphs read the gradients, right after they are written: other graphs may
        # use their memory.
        self._optimizer.zero_grad()

        def gradients(batch: TensorDictBase) -> Metrics:
            own.update_(batch)
            replay_gradients()
            return {
                key: value.clone() for key, value in metrics.items()
            }  # the next replay overwrites them

        def step(grad_norm: Tensor) -> None:
            replay_step()
            if self._averaged is not None:
                self._averaged.mark_stale()  # a replay runs no Python

        return gradients, step

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _state(self) -> list[Tensor]:
        """Tensors that last from one update to the next: networks, averages, the optimizer's state
        and settings.
        """
        settings = [value for group in self._optimizer.param_groups for value in group.values()]
        optimizer = tree_leaves([list(self._optimizer.state.values()), settings])
        averages = [] if self._averaged is None else self._averaged.tensors()
        return [
            *tensors_of(self._loss),
            *averages,
            *(value for value in optimizer if isinstance(value, Tensor)),
        ]

    def _restart(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop recorded graphs, which hold tensors that a loaded state has replaced."""
        make_capturable(optimizer)
        self._recorded.clear()
        self._made.clear()


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Lets steps of an optimizer be recorded: a learning rate that is a number would be the same in
    every replay.
    """
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["capturable"] = True
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        _move_steps(optimizer, group, device)


def keep_ordinary(optimizer: torch.optim.Optimizer) -> None:
    """Lets an optimizer whose steps are not recorded load the state of one whose steps were, on any
    device.
    """
    own = [
        (group.get("capturable"), isinstance(group["lr"], Tensor))
        for group in optimizer.param_groups
    ]

    def restore(optimizer: torch.optim.Optimizer) -> None:
        for group, (capturable, has_tensor) in zip(optimizer.param_groups, own, strict=True):
            if not capturable and group.get("capturable"):
                group["capturable"] = capturable
                if not group.get("fused"):
                    _move_steps(optimizer, group, torch.device("cpu"))
            if not has_tensor:
                group["lr"] = float(group["lr"])

    optimizer.register_load_state_dict_post_hook(restore)


def _move_steps(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], device: torch.device
) -> None:
    """Moves the numbers of steps made to where an optimizer wants them."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(device)


def refuse_obstacles(
    setting: Literal["cuda_graph", "compile"], loss: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Raises a ``ValueError`` where the optimizer reads back, or an encoder cannot be captured or
    compiled.
    """
    kinds = ("capture_obstacle", *(("compile_obstacle",) if setting == "compile" else ()))
    obstacles = [getattr(module, kind, None) for module in loss.modules() for kind in kinds]
    if setting == "cuda_graph" and not all(
        "capturable" in group for group in optimizer.param_groups
    ):
        obstacles.append(type(optimizer).__name__)
    for obstacle in filter(None, obstacles):
        require("Learner", setting, True, False, f"be false with {obstacle}")
