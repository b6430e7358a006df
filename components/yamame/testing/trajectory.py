"""The laws of a trajectory encoder as a checker for any of them, in the manner of
`check_env_specs`.
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


def check_trajectory_encoder(
    encoder: TrajectoryEncoder,
    *,
    batch_size: int = 4,
    length: int = 16,
    seed: int = 0,
    atol: float = 1e-5,
    has_memory: bool = True,
) -> None:
    """Checks that an encoder keeps the laws stated in `yamame.trajectory.base`, in eval mode.

    * *entries*: only the context is written, in the right shape and the features' dtype; acting
      records no graph;
    * *learning*: gradients of the parallel pass reach the features, and parameters if any are
      trainable;
    * *causality*: no output depends on a later timestep;
    * *reset*: nothing before a start matters after it;
    * *envs*: no output depends on another env;
    * *padding*: neither what padding holds nor how much there is matters;
    * *copying*: copies and pickles start with an empty memory;
    * *value*: a memory may be copied, cut, reordered and concatenated, and every env goes on from
      its own; ``step`` changes no attribute, and another number of envs is refused;
    * *memory*: the timestep before matters (or, with ``has_memory=False``, does not);
    * *parity*: acting step by step equals the parallel pass, also after any kind of weight update;
    * *recording*: what can be captured reads parameters, buffers, its inputs and the memory, and no
      other tensor (`DeclaredReads`). These stay at their addresses through weight updates,
      ``prepare_to_act`` and changes of the mode, and a replay after an update (`MemoryReplay`)
      equals a fresh run, so no number that depends on weights is baked in.

    The encoder itself is not used: everything is done to a deep copy, and no random state is
    touched.

    Args:
        encoder: What to check.
        batch_size: Number of sequences, at least 2.
        length: Their length, at least 6; never taken beyond the encoder's ``context_length``.
        seed: Of the features and the timesteps where memory starts afresh.
        atol: Largest difference of outputs that counts as none.
        has_memory: Whether outputs must depend on earlier timesteps; if not, they must not.

    Raises:
        AssertionError: With a sentence on the law that is broken, where, and by how much.
        ValueError: If ``batch_size`` or ``length`` is too small to check anything.

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
    laws = (
        _entries,
        _learning,
        _causality,
        _reset,
        _envs,
        _padding,
        _copying,
        _value,
        _memory,
        _parity,
    )
    for law in (*laws, _recording):
        probe.law = law.__name__[1:]
        law(probe, batch)


@dataclasses.dataclass
class _Probe:
    """An encoder under test and what the laws do with it."""

    encoder: TrajectoryEncoder
    atol: float
    generator: torch.Generator
    has_memory: bool
    law: str = ""
    """The one that is checked now."""

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters(), torch.empty(0)).device

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def coins(self, *shape: int, chance: float = 0.3) -> Tensor:
        return (torch.rand(shape, generator=self.generator) < chance).to(self.device)

    def parallel(self, batch: TensorDict) -> Tensor:
        with torch.no_grad(), set_recurrent_mode(True):
            return self.encoder(batch.clone()).get(self.encoder.keys.context)

    def act(self, batch: TensorDict, encoder: TrajectoryEncoder | None = None) -> Tensor:
        """Steps through a batch, from the memory there is."""
        encoder = self.encoder if encoder is None else encoder
        with torch.no_grad(), set_recurrent_mode(False):
            return torch.stack(
                [encoder(one.clone()).get(encoder.keys.context) for one in batch.unbind(1)], 1
            )

    def demand(self, condition: bool, sentence: str) -> None:
        if not condition:
            raise AssertionError(
                f"{type(self.encoder).__name__} breaks the {self.law} law: {sentence}"
            )

    def demand_equal(self, actual: Tensor, expected: Tensor, sentence: str) -> None:
        """Compares ``[B, L, D]``."""
        off = (actual - expected).abs().amax(-1).nan_to_num(torch.inf)
        env, timestep = divmod(int(off.argmax()), off.shape[1])
        worst = float(off[env, timestep])
        place = f"env {env}, timestep {timestep}: off by {worst:.1e}, allowed {self.atol:.0e}"
        self.demand(worst <= self.atol, f"{sentence} ({place})")


def _sequences(probe: _Probe, batch_size: int, length: int) -> TensorDict:
    """Env 0 starts once, env 1 also in the middle, the others anywhere."""
    keys = probe.encoder.keys
    starts = probe.coins(batch_size, length, chance=0.2)
    starts[:2, 1:] = False
    starts[1, length // 2] = True
    starts[:, 0] = True
    batch = TensorDict({}, [batch_size, length], device=probe.device)
    batch.set(keys.features, probe.noise(batch_size, length, probe.encoder.in_features))
    batch.set(keys.is_init, starts.unsqueeze(-1))
    batch.set(keys.step_index, segment_positions(starts).unsqueeze(-1))
    return batch


def _changed(probe: _Probe, batch: TensorDict, where: Tensor, scale: float = 1.0) -> TensorDict:
    """The batch with other features where ``where`` ``[B, L]`` says."""
    key = probe.encoder.keys.features
    features = batch.get(key)
    noise = scale * probe.noise(*features.shape).to(features.dtype)
    return batch.clone().set(key, torch.where(where.unsqueeze(-1), noise, features))


def _columns(batch: TensorDict) -> Tensor:
    return torch.arange(batch.batch_size[1], device=batch.device).expand(batch.batch_size)


def _entries(probe: _Probe, batch: TensorDict) -> None:
    context = probe.encoder.keys.context
    for mode, given in ((True, batch), (False, batch[:, 0])):
        before = given.clone()
        with set_recurrent_mode(mode):
            after = probe.encoder(before)
        name = "parallel pass" if mode else "acting step"
        actual = after.get(context, None)
        probe.demand(actual is not None, f"the {name} writes no {context!r}")
        shape, expected = tuple(actual.shape), (*given.batch_size, probe.encoder.out_features)
        sentence = f"the {name} writes {context!r} of shape {shape}, not {expected}"
        probe.demand(shape == expected, sentence)
        dtype = given.get(probe.encoder.keys.features).dtype
        probe.demand(
            actual.dtype == dtype, f"the {name} writes {actual.dtype} from features of {dtype}"
        )
        rest = after.exclude(context)
        extra = set(rest.keys(True, True)) ^ set(given.keys(True, True))
        probe.demand(not extra, f"the {name} adds or removes {sorted(map(str, extra))}")
        probe.demand(bool((rest == given).all()), f"the {name} changes its inputs")
        probe.demand(mode or not actual.requires_grad, "the acting step records a graph")


def _learning(probe: _Probe, batch: TensorDict) -> None:
    encoder, given = copy.deepcopy(probe.encoder), batch.clone()
    features = given.get(encoder.keys.features).requires_grad_()
    with torch.enable_grad(), set_recurrent_mode(True):
        context = encoder(given).get(encoder.keys.context)
    probe.demand(
        context.requires_grad, "the parallel pass records no graph: is something detached?"
    )
    reached = [features, *(weight for weight in encoder.parameters() if weight.requires_grad)]
    gradients = torch.autograd.grad(context.square().sum(), reached, allow_unused=True)
    moved = [gradient is not None and bool(gradient.any()) for gradient in gradients]
    probe.demand(moved[0], "no gradient reaches the features")
    probe.demand(len(moved) == 1 or any(moved[1:]), "no gradient reaches a parameter")


def _causality(probe: _Probe, batch: TensorDict) -> None:
    length = batch.batch_size[1]
    expected = probe.parallel(batch)
    for cut in (1, length // 2, length - 1):
        later = _columns(batch) >= cut
        changed = _changed(probe, batch, later)
        starts = changed.get(probe.encoder.keys.is_init)
        starts ^= later.unsqueeze(-1) & probe.coins(*starts.shape)
        actual = probe.parallel(changed)
        wrong = f"outputs before timestep {cut} depend on what follows"
        probe.demand_equal(actual[:, :cut], expected[:, :cut], wrong)


def _padding(probe: _Probe, batch: TensorDict) -> None:
    keys = probe.encoder.keys
    num_envs, length = batch.batch_size
    lengths = torch.randint(length // 2, length, (num_envs, 1), generator=probe.generator)
    real = _columns(batch) < lengths.to(probe.device)
    zeroed = batch.clone().apply(lambda value: value * real.unsqueeze(-1).to(value.dtype))
    zeroed.set(keys.mask, real.unsqueeze(-1))
    expected = probe.parallel(zeroed)
    dirty = _changed(probe, zeroed, ~real, scale=1e3)
    starts = dirty.get(keys.is_init)
    starts |= ~real.unsqueeze(-1) & probe.coins(*starts.shape)
    actual = torch.where(real.unsqueeze(-1), probe.parallel(dirty), expected)
    probe.demand_equal(actual, expected, "outputs depend on what padding holds")
    for side, amount in (("right", (0, _NUM_PADDING)), ("left", (_NUM_PADDING, 0))):
        longer = probe.parallel(pad(zeroed, [0, 0, *amount]))
        actual = longer[:, :length] if side == "right" else longer[:, _NUM_PADDING:]
        actual = torch.where(real.unsqueeze(-1), actual, expected)
        probe.demand_equal(actual, expected, f"outputs depend on the amount of {side} padding")


def _envs(probe: _Probe, batch: TensorDict) -> None:
    others = (torch.arange(batch.batch_size[0], device=probe.device) > 0).unsqueeze(1)
    changed = _changed(probe, batch, others.expand(batch.batch_size))
    starts = changed.get(probe.encoder.keys.is_init)
    starts[1:, 1:] = probe.coins(*starts[1:, 1:].shape)
    for name, run in (("the parallel pass", probe.parallel), ("acting", probe.act)):
        expected, actual = run(batch)[:1], run(changed)[:1]
        probe.demand_equal(actual, expected, f"in {name}, outputs of an env depend on other envs")


def _reset(probe: _Probe, batch: TensorDict) -> None:
    cut = batch.batch_size[1] // 2
    starts = batch.get(probe.encoder.keys.is_init).clone()
    starts[:, cut] = True
    batch = batch.clone().set(probe.encoder.keys.is_init, starts)
    changed = _changed(probe, batch, _columns(batch) < cut)
    for name, run in (("the parallel pass", probe.parallel), ("acting", probe.act)):
        expected, actual = run(batch)[:, cut:], run(changed)[:, cut:]
        probe.demand_equal(
            actual, expected, f"in {name}, outputs after a start depend on what came before"
        )
    fresh = probe.act(batch[:, :1])
    probe.act(changed)
    probe.encoder.reset_memory()
    actual = probe.act(_without_starts(probe, batch[:, :1]))
    probe.demand_equal(actual, fresh, "reset_memory() leaves something behind")


def _without_starts(probe: _Probe, batch: TensorDict) -> TensorDict:
    key = probe.encoder.keys.is_init
    return batch.clone().set(key, torch.zeros_like(batch.get(key)))


def _copying(probe: _Probe, batch: TensorDict) -> None:
    fresh = probe.act(batch[:, :1])
    first = _without_starts(probe, batch[:, :1])
    copies: dict[str, Callable[[Any], Any]] = {
        "copy.deepcopy": copy.deepcopy,
        "pickle": lambda encoder: pickle.loads(pickle.dumps(encoder)),
    }
    for name, duplicate in copies.items():
        probe.act(batch)
        actual = probe.act(first, duplicate(probe.encoder))
        probe.demand_equal(actual, fresh, f"{name} takes the memory along")


def _value(probe: _Probe, batch: TensorDict) -> None:
    encoder, (num_envs, length) = probe.encoder, batch.batch_size
    cut = length // 2
    encoder.reset_memory()
    probe.act(batch[:, :cut])
    assert encoder.memory is not None
    state, snapshot = encoder.memory_state_dict(), encoder.memory.clone()
    expected = probe.act(batch[:, cut:])
    encoder.load_memory_state_dict(state)
    actual = probe.act(batch[:, cut:])
    probe.demand_equal(actual, expected, "a saved memory does not continue where it was taken")
    # Every env for itself, the last one first: their memories were cut apart and put together
    # again.
    order = torch.arange(num_envs - 1, -1, -1, device=probe.device)
    encoder.memory = torch.cat([snapshot[i : i + 1].clone() for i in order.tolist()])
    actual = probe.act(batch[order, cut:])[order]
    probe.demand_equal(actual, expected, "an env does not go on from its own part of a memory")
    with torch.no_grad():
        encoder.memory = None
        memory = encoder.grow(snapshot.clone())
        x, is_init, step_index = encoder.read_step(batch[:, cut])
        encoder.step(x, memory, is_init, step_index)
    probe.demand(encoder.memory is None, "step() changes an attribute")
    if snapshot.is_empty():
        return
    encoder.memory = snapshot
    fewer = _without_starts(probe, batch[: num_envs - 1, cut : cut + 1])
    try:
        probe.act(fewer)
    except ValueError:
        encoder.memory = None
    else:
        probe.demand(False, "a step with another number of envs forgets without a word")


def _recording(probe: _Probe, batch: TensorDict) -> None:
    encoder = probe.encoder
    _prepare_to_act(encoder)
    probe.act(batch)  # constants are copied to the device at their first use
    assert encoder.memory is not None
    before = encoder.grow(encoder.memory.clone())
    memory = before.clone()
    x, is_init, step_index = encoder.read_step(batch[:, -1])

    def step(memory: TensorDict) -> Tensor:
        return encoder.step(x, memory, is_init, step_index)[0]

    def parallel() -> Tensor:
        with set_recurrent_mode(True):
            return encoder(batch.copy()).get(encoder.keys.context)

    inputs = [x, is_init, *batch.values(), *memory.values(True, True)]
    recorded: dict[str, tuple[MemoryReplay, Tensor]] = {}
    if type(encoder).capture_obstacle is None:
        recorded["step"] = _record(probe, "step", lambda: step(memory), inputs)
    if encoder.capture_obstacle is None:
        recorded["parallel pass"] = _record(probe, "parallel pass", parallel, inputs)
    if not recorded:
        return

    _prepare_to_act(encoder)
    captured = _named_tensors(encoder)  # held, so that no address is used twice
    for when, update in _UPDATES.items():
        update(encoder)
        _prepare_to_act(encoder.train().eval())
        _demand_addresses(probe, captured, when)
        for name, (operations, context) in recorded.items():
            memory.update_(before)
            operations.replay()
            with torch.no_grad(), recording():
                fresh = step(before.clone()) if name == "step" else parallel()
            fresh, found = (
                value.reshape(len(batch), -1, value.shape[-1]) for value in (fresh, context)
            )
            baked = f"a replay of the {name}{when} differs from a fresh run: is a number baked in?"
            probe.demand_equal(found, fresh, baked)


def _record(
    probe: _Probe, name: str, function: Callable[[], Tensor], inputs: list[Tensor]
) -> tuple[MemoryReplay, Tensor]:
    """Records a computation that may read these inputs, parameters and buffers; returns its result
    as well.
    """
    operations = MemoryReplay()
    try:
        with (
            torch.no_grad(),
            recording(),
            DeclaredReads([*tensors_of(probe.encoder), *inputs]),
            operations,
        ):
            return operations, function()
    except AssertionError as error:
        sentence = f"the {name} reads a tensor that is no parameter, buffer or input ({error})"
        raise AssertionError(
            f"{type(probe.encoder).__name__} breaks the {probe.law} law: {sentence}"
        ) from error


def _named_tensors(encoder: nn.Module) -> dict[str, Tensor]:
    return {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}


def _demand_addresses(probe: _Probe, captured: dict[str, Tensor], when: str) -> None:
    present = _named_tensors(probe.encoder)
    for name, tensor in captured.items():
        stays = name in present and present[name].data_ptr() == tensor.data_ptr()
        probe.demand(stays, f"{name} is at another address{when}: copy new values into it in place")


def _prepare_to_act(encoder: nn.Module) -> None:
    """Prepares all modules that compute something for acting, as a collector does after new
    weights.
    """
    for module in encoder.modules():
        prepare = getattr(module, "prepare_to_act", None)
        if prepare is not None:
            prepare()


def _memory(probe: _Probe, batch: TensorDict) -> None:
    last = batch.batch_size[1] - 1
    changed = _changed(probe, batch, _columns(batch) == last - 1)
    off = (probe.parallel(changed) - probe.parallel(batch))[0, last].abs().max()
    # Ten times what counts as equal elsewhere, so that rounding is never taken for memory.
    holds = off > 10 * probe.atol if probe.has_memory else off <= probe.atol
    depend = "do not depend" if probe.has_memory else "of an encoder without memory depend"
    probe.demand(bool(holds), f"outputs {depend} on the timestep before (changed by {off:.1e})")


def _parity(probe: _Probe, batch: TensorDict) -> None:
    for when, update in {"": lambda encoder: None, **_UPDATES}.items():
        probe.act(batch[:, : batch.batch_size[1] // 2])
        update(probe.encoder)
        expected = probe.parallel(batch)
        actual = probe.act(batch)
        probe.demand_equal(actual, expected, f"acting differs from the parallel pass{when}")


@torch.no_grad()
def _update_in_place(encoder: nn.Module) -> None:
    for parameter in encoder.parameters():
        parameter.mul_(1.1).add_(0.01)


def _update_data(encoder: nn.Module) -> None:
    for parameter in encoder.parameters():
        parameter.data.copy_(parameter.data * 0.9 - 0.01)


def _update_by_loading(encoder: nn.Module) -> None:
    state = encoder.state_dict()
    names = {name for name, _ in encoder.named_parameters()}
    encoder.load_state_dict({k: v * 1.2 + 0.01 if k in names else v for k, v in state.items()})


def _update_like_a_collector(encoder: nn.Module) -> None:
    weights = TensorDict.from_module(encoder).data
    names = {name for name, _ in encoder.named_parameters()}
    flat = weights.flatten_keys(".")
    moved = TensorDict({name: value * 0.9 + 0.02 for name, value in flat.items() if name in names})
    flat.select(*names).update_(moved)


_UPDATES: dict[str, Callable[[nn.Module], object]] = {
    " after an update of weights in place": _update_in_place,
    " after an update of weights through .data": _update_data,
    " after load_state_dict": _update_by_loading,
    " after update_policy_weights_": _update_like_a_collector,
}
