"""Gradient updates recorded as CUDA graphs: the host launches a whole update at once instead of every kernel.

A graph repeats the same kernels on the same memory. So there is one for every structure of a batch (keys, shapes and
dtypes), its input is a batch of its own that others are copied into, and what it computes may not depend on reading
anything back. An update has two of them, for between them the host looks at the metrics: one up to the gradients, one
that moves the parameters. The first updates of a structure are ordinary ones: they are the warm-up that a capture
needs, and every update, recorded or not, trains. A capture executes nothing.

Source: PyTorch's documentation, https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs (warm-up on a side
stream, static inputs, gradients allocated by the capture, one memory pool for graphs that never run at the same time).
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.capturing import Recorder, recording, structure

Metrics = dict[str, Tensor]
Accept = Callable[[Metrics], bool]
"""Looks at the metrics of an update, and says whether it may be made."""


class RecordedUpdate:
    """The update of batches of one structure.

    Args:
        batch: One of them.
        learn: Everything up to the gradients of a batch; gives metrics.
        move: Everything after; is given the metrics, and gives them on.
        recorder: Records both.
    """

    def __init__(
        self,
        batch: TensorDictBase,
        learn: Callable[[TensorDictBase], Metrics],
        move: Callable[[Metrics], Metrics],
        recorder: Recorder,
    ) -> None:
        self._batch = batch.clone()
        with recording():
            self._learn, self._learnt = recorder.record(lambda: learn(self._batch))
            self._move, _ = recorder.record(lambda: move(self._learnt))

    def update(self, batch: TensorDictBase, accept: Accept) -> Metrics:
        """Makes the update; see `GraphedUpdates.update`."""
        self._batch.update_(batch)
        self._learn()
        if not accept(self._learnt):
            return {}
        self._move()
        # The next run overwrites them.
        return {key: value.clone() for key, value in self._learnt.items()}


class GraphedUpdates:
    """Makes updates, and records those of structures that come again.

    Of a structure, the first ``warmup`` updates that are made are ordinary ones; then it is recorded. Of the recorded
    ones, the last ``limit`` that were used are kept; one that was dropped begins anew, so that however many structures
    there are, at most one update in ``warmup + 1`` has the cost of a recording.

    Args:
        ordinary: A whole update of a batch, if it is accepted.
        learn: See `RecordedUpdate`.
        move: See `RecordedUpdate`.
        optimizer: What ``move`` steps; made capturable, now and whenever it loads a state.
        recorder: Runs and records.
        warmup: At least one, for the optimizer makes its state in its first step.
        limit: Recorded structures kept at a time.
    """

    def __init__(
        self,
        ordinary: Callable[[TensorDictBase, Accept], Metrics],
        learn: Callable[[TensorDictBase], Metrics],
        move: Callable[[Metrics], Metrics],
        *,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        warmup: int = 3,
        limit: int = 8,
    ) -> None:
        assert warmup >= 1
        assert limit >= 1
        self._ordinary, self._learn, self._move = ordinary, learn, move
        self._optimizer, self._recorder = optimizer, recorder
        self._warmup, self._limit = warmup, limit
        self._made: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, RecordedUpdate] = {}  # the one used last stands last
        make_capturable(optimizer)
        optimizer.register_load_state_dict_post_hook(self._restart)

    def update(self, batch: TensorDictBase, accept: Accept) -> Metrics:
        """Makes one update.

        Args:
            batch: On the device.
            accept: Is shown the metrics; where it says no, no update is made.

        Returns:
            Detached metrics; empty if no update was made.
        """
        key = structure(batch)
        if key not in self._recorded and self._made[key] < self._warmup:
            return self._warm(key, batch, accept)
        recorded = self._recorded.pop(key, None) or self._record(key, batch)
        self._recorded[key] = recorded
        return recorded.update(batch, accept)

    def _warm(self, key: Hashable, batch: TensorDictBase, accept: Accept) -> Metrics:
        with warnings.catch_warnings():
            # That a capturable optimizer steps without a capture is what a warm-up is.
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
            metrics = self._recorder.warm(lambda: self._ordinary(batch, accept))
        self._made[key] += bool(metrics)
        return metrics

    def _record(self, key: Hashable, batch: TensorDictBase) -> RecordedUpdate:
        while len(self._recorded) >= self._limit:
            oldest = next(iter(self._recorded))
            del self._recorded[oldest], self._made[oldest]
        recorded = RecordedUpdate(batch, self._learn, self._move, self._recorder)
        # Its gradients are read by itself alone, right after they are written: others may have their memory.
        self._optimizer.zero_grad()
        return recorded

    def _restart(self, optimizer: torch.optim.Optimizer) -> None:
        """What was recorded steps with tensors that a loaded state has replaced."""
        make_capturable(optimizer)
        self._recorded.clear()
        self._made.clear()


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Lets steps of an optimizer be recorded: a learning rate that is a number would be the same in every replay."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=group["params"][0].device)


def refuse_obstacles(loss: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises where an update cannot be recorded.

    Raises:
        ValueError: The optimizer reads back, or an encoder's sizes depend on data.
    """
    if not all("capturable" in group for group in optimizer.param_groups):
        raise ValueError(f"Learner: cuda_graph must be false with {type(optimizer).__name__}, got true")
    for module in loss.modules():
        obstacle = getattr(module, "capture_obstacle", None)
        if obstacle is not None:
            raise ValueError(f"Learner: cuda_graph must be false with {obstacle}, got true")
