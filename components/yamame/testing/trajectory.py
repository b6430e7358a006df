"""Checker of the laws of trajectory encoders, for any encoder.

Shapes: B envs or sequences, L timesteps, E features, D numbers of a context.
"""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, pad
from torch import Tensor, nn
from torchrl.modules import set_recurrent_mode

from yamame.checks import require_at_least
from yamame.execution.capturing import recording
from yamame.execution.recorder import tensors_of
from yamame.testing.reads import DeclaredReads, MemoryReplay
from yamame.trajectory import TrajectoryEncoder, segment_positions

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
    * *reset*: no output depends on a timestep before the last start.
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
        AssertionError: A law is broken. The message names the law, the place and the difference.
        ArgumentError: ``batch_size`` or ``length`` is too small to check the laws.

    >>> from yamame.trajectory import GRUEncoder
    >>> check_trajectory_encoder(GRUEncoder(3, hidden_size=8, out_features=4))
    """
    if encoder.context_length is not None:
        length = min(length, encoder.context_length)
    require_at_least("check_trajectory_encoder", 2, batch_size=batch_size)
    require_at_least("check_trajectory_encoder", 6, length=length)
    generator = torch.Generator().manual_seed(seed)
    probe = _Probe(copy.deepcopy(encoder).eval(), atol, generator, has_memory)
    probe.encoder.reset_memory()
    batch = _sequences(probe, batch_size, length)
    for name, check in _LAWS.items():
        probe.law = name
        check(probe, batch)


@dataclasses.dataclass
class _Probe:
    """Encoder under test, and the runs and comparisons that the laws consist of.

    Args:
        encoder: Encoder under test.
        atol: Largest absolute difference between outputs that count as equal.
        generator: Source of all random numbers.
        has_memory: True if outputs must depend on earlier timesteps.
        law: Name of the law that is being checked, for messages.
    """

    encoder: TrajectoryEncoder
    atol: float
    generator: torch.Generator
    has_memory: bool
    law: str = ""

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters(), torch.empty(0)).device

    def noise(self, *shape: int) -> Tensor:
        # Numbers are drawn on the host, so that all devices check the same ones.
        return torch.randn(shape, generator=self.generator).to(self.device)

    def coins(self, *shape: int, chance: float = 0.3) -> Tensor:
        is_true = torch.rand(shape, generator=self.generator) < chance
        return is_true.to(self.device)

    def parallel(self, batch: TensorDict) -> Tensor:
        """Return the context ``[B, L, D]`` of one parallel pass."""
        with torch.no_grad(), set_recurrent_mode(True):
            output = self.encoder(batch.clone())
        return output.get(self.encoder.keys.context)

    def act(self, batch: TensorDict, encoder: TrajectoryEncoder | None = None) -> Tensor:
        """Return the context ``[B, L, D]`` of L steps that continue from the present memory."""
        encoder = self.encoder if encoder is None else encoder
        contexts = []
        with torch.no_grad(), set_recurrent_mode(False):
            for timestep in batch.unbind(1):
                output = encoder(timestep.clone())
                contexts.append(output.get(encoder.keys.context))
        return torch.stack(contexts, 1)

    def require(self, holds: bool, message: str) -> None:
        if not holds:
            encoder_name = type(self.encoder).__name__
            raise AssertionError(f"{encoder_name} breaks the {self.law} law: {message}")

    def require_equal(self, actual: Tensor, expected: Tensor, message: str) -> None:
        """Raise, with the largest difference, unless contexts ``[B, L, D]`` are equal."""
        difference = (actual - expected).abs().amax(-1)
        # NaN counts as infinitely different, also where both are NaN.
        difference = difference.nan_to_num(torch.inf)
        env, timestep = divmod(int(difference.argmax()), difference.shape[1])
        worst = float(difference[env, timestep])
        place = f"env {env}, timestep {timestep}: off by {worst:.1e}, allowed {self.atol:.0e}"
        self.require(worst <= self.atol, f"{message} ({place})")


def _sequences(probe: _Probe, batch_size: int, length: int) -> TensorDict:
    """Return random sequences ``[B, L]`` with starts."""
    keys = probe.encoder.keys
    starts = probe.coins(batch_size, length, chance=0.2)
    # Env 0 starts once, env 1 also in the middle, the others anywhere.
    starts[:2, 1:] = False
    starts[1, length // 2] = True
    starts[:, 0] = True
    batch = TensorDict({}, [batch_size, length], device=probe.device)
    batch.set(keys.features, probe.noise(batch_size, length, probe.encoder.in_features))
    batch.set(keys.is_init, starts.unsqueeze(-1))
    batch.set(keys.step_index, segment_positions(starts).unsqueeze(-1))
    return batch


def _with_noise(probe: _Probe, batch: TensorDict, where: Tensor, scale: float = 1.0) -> TensorDict:
    """Return a copy with other features where ``where [B, L]`` is True."""
    key = probe.encoder.keys.features
    features = batch.get(key)
    noise = scale * probe.noise(*features.shape).to(features.dtype)
    return batch.clone().set(key, torch.where(where.unsqueeze(-1), noise, features))


def _without_starts(probe: _Probe, batch: TensorDict) -> TensorDict:
    """Return a copy in which no memory starts afresh."""
    key = probe.encoder.keys.is_init
    no_starts = torch.zeros_like(batch.get(key))
    return batch.clone().set(key, no_starts)


def _timesteps(batch: TensorDict) -> Tensor:
    """Return the index of every timestep, ``[B, L]``."""
    length = batch.batch_size[1]
    return torch.arange(length, device=batch.device).expand(batch.batch_size)


def _check_entries(probe: _Probe, batch: TensorDict) -> None:
    _check_entries_of_pass(probe, "parallel pass", True, batch)
    _check_entries_of_pass(probe, "acting step", False, batch[:, 0])


def _check_entries_of_pass(probe: _Probe, name: str, is_parallel: bool, inputs: TensorDict) -> None:
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


def _check_learning(probe: _Probe, batch: TensorDict) -> None:
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


def _check_causality(probe: _Probe, batch: TensorDict) -> None:
    length = batch.batch_size[1]
    expected = probe.parallel(batch)
    for cut in (1, length // 2, length - 1):
        is_later = _timesteps(batch) >= cut
        changed = _with_noise(probe, batch, is_later)
        starts = changed.get(probe.encoder.keys.is_init)
        starts ^= is_later.unsqueeze(-1) & probe.coins(*starts.shape)
        actual = probe.parallel(changed)
        message = f"outputs before timestep {cut} depend on later timesteps"
        probe.require_equal(actual[:, :cut], expected[:, :cut], message)


def _check_reset(probe: _Probe, batch: TensorDict) -> None:
    keys = probe.encoder.keys
    cut = batch.batch_size[1] // 2
    starts = batch.get(keys.is_init).clone()
    starts[:, cut] = True
    batch = batch.clone().set(keys.is_init, starts)
    changed = _with_noise(probe, batch, _timesteps(batch) < cut)
    for name, run in (("the parallel pass", probe.parallel), ("acting", probe.act)):
        expected = run(batch)[:, cut:]
        actual = run(changed)[:, cut:]
        message = f"in {name}, outputs after a start depend on timesteps before it"
        probe.require_equal(actual, expected, message)

    fresh = probe.act(batch[:, :1])
    probe.act(changed)
    probe.encoder.reset_memory()
    # Without a start, only reset_memory() can have cleared the memory.
    actual = probe.act(_without_starts(probe, batch[:, :1]))
    probe.require_equal(actual, fresh, "reset_memory() does not clear all memory")


def _check_envs(probe: _Probe, batch: TensorDict) -> None:
    env = torch.arange(batch.batch_size[0], device=probe.device)
    is_other = (env > 0).unsqueeze(1)
    changed = _with_noise(probe, batch, is_other.expand(batch.batch_size))
    starts = changed.get(probe.encoder.keys.is_init)
    starts[1:, 1:] = probe.coins(*starts[1:, 1:].shape)
    for name, run in (("the parallel pass", probe.parallel), ("acting", probe.act)):
        expected = run(batch)[:1]
        actual = run(changed)[:1]
        message = f"in {name}, outputs of an env depend on other envs"
        probe.require_equal(actual, expected, message)


def _check_padding(probe: _Probe, batch: TensorDict) -> None:
    keys = probe.encoder.keys
    num_envs, length = batch.batch_size
    lengths = torch.randint(length // 2, length, (num_envs, 1), generator=probe.generator)
    is_real = _timesteps(batch) < lengths.to(probe.device)
    mask = is_real.unsqueeze(-1)
    padded = batch.clone().apply(lambda value: value * mask.to(value.dtype))
    padded.set(keys.mask, mask)
    expected = probe.parallel(padded)

    # Large numbers, so that even a small weight on padding shows.
    dirty = _with_noise(probe, padded, ~is_real, scale=1e3)
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


def _check_copying(probe: _Probe, batch: TensorDict) -> None:
    fresh = probe.act(batch[:, :1])
    first = _without_starts(probe, batch[:, :1])
    copies: dict[str, Callable[[Any], Any]] = {
        "copy.deepcopy": copy.deepcopy,
        "pickle": lambda encoder: pickle.loads(pickle.dumps(encoder)),
    }
    for name, duplicate in copies.items():
        # A memory must be there for the copy to drop.
        probe.act(batch)
        actual = probe.act(first, duplicate(probe.encoder))
        probe.require_equal(actual, fresh, f"{name} keeps the memory")


def _check_value(probe: _Probe, batch: TensorDict) -> None:
    encoder = probe.encoder
    num_envs, length = batch.batch_size
    cut = length // 2
    encoder.reset_memory()
    probe.act(batch[:, :cut])
    assert encoder.memory is not None
    state = encoder.memory_state_dict()
    snapshot = encoder.memory.clone()
    # The encoder goes on first, to find a saved memory that shares tensors with the kept one.
    expected = probe.act(batch[:, cut:])
    encoder.load_memory_state_dict(state)
    actual = probe.act(batch[:, cut:])
    probe.require_equal(actual, expected, "a saved memory does not continue where it was taken")

    # The memory is split into envs and put together in reverse order.
    order = list(reversed(range(num_envs)))
    parts = [snapshot[env : env + 1].clone() for env in order]
    encoder.memory = torch.cat(parts)
    actual = probe.act(batch[order, cut:])[order]
    message = "an env does not continue from its own part of a memory"
    probe.require_equal(actual, expected, message)

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
    fewer = _without_starts(probe, batch[: num_envs - 1, cut : cut + 1])
    is_refused = False
    try:
        probe.act(fewer)
    except ValueError:
        is_refused = True
    encoder.memory = None
    probe.require(is_refused, "a step with another number of envs raises no ValueError")


def _check_memory(probe: _Probe, batch: TensorDict) -> None:
    last = batch.batch_size[1] - 1
    changed = _with_noise(probe, batch, _timesteps(batch) == last - 1)
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


def _check_parity(probe: _Probe, batch: TensorDict) -> None:
    half = batch.batch_size[1] // 2
    updates = {"": lambda encoder: None, **_UPDATES}
    for when, update in updates.items():
        # Steps before the update let an encoder cache products of the old weights.
        probe.act(batch[:, :half])
        update(probe.encoder)
        expected = probe.parallel(batch)
        actual = probe.act(batch)
        probe.require_equal(actual, expected, f"acting differs from the parallel pass{when}")


def _check_recording(probe: _Probe, batch: TensorDict) -> None:
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
    for when, update in _UPDATES.items():
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
    probe: _Probe,
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
        encoder_name = type(probe.encoder).__name__
        message = f"the {name} reads a tensor that is no parameter, buffer or input ({error})"
        raise AssertionError(f"{encoder_name} breaks the {probe.law} law: {message}") from error
    return operations, context


def _named_tensors(encoder: nn.Module) -> dict[str, Tensor]:
    return {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}


def _check_addresses(probe: _Probe, captured: dict[str, Tensor], when: str) -> None:
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


@torch.no_grad()
def _update_in_place(encoder: nn.Module) -> None:
    for parameter in encoder.parameters():
        parameter.mul_(1.1).add_(0.01)


def _update_data(encoder: nn.Module) -> None:
    # Writing through .data does not increment the version of a tensor.
    for parameter in encoder.parameters():
        parameter.data.copy_(parameter.data * 0.9 - 0.01)


def _update_by_loading(encoder: nn.Module) -> None:
    parameters = dict(encoder.named_parameters())
    state = {}
    for name, value in encoder.state_dict().items():
        # Buffers stay: scaled indices or statistics would have no meaning.
        state[name] = value * 1.2 + 0.01 if name in parameters else value
    encoder.load_state_dict(state)


def _update_like_a_collector(encoder: nn.Module) -> None:
    weights = TensorDict.from_module(encoder).data.flatten_keys(".")
    names = [name for name, _ in encoder.named_parameters()]
    parameters = weights.select(*names)
    new = parameters.apply(lambda value: value * 0.9 + 0.02)
    parameters.update_(new)


_UPDATES: dict[str, Callable[[nn.Module], object]] = {
    " after an update of weights in place": _update_in_place,
    " after an update of weights through .data": _update_data,
    " after load_state_dict": _update_by_loading,
    " after update_policy_weights_": _update_like_a_collector,
}
"""Ways in which weights change, by the words that follow a message."""

_LAWS: dict[str, Callable[[_Probe, TensorDict], None]] = {
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
    "recording": _check_recording,
}
"""Checks in the order in which they run. Random numbers are drawn in this order."""
