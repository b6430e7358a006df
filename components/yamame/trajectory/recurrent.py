"""Gated recurrent networks as trajectory encoders: memory of fixed size, any length of history.

Shapes: B sequences, L timesteps, S segments, H units of a layer.

Source: GRU, Cho et al., arXiv 1406.1078; LSTM, Hochreiter & Schmidhuber, Neural Computation 9(8),
1997; layout (recurrent layers, linear map, LayerNorm) as in AMAGO, arXiv 2310.09971.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import unravel_key
from torch import Tensor, nn
from torchrl.data import Composite, Unbounded
from torchrl.envs import TensorDictPrimer

from yamame.checks import require, require_at_least
from yamame.execution.capturing import capturing
from yamame.trajectory.base import Device, TrajectoryEncoder, TrajectoryKeys, segment_positions


class RecurrentEncoder(TrajectoryEncoder):
    """Base of encoders whose memory is small and of one size: it may live in the TensorDict of a
    TorchRL rollout.

    With ``keys.memory``, a step reads its memory there (missing at a start: a fresh one) and writes
    the next one under ``("next", keys.memory)``, as `torchrl.modules.GRUModule` does;
    `make_tensordict_primer` puts it into an environment.
    """

    is_recurrent = True

    def __init__(
        self, in_features: int, out_features: int, *, keys: TrajectoryKeys | None = None
    ) -> None:
        super().__init__(in_features, out_features, keys=keys)
        if self.keys.memory is not None:
            self.in_keys.append(self.keys.memory)
            self.out_keys.append(unravel_key(("next", self.keys.memory)))

    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        keys = self.keys
        if keys.memory is None:
            return super()._step(tensordict)
        x, is_init, step_index = self.read_step(tensordict)
        batch_size, given = (
            tensordict.get(keys.features).shape[:-1],
            tensordict.get(keys.memory, None),
        )
        if given is None:
            condition = "be in the tensordict of a step (make_tensordict_primer puts it there)"
            require(type(self).__name__, repr(keys.memory), None, bool(is_init.all()), condition)
        memory = self.init_memory(len(x), device=x.device) if given is None else given.reshape(-1)
        context, memory = self.step(x, memory, is_init, step_index)
        tensordict.set(("next", keys.memory), memory.reshape(batch_size))
        return tensordict.set(keys.context, context.reshape(*batch_size, self.out_features))

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that puts a fresh memory under ``keys.memory`` at every reset of an
        environment.

        Raises:
            ValueError: ``keys.memory`` is None.
        """
        key = self.keys.memory
        require(type(self).__name__, "keys.memory", key, key is not None, "be set for a primer")
        specs = {
            name: Unbounded(value.shape[1:], dtype=value.dtype)
            for name, value in self.init_memory(1).items()
        }
        return TensorDictPrimer({key: Composite(specs)}, default_value=0.0, expand_specs=True)


class StackedCells(RecurrentEncoder):
    """Recurrent layers, a linear map and a LayerNorm. A memory has one state ``[N, layers, H]`` per
    name.

    The layers are held as `nn.RNNBase`, which is what `nn.GRU` and `nn.LSTM` are but for their
    forward: these two classes may not stand in a compiled function.

    Args:
        in_features: Size E of the features.
        hidden_size: Size H of each layer's state.
        num_layers: Number of recurrent layers.
        out_features: Size D of the context.
        max_time_constant: Longest time constant, in timesteps, that a channel begins with; they are
            drawn between 1 and this, evenly on a logarithmic scale, and learnt.
        gate_gain: Factor of the weights by which the gates of memory begin to depend on the input.
            The larger, the more channels there are that open at one kind of timestep and keep what
            they saw at the others.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive, a time constant below 1, or the gain negative or not
            finite.
    """

    takes_num_segments = True
    mode: ClassVar[str]
    """What `nn.RNNBase` calls the layers."""
    states: ClassVar[tuple[str, ...]]
    """Names of what a layer remembers; the first is its output."""
    gates: ClassVar[tuple[tuple[int, int], ...]]
    """Which gates of a layer keep memory (1) or add to it (-1): their places, and the signs of
    `keep_bias` in them.
    """
    function: Callable[..., Any]
    """All layers over whole sequences."""

    def __init__(
        self,
        in_features: int,
        *,
        hidden_size: int = 128,
        num_layers: int = 2,
        out_features: int = 128,
        max_time_constant: float = 128.0,
        gate_gain: float = 1.0,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        sizes = {"in_features": in_features, "hidden_size": hidden_size, "num_layers": num_layers}
        owner, finite = type(self).__name__, 0 <= gate_gain < math.inf
        require_at_least(owner, 1, **sizes, max_time_constant=max_time_constant)
        require(owner, "gate_gain", gate_gain, finite, "be finite and not negative")
        super().__init__(in_features, out_features, keys=keys)
        # The compiler writes every timestep out, where cuDNN has one kernel for all.
        self.compile_obstacle = owner
        self.layers = nn.RNNBase(self.mode, in_features, hidden_size, num_layers, batch_first=True)
        self.out = nn.Linear(hidden_size, out_features)
        self.norm = nn.LayerNorm(out_features)
        for from_input, _, input_bias, state_bias in self.layers.all_weights:
            keep = keep_bias(hidden_size, longest=max_time_constant)
            for gate, sign in self.gates:
                rows = slice(gate * hidden_size, (gate + 1) * hidden_size)
                input_bias.data[rows], state_bias.data[rows] = sign * keep, 0.0
                from_input.data[rows] *= gate_gain

    @abstractmethod
    def _cell(
        self, x: Tensor, states: tuple[Tensor, ...], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """One timestep of one layer: ``[N, E]`` and states ``[N, H]`` -> the next states
        ``[N, H]``.
        """

    def parallel(
        self, x: Tensor, step_index: Tensor, is_init: Tensor, num_segments: int | None = None
    ) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        if capturing() and num_segments is None:  # it depends on the data
            return super().parallel(x, step_index, is_init)
        return self.norm(self.out(segment_outputs(self._layers, x, is_init, num_segments)))

    def _layers(self, segments: Tensor) -> Tensor:
        """Outputs of the last layer, from states of zero: ``[S, l, E] -> [S, l, H]``."""
        num_layers = self.layers.num_layers
        weights = [weight for layer in self.layers.all_weights for weight in layer]
        segments = segments.to(weights[0].dtype)
        state = segments.new_zeros(num_layers, len(segments), self.layers.hidden_size)
        start = state if len(self.states) == 1 else (state,) * len(self.states)
        # cuDNN differentiates in training mode alone: PPO leaves nothing but `layers` in it.
        training = self.layers.training
        # In the precision of the weights. Autocast computes recurrent layers of cuDNN in float16
        # even where bfloat16 is asked for: small gradients vanish there. And not every CPU has an
        # LSTM in bfloat16.
        device = segments.device.type
        has_autocast = torch.amp.is_autocast_available(device)  # a meta device has none
        with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
            outputs: Tensor = self.function(
                segments, start, weights, True, num_layers, 0.0, training, False, True
            )[0]
        return outputs

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """States of zero, ``[N, layers, H]`` each."""
        shape = num_envs, self.layers.num_layers, self.layers.hidden_size
        weight = self.norm.weight.detach()
        memory = {name: weight.new_zeros(shape, device=device) for name in self.states}
        return TensorDict(memory, [num_envs], device=memory[self.states[0]].device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        old = [
            memory[name].masked_fill(is_init.view(-1, 1, 1), 0).unbind(1) for name in self.states
        ]
        new = []
        # In the precision of the states: in a lower one, small changes of them would be lost at
        # every timestep.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(old[0][0].dtype)
            for weights, *states in zip(self.layers.all_weights, *old, strict=True):
                new.append(self._cell(x, tuple(states), weights))
                x = new[-1][0]
        stacked = {
            name: torch.stack(states, 1)
            for name, states in zip(self.states, zip(*new, strict=True), strict=True)
        }
        return self.norm(self.out(x)), TensorDict(stacked, memory.batch_size, device=memory.device)


class GRUEncoder(StackedCells):
    """A stack of GRU layers, a linear map and a LayerNorm. ``step_index`` is not used.

    Its arguments are those of `StackedCells`; the gates of memory are the update gates.

    >>> encoder = GRUEncoder(3, hidden_size=8, out_features=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 4])
    """

    function = staticmethod(torch.gru)
    states = ("hidden",)
    mode = "GRU"
    gates = ((1, 1),)

    def _cell(
        self, x: Tensor, states: tuple[Tensor, ...], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        return (torch.gru_cell(x, *states, *weights),)


class LSTMEncoder(StackedCells):
    """A stack of LSTM layers, a linear map and a LayerNorm. ``step_index`` is not used.

    Its arguments are those of `StackedCells`; the gates of memory are the input and the forget
    gates, and each layer has a cell of size H beside its output.

    >>> encoder = LSTMEncoder(3, hidden_size=8, out_features=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 4])
    """

    function = staticmethod(torch.lstm)
    states = ("hidden", "cell")
    mode = "LSTM"
    gates = ((0, -1), (1, 1))  # what is kept is hardly added to

    def _cell(
        self, x: Tensor, states: tuple[Tensor, ...], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        return torch.lstm_cell(x, states, *weights)


def segment_outputs(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    is_init: Tensor,
    num_segments: int | None = None,
) -> Tensor:
    """A causal function of sequences, applied to every segment between two starts by itself.

    For networks that can read a sequence from its beginning only. Segments lie side by side, padded
    with zeros behind their end. On a CPU those whose lengths have the same power of two go
    together, so that less than half of what is computed is padding. Elsewhere, and while capturing,
    all lie in rows as long as the sequences: their lengths need not be read back, and a device
    takes as many steps one after the other as the longest row has. (`nn.GRU` and `nn.LSTM` also
    take a packed sequence without any padding, and over hundreds of timesteps are several times
    slower with it.)

    Args:
        function: ``[S, l, E] -> [S, l, D]``, where no output depends on a later timestep or on
            another sequence.
        x: ``[B, L, E]``.
        is_init: ``[B, L]`` bool, True in the first column.
        num_segments: How many segments there are, at most; None where the host does not know.

    Returns:
        ``[B, L, D]``.

    >>> x, is_init = torch.ones(1, 5, 1), torch.tensor([[True, False, False, True, False]])
    >>> segment_outputs(lambda segments: segments.cumsum(1), x, is_init).flatten()
    tensor([1., 2., 3., 1., 2.])
    """
    if x.is_cpu and not capturing():
        return _by_size(function, x, is_init) if bool(is_init[:, 1:].any()) else function(x)
    rows = int(is_init.sum()) if num_segments is None else num_segments
    if rows == len(x):
        return function(x)
    place = x.shape[1] * (is_init.flatten().cumsum(0) - 1) + segment_positions(is_init).flatten()
    padded = x.new_zeros(rows * x.shape[1], x.shape[-1]).index_copy(0, place, x.flatten(0, 1))
    outputs = function(padded.unflatten(0, (rows, -1)))
    return outputs.flatten(0, 1).index_select(0, place).unflatten(0, is_init.shape)


def _by_size(function: Callable[[Tensor], Tensor], x: Tensor, is_init: Tensor) -> Tensor:
    """Outputs of segments whose lengths have the same power of two go together."""
    timesteps = x.flatten(0, 1)
    segment = is_init.flatten().cumsum(0) - 1
    position = segment_positions(is_init).flatten()
    lengths = torch.bincount(segment)
    size = torch.frexp((lengths - 1).float()).exponent  # the same for 1; 2; 3 and 4; 5 to 8; ...
    outputs, places = [], []
    for group in size.unique().tolist():
        chosen = size == group
        place = chosen[segment].nonzero().squeeze(1)
        where = ((chosen.cumsum(0) - 1)[segment[place]], position[place])
        padded = x.new_zeros(int(chosen.sum()), int(lengths[chosen].max()), x.shape[-1])
        outputs.append(function(padded.index_put(where, timesteps[place]))[where])
        places.append(place)
    return torch.cat(outputs)[torch.cat(places).argsort()].unflatten(0, is_init.shape)


def keep_bias(size: int, *, longest: float) -> Tensor:
    """Biases ``[size]`` of gates that keep a share sigmoid(b) of the memory at every timestep.

    Such a gate forgets with the time constant T = 1 + exp(b). With the usual biases near zero T is
    about 2, and over a hundred timesteps no gradient is left to learn from. Spread over all lengths
    that matter, channels of every T are there from the beginning (arXiv 1804.11188, which draws T
    evenly; on a logarithmic scale there are fast channels as well, and what is seen now is acted
    upon at once).

    Args:
        size: Number of channels.
        longest: Largest time constant in timesteps, at least 1; they are drawn evenly between 1 and
            this on a logarithmic scale.

    >>> _ = torch.manual_seed(0)
    >>> time_constant = 1 + keep_bias(10_000, longest=101.0).exp()
    >>> round(time_constant.mean().item()), round(time_constant.max().item())
    (22, 101)
    """
    time_constant = torch.empty(size).uniform_(0.0, math.log(longest)).exp()
    return (time_constant - 1).clamp(min=0.1).log()
