"""Updates recorded as CUDA graphs: the host launches half an update instead of every kernel.

A graph repeats the same kernels on the same memory. There is one for every structure of a batch
(keys, shapes and dtypes), and batches are copied into its static input. An update has two halves,
because the host looks at the metrics between them: one up to the gradients, one that moves the
parameters. The first updates of a structure are ordinary ones, which a capture needs as a warm-up.
Every update trains, recorded or not; a capture executes nothing.

Source: PyTorch's documentation, https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
(warm-up on a side stream, static inputs, gradients allocated by the capture, one memory pool for
graphs that never run at the same time).
"""

import warnings
from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from yamame.checks import ArgumentError
from yamame.distributed import is_rank0
from yamame.execution.capturing import recording
from yamame.execution.recorder import Recorder, structure, tensors_of
from yamame.execution.recordings import Recordings
from yamame.system.messages import print_stderr

Metrics = dict[str, Tensor]
Gradients = Callable[[TensorDictBase], Metrics]
"""First half of an update: from a batch to metrics, among them ``grad_norm``."""
Step = Callable[[Tensor], None]
"""Second half of an update, given ``grad_norm``."""


class RecordedUpdates:
    """The halves of updates, recorded for batches of structures that come again.

    Args:
        gradients: First half.
        step: Second half.
        loss: Loss that the first half computes.
        optimizer: Optimizer that the second half steps. It is made capturable, now and whenever it
            loads a state.
        recorder: Runs and records.
        extra_state: Returns further tensors that the halves read or write, such as averaged
            weights.
        after_replay: Called after the second half has been replayed, because a replay runs no
            Python code of ``step``.
        warmup: Ordinary updates of a structure before it is recorded; at least one, because an
            optimizer creates its state in its first step.
        limit: Largest number of recorded structures.

    Raises:
        ValueError: The optimizer reads back from the device, or an encoder cannot be captured.
    """

    def __init__(
        self,
        gradients: Gradients,
        step: Step,
        *,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        extra_state: Callable[[], list[Tensor]] = list,
        after_replay: Callable[[], None] = lambda: None,
        warmup: int = 3,
        limit: int = 16,
    ) -> None:
        assert min(warmup, limit) >= 1
        refuse_obstacles("cuda_graph", loss, optimizer)
        self._gradients = gradients
        self._step = step
        self._loss = loss
        self._optimizer = optimizer
        self._recorder = recorder
        self._extra_state = extra_state
        self._after_replay = after_replay
        self._recordings: Recordings[tuple[Gradients, Step]] = Recordings(
            warmup=warmup, limit=limit, before_drop=recorder.wait
        )
        self._is_announced = False
        make_capturable(optimizer)
        optimizer.register_load_state_dict_post_hook(self._restart)

    @property
    def num_recordings(self) -> int:
        """Number of structures that are recorded."""
        return len(self._recordings)

    def halves(self, batch: TensorDictBase) -> tuple[Gradients, Step]:
        """Return the two halves of an update of a batch, recorded if its structure has come often
        enough.
        """
        key = structure(batch)
        if not self._recordings.is_warm(key):
            return self._warm_gradients, lambda grad_norm: self._warm_step(grad_norm, key)
        return self._recordings.get(key, record=lambda: self._record(batch))

    def _warm_gradients(self, batch: TensorDictBase) -> Metrics:
        return self._recorder.warm(lambda: self._gradients(batch))

    def _warm_step(self, grad_norm: Tensor, key: Hashable) -> None:
        with warnings.catch_warnings():
            # A capturable optimizer warns when it steps outside of a capture, as a warm-up does.
            message = "This instance was constructed with capturable=True"
            warnings.filterwarnings("ignore", message=message)
            self._recorder.warm(lambda: self._step(grad_norm))
        # Counted here and not in the first half: a skipped update initialises no optimizer.
        self._recordings.count(key)

    def _record(self, batch: TensorDictBase) -> tuple[Gradients, Step]:
        if not self._is_announced and is_rank0():
            self._is_announced = True
            print_stderr(
                "Learner: records updates as CUDA graphs, which takes seconds for a batch of new "
                "shape"
            )
        static_batch = batch.clone()
        state = self._state()
        metrics: Metrics = {}
        rows = _Rows(metrics)

        def record_gradients() -> Metrics:
            nonlocal metrics, rows
            metrics = self._gradients(static_batch)
            rows = _Rows(metrics)
            return rows.tensors

        def record_step() -> Metrics:
            self._step(metrics["grad_norm"])
            return {}

        with recording():
            replay_gradients, tensors = self._recorder.record(
                record_gradients, reads=[*state, *static_batch.values(True, True)]
            )
            gradients_made = [p.grad for p in self._parameters() if p.grad is not None]
            replay_step, _ = self._recorder.record(
                record_step, reads=[*state, *metrics.values(), *gradients_made]
            )
        # Only these two graphs read the gradients, right after they are written: other graphs may
        # use their memory.
        self._optimizer.zero_grad()

        def gradients(batch: TensorDictBase) -> Metrics:
            static_batch.update_(batch)
            replay_gradients()
            # The next replay overwrites them.
            copies = {key: tensor.clone() for key, tensor in tensors.items()}
            return rows.split(copies)

        def step(grad_norm: Tensor) -> None:
            replay_step()
            self._after_replay()

        return gradients, step

    def _parameters(self) -> list[Tensor]:
        parameters: list[Tensor] = []
        for group in self._optimizer.param_groups:
            parameters.extend(group["params"])
        return parameters

    def _state(self) -> list[Tensor]:
        """Return the tensors that last from one update to the next."""
        tensors = tensors_of(self._loss)
        tensors.extend(self._extra_state())
        # Settings are included: a learning rate is a tensor here, see `make_capturable`.
        optimizer = [list(self._optimizer.state.values()), self._optimizer.param_groups]
        tensors.extend(leaf for leaf in tree_leaves(optimizer) if isinstance(leaf, Tensor))
        return tensors

    def _restart(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop recorded graphs, which hold tensors that a loaded state has replaced."""
        make_capturable(optimizer)
        self._recordings.clear()


class _Rows:
    """Tensors side by side in one row for each device and dtype: so few copies take all of them.

    Args:
        values: Tensors of any shapes.

    Attributes:
        tensors: The rows, by device and dtype.
    """

    def __init__(self, values: Metrics) -> None:
        self._shapes: dict[str, dict[str, torch.Size]] = {}
        parts: dict[str, list[Tensor]] = {}
        for name, value in values.items():
            row = f"{value.device} {value.dtype}"
            self._shapes.setdefault(row, {})[name] = value.shape
            parts.setdefault(row, []).append(value.reshape(-1))
        self.tensors = {row: torch.cat(row_parts) for row, row_parts in parts.items()}

    def split(self, tensors: Metrics) -> Metrics:
        """Return the values that are in rows like ``tensors``, as views."""
        values: Metrics = {}
        for row, shapes in self._shapes.items():
            parts = tensors[row].split([shape.numel() for shape in shapes.values()])
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                values[name] = part.view(shape)
        return values


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Prepare an optimizer so that its steps can be recorded."""
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["capturable"] = True
        # A Python number would be the same in every replay.
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        _move_steps(optimizer, group, device)


def keep_ordinary(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer that is not recorded load the state of a recorded one, on any device."""
    settings: list[tuple[bool | None, bool]] = []
    for group in optimizer.param_groups:
        settings.append((group.get("capturable"), isinstance(group["lr"], Tensor)))

    def restore(optimizer: torch.optim.Optimizer) -> None:
        for group, (capturable, has_tensor) in zip(optimizer.param_groups, settings, strict=True):
            if not capturable and group.get("capturable"):
                group["capturable"] = capturable
                # Ordinary implementations count steps on the CPU, all but the fused one.
                if not group.get("fused"):
                    _move_steps(optimizer, group, torch.device("cpu"))
            if not has_tensor:
                group["lr"] = float(group["lr"])

    optimizer.register_load_state_dict_post_hook(restore)


def _move_steps(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], device: torch.device
) -> None:
    """Move the step counts of a group to a device."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(device)


def refuse_obstacles(
    setting: Literal["cuda_graph", "compile"], loss: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Raise if updates cannot be captured or compiled.

    Args:
        setting: Setting of `yamame.training.Learner` that was switched on.
        loss: Loss of the updates, with its encoders.
        optimizer: Optimizer of the updates.

    Raises:
        ValueError: The optimizer reads back from the device, or a module has a ``capture_obstacle``
            or, for ``compile``, a ``compile_obstacle``.
    """
    attributes = ["capture_obstacle"]
    if setting == "compile":
        attributes.append("compile_obstacle")
    for module in loss.modules():
        for attribute in attributes:
            obstacle = getattr(module, attribute, None)
            if obstacle is not None:
                raise ArgumentError("Learner", setting, True, f"be false with {obstacle}")
    if setting == "cuda_graph":
        for group in optimizer.param_groups:
            if "capturable" not in group:
                name = type(optimizer).__name__
                raise ArgumentError("Learner", setting, True, f"be false with {name}")
