"""Checker of the laws of trajectory encoders, for any encoder.

Shapes: B envs or sequences, L timesteps, D numbers of a context.
"""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict, pad
from torchrl.modules import set_recurrent_mode

from yamame.checks import require, require_at_least
from yamame.system.messages import one_line
from yamame.testing.probe import (
    BrokenLawError,
    Probe,
    sequences,
    timesteps,
    with_noise,
    without_starts,
)
from yamame.testing.recording import check_recording
from yamame.testing.weight_updates import UPDATES
from yamame.trajectory import TrajectoryEncoder

_NUM_PADDING = 3
"""Timesteps of padding added on each side."""


def check_trajectory_encoder(
    encoder: TrajectoryEncoder,
    *,
    batch_size: int = 4,
    length: int = 16,
    seed: int = 0,
    atol: float = 1e-5,
    has_memory: bool = True,
) -> None:
    """Check that an encoder satisfies the laws of `yamame.trajectory.base` in eval mode.

    * *entries*: the context is the only entry written, in the shape ``[*, D]`` and the dtype of the
      features. An acting step records no autograd graph.
    * *learning*: gradients of the parallel pass reach the features, and parameters if any are
      trainable.
    * *causality*: no output depends on a later timestep.
    * *reset*: no output depends on a timestep before the last start, even one of NaN.
    * *envs*: no output depends on another env.
    * *padding*: no output depends on the content or the amount of padding.
    * *copying*: copies and pickles start with an empty memory.
    * *value*: a memory may be copied, split, reordered and concatenated, and every env continues
      from its own part. ``step`` changes no attribute, and another number of envs raises.
    * *memory*: outputs depend on the timestep before; with ``has_memory=False`` they do not.
    * *parity*: acting step by step equals the parallel pass, also after any kind of weight update.
    * *recording*: a pass that can be captured reads only parameters, buffers, its inputs and the
      memory (`DeclaredReads`). These keep their addresses through weight updates,
      ``prepare_to_act`` and changes of the mode. A replay after an update (`MemoryReplay`) equals a
      fresh run, so no number that depends on weights is baked in.

    The checks run on a deep copy; the encoder and the global random state do not change.

    Args:
        encoder: Encoder to check.
        batch_size: Number of sequences, at least 2.
        length: Timesteps per sequence, at least 6; at most the encoder's ``context_length`` are
            used.
        seed: Seed of the features and of the timesteps where a memory starts afresh.
        atol: Largest absolute difference between outputs that count as equal.
        has_memory: True if outputs must depend on earlier timesteps, False if they must not.

    Raises:
        AssertionError: A law is broken, or the encoder raises an error. The message names the law,
            and the place and the difference.
        ArgumentError: ``encoder`` is no `TrajectoryEncoder`, or ``batch_size`` or ``length`` is too
            small to check the laws.

    >>> from yamame.trajectory import GRUEncoder
    >>> check_trajectory_encoder(GRUEncoder(3, hidden_size=8, out_features=4))
    """
    length = _checked_length(encoder, batch_size, length)
    generator = torch.Generator().manual_seed(seed)
    probe = Probe(copy.deepcopy(encoder).eval(), atol, generator, has_memory)
    probe.encoder.reset_memory()
    batch = sequences(probe, batch_size, length)
    for name, check in _LAWS.items():
        probe.law = name
        with _errors_of(probe):
            check(probe, batch)


def _checked_length(encoder: TrajectoryEncoder, batch_size: int, length: int) -> int:
    """Return the length of sequences that an encoder takes; raise for unsuitable arguments."""
    kind = type(encoder).__name__
    is_encoder = isinstance(encoder, TrajectoryEncoder)
    condition = "be a yamame.trajectory.TrajectoryEncoder"
    remedy = "derive the class from it and implement init_memory and step"
    require("check_trajectory_encoder", "encoder", kind, is_encoder, condition, remedy=remedy)
    if encoder.context_length is not None:
        length = min(length, encoder.context_length)
    require_at_least("check_trajectory_encoder", 2, batch_size=batch_size)
    require_at_least("check_trajectory_encoder", 6, length=length)
    return length


@contextmanager
def _errors_of(probe: Probe) -> Iterator[None]:
    """Name the present law in errors that the encoder itself raises within the block."""
    try:
        yield
    except BrokenLawError:
        raise
    except Exception as error:
        message = f"a call raised {type(error).__name__}: {one_line(error)}"
        raise probe.error(message) from error


def _check_entries(probe: Probe, batch: TensorDict) -> None:
    _check_entries_of_pass(probe, "parallel pass", True, batch)
    _check_entries_of_pass(probe, "acting step", False, batch[:, 0])


def _check_entries_of_pass(probe: Probe, name: str, is_parallel: bool, inputs: TensorDict) -> None:
    keys = probe.encoder.keys
    # With gradients enabled, an acting step that records a graph is found.
    with set_recurrent_mode(is_parallel):
        output = probe.encoder(inputs.clone())
    context = output.get(keys.context, None)
    probe.require(context is not None, f"the {name} writes no {keys.context!r}")

    shape = tuple(context.shape)
    expected = (*inputs.batch_size, probe.encoder.out_features)
    message = f"the {name} writes {keys.context!r} of shape {shape}, not {expected}"
    probe.require(shape == expected, message)
    dtype = inputs.get(keys.features).dtype
    message = f"the {name} writes {context.dtype} from features of {dtype}"
    probe.require(context.dtype == dtype, message)

    rest = output.exclude(keys.context)
    differing = set(rest.keys(True, True)) ^ set(inputs.keys(True, True))
    names = sorted(map(str, differing))
    probe.require(not differing, f"the {name} adds or removes {names}")
    is_unchanged = bool((rest == inputs).all())
    probe.require(is_unchanged, f"the {name} changes its inputs")
    if not is_parallel:
        probe.require(not context.requires_grad, "the acting step records a graph")


def _check_learning(probe: Probe, batch: TensorDict) -> None:
    encoder = copy.deepcopy(probe.encoder)
    inputs = batch.clone()
    features = inputs.get(encoder.keys.features).requires_grad_()
    with torch.enable_grad(), set_recurrent_mode(True):
        context = encoder(inputs).get(encoder.keys.context)
    message = "the parallel pass records no graph: is a tensor detached?"
    probe.require(context.requires_grad, message)

    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    loss = context.square().sum()
    gradients = torch.autograd.grad(loss, [features, *weights], allow_unused=True)
    is_reached = []
    for gradient in gradients:
        is_reached.append(gradient is not None and bool(gradient.any()))
    probe.require(is_reached[0], "no gradient reaches the features")
    if weights:
        probe.require(any(is_reached[1:]), "no gradient reaches a parameter")


def _check_causality(probe: Probe, batch: TensorDict) -> None:
    length = batch.batch_size[1]
    expected = probe.parallel(batch)
    for cut in (1, length // 2, length - 1):
        is_later = timesteps(batch) >= cut
        changed = with_noise(probe, batch, is_later)
        starts = changed.get(probe.encoder.keys.is_init)
        starts ^= is_later.unsqueeze(-1) & probe.coins(*starts.shape)
        actual = probe.parallel(changed)
        message = f"outputs before timestep {cut} depend on later timesteps"
        probe.require_equal(actual[:, :cut], expected[:, :cut], message)


def _check_reset(probe: Probe, batch: TensorDict) -> None:
    keys = probe.encoder.keys
    cut = batch.batch_size[1] // 2
    starts = batch.get(keys.is_init).clone()
    starts[:, cut] = True
    batch = batch.clone().set(keys.is_init, starts)
    changed = with_noise(probe, batch, timesteps(batch) < cut)
    faulty = with_noise(probe, batch, timesteps(batch) < cut, scale=torch.nan)
    for name, run in (("the parallel pass", probe.parallel), ("acting", probe.act)):
        expected = run(batch)[:, cut:]
        for kind, other in (("timesteps", changed), ("NaN", faulty)):
            actual = run(other)[:, cut:]
            message = f"in {name}, outputs after a start depend on {kind} before it"
            probe.require_equal(actual, expected, message, first=cut)

    fresh = probe.act(batch[:, :1])
    probe.act(changed)
    probe.encoder.reset_memory()
    # Without a start, only reset_memory() can have cleared the memory.
    actual = probe.act(without_starts(probe, batch[:, :1]))
    probe.require_equal(actual, fresh, "reset_memory() does not clear all memory")


def _check_envs(probe: Probe, batch: TensorDict) -> None:
    env = torch.arange(batch.batch_size[0], device=probe.device)
    is_other = (env > 0).unsqueeze(1)
    changed = with_noise(probe, batch, is_other.expand(batch.batch_size))
    starts = changed.get(probe.encoder.keys.is_init)
    starts[1:, 1:] = probe.coins(*starts[1:, 1:].shape)
    for name, run in (("the parallel pass", probe.parallel), ("acting", probe.act)):
        expected = run(batch)[:1]
        actual = run(changed)[:1]
        message = f"in {name}, outputs of an env depend on other envs"
        probe.require_equal(actual, expected, message)


def _check_padding(probe: Probe, batch: TensorDict) -> None:
    keys = probe.encoder.keys
    num_envs, length = batch.batch_size
    lengths = torch.randint(length // 2, length, (num_envs, 1), generator=probe.generator)
    is_real = timesteps(batch) < lengths.to(probe.device)
    mask = is_real.unsqueeze(-1)
    padded = batch.clone().apply(lambda value: value * mask.to(value.dtype))
    padded.set(keys.mask, mask)
    expected = probe.parallel(padded)

    # Large numbers, so that even a small weight on padding shows.
    dirty = with_noise(probe, padded, ~is_real, scale=1e3)
    starts = dirty.get(keys.is_init)
    starts |= ~mask & probe.coins(*starts.shape)
    # Outputs of padding itself may be anything.
    actual = torch.where(mask, probe.parallel(dirty), expected)
    probe.require_equal(actual, expected, "outputs depend on the content of padding")

    # `pad` takes the amounts before and after each dimension.
    longer = probe.parallel(pad(padded, [0, 0, 0, _NUM_PADDING]))
    actual = torch.where(mask, longer[:, :length], expected)
    probe.require_equal(actual, expected, "outputs depend on the amount of right padding")
    longer = probe.parallel(pad(padded, [0, 0, _NUM_PADDING, 0]))
    actual = torch.where(mask, longer[:, _NUM_PADDING:], expected)
    probe.require_equal(actual, expected, "outputs depend on the amount of left padding")


def _check_copying(probe: Probe, batch: TensorDict) -> None:
    fresh = probe.act(batch[:, :1])
    first = without_starts(probe, batch[:, :1])
    copies: dict[str, Callable[[Any], Any]] = {
        "copy.deepcopy": copy.deepcopy,
        "pickle": lambda encoder: pickle.loads(pickle.dumps(encoder)),
    }
    for name, duplicate in copies.items():
        # A memory must be there for the copy to drop.
        probe.act(batch)
        actual = probe.act(first, duplicate(probe.encoder))
        probe.require_equal(actual, fresh, f"{name} keeps the memory")


def _check_value(probe: Probe, batch: TensorDict) -> None:
    encoder = probe.encoder
    num_envs, length = batch.batch_size
    cut = length // 2
    encoder.reset_memory()
    probe.act(batch[:, :cut])
    assert encoder.memory is not None
    state = encoder.memory_state_dict()
    snapshot = encoder.memory.clone()
    # The encoder continues first: this reveals a saved memory that shares its tensors.
    expected = probe.act(batch[:, cut:])
    encoder.load_memory_state_dict(state)
    actual = probe.act(batch[:, cut:])
    message = "a saved memory does not continue where it was taken"
    probe.require_equal(actual, expected, message, first=cut)

    # The memory is split into envs and put together in reverse order.
    order = list(reversed(range(num_envs)))
    parts = [snapshot[env : env + 1].clone() for env in order]
    encoder.memory = torch.cat(parts)
    actual = probe.act(batch[order, cut:])[order]
    message = "an env does not continue from its own part of a memory"
    probe.require_equal(actual, expected, message, first=cut)

    with torch.no_grad():
        encoder.memory = None
        memory = encoder.grow(snapshot.clone())
        x, is_init, step_index = encoder.read_step(batch[:, cut])
        encoder.step(x, memory, is_init, step_index)
    probe.require(encoder.memory is None, "step() changes an attribute")

    if snapshot.is_empty():
        # An encoder without memory has no number of envs to compare.
        return
    encoder.memory = snapshot
    fewer = without_starts(probe, batch[: num_envs - 1, cut : cut + 1])
    is_refused = False
    try:
        probe.act(fewer)
    except ValueError:
        is_refused = True
    encoder.memory = None
    probe.require(is_refused, "a step with another number of envs raises no ValueError")


def _check_memory(probe: Probe, batch: TensorDict) -> None:
    last = batch.batch_size[1] - 1
    changed = with_noise(probe, batch, timesteps(batch) == last - 1)
    difference = probe.parallel(changed) - probe.parallel(batch)
    # Env 0 has no start between the two timesteps.
    effect = difference[0, last].abs().max()
    if probe.has_memory:
        # Ten times the tolerance of the other laws, so that rounding is never taken for memory.
        holds = effect > 10 * probe.atol
        subject = "outputs do not depend"
    else:
        holds = effect <= probe.atol
        subject = "outputs of an encoder without memory depend"
    probe.require(bool(holds), f"{subject} on the timestep before (changed by {effect:.1e})")


def _check_parity(probe: Probe, batch: TensorDict) -> None:
    half = batch.batch_size[1] // 2
    updates = {"": lambda encoder: None, **UPDATES}
    for when, update in updates.items():
        # Steps before the update let an encoder cache products of the old weights.
        probe.act(batch[:, :half])
        update(probe.encoder)
        expected = probe.parallel(batch)
        actual = probe.act(batch)
        probe.require_equal(actual, expected, f"acting differs from the parallel pass{when}")


_LAWS: dict[str, Callable[[Probe, TensorDict], None]] = {
    "entries": _check_entries,
    "learning": _check_learning,
    "causality": _check_causality,
    "reset": _check_reset,
    "envs": _check_envs,
    "padding": _check_padding,
    "copying": _check_copying,
    "value": _check_value,
    "memory": _check_memory,
    "parity": _check_parity,
    # Last: a violation of another law would show here as a stale recording.
    "recording": check_recording,
}
"""Checks in the order in which they run. Random numbers are drawn in this order."""
