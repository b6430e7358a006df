"""The update section of the benchmark: a gradient update, whole and by parts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch


def update_parts(
    subject: Any, clock: Any, machine: Any, lengths: list[int]
) -> Iterator[tuple[str, str, float, float | None, str]]:
    """Updates of the configured number of sequences.

    Args:
        subject: Agent and learner.
        clock: Measures CPU or GPU seconds.
        machine: Its rate of matrix products is the limit, in the precision of the update's.
        lengths: Timesteps of the sequences.

    Yields:
        Name, unit, seconds of one update or part, seconds it would take at the limit, and a note.
    """
    from torchrl.modules import set_recurrent_mode
    from yamame.runs import NonFiniteGuard

    learner, size = subject.learner, subject.cfg.schedule.batch_size
    lower = subject.cfg.schedule.get("autocast")  # unknown to revisions from before it
    dtype = torch.float32 if lower is None else getattr(torch, lower)
    guard = NonFiniteGuard(Path(mkdtemp()))

    def autocast() -> Any:
        return torch.autocast(torch.device(subject.device).type, dtype, enabled=lower is not None)

    for length in lengths:
        batch = subject.batch(size, length)

        def update(batch: Any = batch) -> None:
            learner.update(batch, guard, step=0, seed=0)

        def encode(batch: Any = batch) -> None:
            with autocast(), set_recurrent_mode(True), torch.no_grad():
                learner.loss.encoder(batch.copy())

        def loss(batch: Any = batch) -> torch.Tensor:
            with autocast():
                out = learner.loss(batch)
            return torch.stack([value for key, value in out.items() if key.startswith("loss_")]).sum()

        def step() -> None:
            torch.nn.utils.clip_grad_norm_(subject.agent.parameters(), 1.0)
            learner.optimizer.step()

        update()
        with subject.counting_flops() as flops:
            update()
        rate = machine.product_rate(dtype)
        whole, label = clock.time(update, seconds=2.0), f"{size} x {length}"
        note = f"{flops[0] / 1e9:.1f} GFLOP at {rate / 1e9:.0f} GFLOP/s"
        yield f"{label}, whole", "update", whole, flops[0] / rate, note
        forward = clock.time(loss)
        yield f"{label}, encoders forward", "update", clock.time(encode), None, ""
        yield f"{label}, loss forward, encoders in it", "update", forward, None, ""
        both = clock.time(lambda loss=loss: loss().backward())
        yield f"{label}, backward", "update", both - forward, None, ""
        yield f"{label}, clipping and optimizer", "update", clock.time(step), None, ""
        yield f"{label}, targets", "update", clock.time(learner.target_updater.step), None, ""
        yield _packed_part(batch, update, clock)


def _packed_part(
    batch: Any, update: Callable[[Any], None], clock: Any
) -> tuple[str, str, float, float | None, str]:
    """An update of the same sequences in shared rows, the first of them cut to two timesteps, the last one whole."""
    from yamame.replay import SequencePacking

    size, length = batch.shape
    mask = torch.arange(length) < torch.linspace(2, length, size).round().unsqueeze(-1)
    packed = SequencePacking()(batch.copy().set("mask", mask.unsqueeze(-1).to(batch.device)))
    name, note = f"{size} of 2 to {length}, packed", f"in {len(packed)} rows, padded {size}"
    return name, "update", clock.time(lambda: update(packed)), None, note
