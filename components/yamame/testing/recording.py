"""Law of recording: a captured pass reads declared memory, and a replay equals a fresh run."""

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import set_recurrent_mode

from yamame.execution.capturing import recording
from yamame.execution.recorder import tensors_of
from yamame.testing.probe import Probe
from yamame.testing.reads import DeclaredReads, MemoryReplay
from yamame.testing.weight_updates import UPDATES


def check_recording(probe: Probe, batch: TensorDict) -> None:
    """Record both passes, and compare replays after updates of the weights with fresh runs."""
    encoder = probe.encoder
    _prepare_to_act(encoder)
    # Constants are copied to the device at their first use, which must not be recorded.
    probe.act(batch)
    assert encoder.memory is not None
    before = encoder.grow(encoder.memory.clone())
    memory = before.clone()
    x, is_init, step_index = encoder.read_step(batch[:, -1])

    def step(memory: TensorDict) -> Tensor:
        context, _ = encoder.step(x, memory, is_init, step_index)
        return context.unsqueeze(1)

    def parallel(_memory: TensorDict) -> Tensor:
        with set_recurrent_mode(True):
            output = encoder(batch.copy())
        return output.get(encoder.keys.context)

    passes: dict[str, Callable[[TensorDict], Tensor]] = {}
    # An obstacle of the class concerns both passes, one of the object only the parallel pass.
    if type(encoder).capture_obstacle is None:
        passes["step"] = step
    if encoder.capture_obstacle is None:
        passes["parallel pass"] = parallel

    inputs = [x, is_init, *batch.values(), *memory.values(True, True)]
    recorded: dict[str, tuple[MemoryReplay, Tensor]] = {}
    for name, run in passes.items():
        recorded[name] = _record(probe, name, run, memory, inputs)
    if not recorded:
        return

    _prepare_to_act(encoder)
    # The tensors are kept alive so that no address is used twice.
    captured = _named_tensors(encoder)
    for when, update in UPDATES.items():
        update(encoder)
        # Addresses must survive changes of the mode, too.
        _prepare_to_act(encoder.train().eval())
        _check_addresses(probe, captured, when)
        for name, (operations, context) in recorded.items():
            memory.update_(before)
            operations.replay()
            with torch.no_grad(), recording():
                fresh = passes[name](before.clone())
            message = (
                f"a replay of the {name}{when} differs from a fresh run: is a number baked in?"
            )
            probe.require_equal(context, fresh, message)


def _record(
    probe: Probe,
    name: str,
    run: Callable[[TensorDict], Tensor],
    memory: TensorDict,
    inputs: list[Tensor],
) -> tuple[MemoryReplay, Tensor]:
    """Record a pass that may read the inputs, parameters and buffers.

    Returns:
        The recording, and the context ``[B, L, D]`` that it writes.
    """
    operations = MemoryReplay()
    reads = DeclaredReads([*tensors_of(probe.encoder), *inputs])
    try:
        with torch.no_grad(), recording(), reads, operations:
            context = run(memory)
    except AssertionError as error:
        message = f"the {name} reads a tensor that is no parameter, buffer or input ({error})"
        raise probe.error(message) from error
    return operations, context


def _named_tensors(encoder: nn.Module) -> dict[str, Tensor]:
    return {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}


def _check_addresses(probe: Probe, captured: dict[str, Tensor], when: str) -> None:
    """Check that parameters and buffers are where they were at the capture."""
    present = _named_tensors(probe.encoder)
    for name, tensor in captured.items():
        is_same = name in present and present[name].data_ptr() == tensor.data_ptr()
        message = f"{name} is at another address{when}: copy new values into it in place"
        probe.require(is_same, message)


def _prepare_to_act(encoder: nn.Module) -> None:
    """Call ``prepare_to_act`` of all modules, as a collector does after new weights."""
    for module in encoder.modules():
        prepare = getattr(module, "prepare_to_act", None)
        if prepare is not None:
            prepare()
