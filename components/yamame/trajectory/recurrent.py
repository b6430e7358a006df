"""Gated recurrent networks as trajectory encoders: memory of fixed size, any length of history.

Shapes: B sequences, L timesteps, S segments, N envs, H units of a layer.

Source: GRU, Cho et al., arXiv 1406.1078; LSTM, Hochreiter & Schmidhuber, Neural Computation 9(8),
1997; layout (recurrent layers, linear map, LayerNorm) as in AMAGO, arXiv 2310.09971.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import Bounds, NumLayers, PositiveInt, check_bounds
from yamame.execution.capturing import capturing
from yamame.trajectory.base import Device, TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.steps import count_segments, segment_positions

TimeConstant = Annotated[float, Bounds(least=1, most=1e15)]
"""Time constant in timesteps."""
MemoryResolution = Annotated[float, Bounds(least=0.001, most=1)]
"""Distance of neighbouring values of rounded memory."""


class RecurrentEncoder(TrajectoryEncoder):
    """Base class of encoders with a small memory of fixed size.

    Such a memory is cheap to keep in the TensorDict of a TorchRL rollout: see ``memory`` of
    `TrajectoryKeys`.
    """


class StackedCells(RecurrentEncoder):
    """Recurrent layers, a linear map and a LayerNorm.

    A memory has one entry ``[N, layers, H]`` for each name in `states`.

    Args:
        in_features: Size E of the features.
        hidden_size: Width H of the memory of each layer.
        num_layers: Number of recurrent layers.
        out_features: Width D of the context.
        max_time_constant: Longest initial time constant of a channel, in timesteps. Initial time
            constants are drawn between 1 and this number, uniformly on a logarithmic scale; they
            are learnt (arXiv 1804.11188).
        gate_gain: Factor of the initial weights from the input to the gates of memory. A larger
            factor gives more channels that open at one kind of timestep and keep their content at
            the others.
        memory_resolution: Round memory to multiples of this number after every timestep of `step`,
            that is, when acting; None: do not round. Changes by less than half of this number per
            timestep are lost. So memory does not drift slowly, and what it holds can last for much
            longer than the sequences of training. `parallel` never rounds, so the two passes
            differ, `SequencePPOLoss` refuses the encoder, and `check_trajectory_encoder` accepts it
            with None only.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range.
    """

    mode: ClassVar[str]
    """Name of the cell in `nn.RNNBase`."""
    states: ClassVar[tuple[str, ...]]
    """Names of the states of a layer; the first one is its output."""
    gates: ClassVar[tuple[tuple[int, int], ...]]
    """Index of each gate of memory among the gates of the cell, and the sign of `keep_bias` in its
    bias: 1 if the gate keeps memory, -1 if it adds to it.
    """
    function: Callable[..., Any]
    """Function that applies all layers to whole sequences."""

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        hidden_size: PositiveInt = 128,
        num_layers: NumLayers = 1,
        out_features: PositiveInt = 128,
        max_time_constant: TimeConstant = 128.0,
        gate_gain: Annotated[float, Bounds(least=0, below=math.inf)] = 1.0,
        memory_resolution: MemoryResolution | None = None,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__(in_features, out_features, keys=keys)
        # The compiler unrolls all timesteps; cuDNN has one kernel for the whole sequence.
        self.compile_obstacle = type(self).__name__
        self.memory_resolution = None if memory_resolution is None else float(memory_resolution)
        # The base class of nn.GRU and nn.LSTM: those two may not occur in a compiled function.
        self.layers = nn.RNNBase(self.mode, in_features, hidden_size, num_layers, batch_first=True)
        self.out = nn.Linear(hidden_size, out_features)
        self.norm = nn.LayerNorm(out_features)

        for from_input, _, input_bias, state_bias in self.layers.all_weights:
            bias = keep_bias(hidden_size, longest=max_time_constant)
            for gate, sign in self.gates:
                first = gate * hidden_size
                rows = slice(first, first + hidden_size)
                input_bias.data[rows] = sign * bias
                state_bias.data[rows] = 0.0  # the two biases are added
                from_input.data[rows] *= gate_gain

    @abstractmethod
    def _cell(
        self, x: Tensor, states: tuple[Tensor, ...], weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Apply one layer to one timestep.

        Args:
            x: ``[N, E]``.
            states: ``[N, H]`` each.
            weights: Weights of the layer.

        Returns:
            The next states, ``[N, H]`` each.
        """

    def parallel(
        self, x: Tensor, step_index: Tensor, is_init: Tensor, num_segments: int | None = None
    ) -> Tensor:
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        if num_segments is None:
            num_segments = count_segments(is_init)
        if num_segments is None:
            # The number of rows below must not depend on values of tensors.
            return self._loop(x, is_init)
        outputs = segment_outputs(self._layers, x, is_init, num_segments)  # [B, L, H]
        return self.norm(self.out(outputs))

    def _loop(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Encode whole sequences, one timestep after the other and without rounding."""
        batch, length, _ = x.shape
        memory = self.init_memory(batch, device=x.device)
        contexts = []
        for t in range(length):
            context, memory = self._advance(x[:, t], memory, is_init[:, t], None)
            contexts.append(context)
        return torch.stack(contexts, 1)

    def _layers(self, segments: Tensor) -> Tensor:
        """Return the outputs of the last layer from zero states: ``[S, l, E] -> [S, l, H]``."""
        num_layers = self.layers.num_layers
        weights: list[Tensor] = []
        for layer_weights in self.layers.all_weights:
            weights.extend(layer_weights)
        segments = segments.to(weights[0].dtype)
        zeros = segments.new_zeros(num_layers, len(segments), self.layers.hidden_size)
        # torch.gru takes one tensor, torch.lstm a tuple of two.
        num_states = len(self.states)
        start = zeros if num_states == 1 else (zeros,) * num_states
        # cuDNN differentiates in training mode only. PPO puts the encoder in eval mode, except for
        # `layers`.
        training = self.layers.training

        # Compute in the precision of the weights: autocast runs recurrent layers of cuDNN in
        # float16 even if bfloat16 was requested, and small gradients vanish there; and some CPUs
        # have no LSTM in bfloat16.
        device = segments.device.type
        precision: Any = nullcontext()  # a meta device has no autocast
        if torch.amp.is_autocast_available(device):
            precision = torch.autocast(device, enabled=False)
        with precision:
            # Arguments after `weights`: has_biases, num_layers, dropout, training, bidirectional,
            # batch_first.
            results = self.function(
                segments, start, weights, True, num_layers, 0.0, training, False, True
            )
        outputs: Tensor = results[0]
        return outputs

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return zero states, ``[N, layers, H]`` each."""
        weight = self.norm.weight.detach()
        device = weight.device if device is None else device
        shape = (num_envs, self.layers.num_layers, self.layers.hidden_size)
        memory = {name: weight.new_zeros(shape, device=device) for name in self.states}
        return TensorDict(memory, [num_envs], device=device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`. ``step_index`` is not used."""
        self.check_step(x, memory, is_init)
        return self._advance(x, memory, is_init, self.memory_resolution)

    def _advance(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, resolution: float | None
    ) -> tuple[Tensor, TensorDict]:
        forget = is_init.view(-1, 1, 1)
        old = [memory[name].masked_fill(forget, 0) for name in self.states]  # [N, layers, H]
        new: list[tuple[Tensor, ...]] = []
        # Compute in the precision of the states: a lower one would lose small changes of them at
        # every timestep.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(old[0].dtype)
            for layer, weights in enumerate(self.layers.all_weights):
                states = tuple(state[:, layer] for state in old)
                states = self._cell(x, states, weights)
                if resolution is not None:
                    states = tuple(rounded(state, resolution) for state in states)
                new.append(states)
                x = states[0]

        entries = {}
        for index, name in enumerate(self.states):
            layers = [states[index] for states in new]
            entries[name] = torch.stack(layers, 1)  # [N, layers, H]
        next_memory = TensorDict(entries, memory.batch_size, device=memory.device)
        context = self.norm(self.out(x))
        return context, next_memory


class GRUEncoder(StackedCells):
    """A stack of GRU layers (arXiv 1406.1078), a linear map and a LayerNorm.

    The arguments are those of `StackedCells`. The gates of memory are the update gates.
    ``step_index`` is not used.

    >>> encoder = GRUEncoder(3, hidden_size=8, out_features=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 4])
    """

    function = staticmethod(torch.gru)
    states = ("hidden",)
    mode = "GRU"
    gates = ((1, 1),)  # PyTorch's order: reset, update, new

    def _cell(
        self, x: Tensor, states: tuple[Tensor, ...], weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        return (torch.gru_cell(x, *states, *weights),)


class LSTMEncoder(StackedCells):
    """A stack of LSTM layers (Hochreiter & Schmidhuber, 1997), a linear map and a LayerNorm.

    The arguments are those of `StackedCells`. The gates of memory are the input and the forget
    gates, and each layer has a cell of size H beside its output. ``step_index`` is not used.

    >>> encoder = LSTMEncoder(3, hidden_size=8, out_features=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 4])
    """

    function = staticmethod(torch.lstm)
    states = ("hidden", "cell")
    mode = "LSTM"
    # PyTorch's order: input, forget, cell, output. A cell that keeps its content adds little to it,
    # so that its size stays of order one.
    gates = ((0, -1), (1, 1))

    def _cell(
        self, x: Tensor, states: tuple[Tensor, ...], weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        return torch.lstm_cell(x, states, *weights)


def segment_outputs(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    is_init: Tensor,
    num_segments: int | None = None,
) -> Tensor:
    """Apply a causal function of sequences to every segment between two starts on its own.

    For networks that can only process a sequence from its beginning. Segments become rows of a
    batch, padded with zeros after their end.

    Args:
        function: ``[S, l, E] -> [S, l, D]``; no output may depend on a later timestep or on another
            sequence.
        x: ``[B, L, E]``.
        is_init: ``[B, L]`` bool, True in the first column.
        num_segments: Upper bound S of the number of segments; None to count them.

    Returns:
        ``[B, L, D]``.

    >>> x, is_init = torch.ones(1, 5, 1), torch.tensor([[True, False, False, True, False]])
    >>> segment_outputs(lambda segments: segments.cumsum(1), x, is_init).flatten()
    tensor([1., 2., 3., 1., 2.])
    """
    batch, length, _ = x.shape
    if num_segments is None:
        num_segments = int(is_init.sum())
    if num_segments == batch:
        return function(x)
    # (nn.GRU and nn.LSTM also accept a packed sequence without any padding. Over hundreds of
    # timesteps it is several times slower.)
    if x.is_cpu and not capturing():
        return _outputs_by_size(function, x, is_init)

    # All rows are as long as the sequences. The lengths need not be read back from the device, and
    # the number of dependent operations is the same as for the longest segment.
    timesteps = x.flatten(0, 1)  # [B L, E]
    segment = is_init.flatten().cumsum(0) - 1  # [B L]
    position = segment_positions(is_init).flatten()  # [B L]
    place = length * segment + position
    padded = x.new_zeros(num_segments * length, x.shape[-1])
    padded = padded.index_copy(0, place, timesteps)
    outputs = function(padded.unflatten(0, (num_segments, length)))  # [S, L, D]
    outputs = outputs.flatten(0, 1).index_select(0, place)
    return outputs.unflatten(0, (batch, length))


def _outputs_by_size(function: Callable[[Tensor], Tensor], x: Tensor, is_init: Tensor) -> Tensor:
    """Apply a function to segments in groups of similar lengths; see `segment_outputs`.

    The lengths of a group share their power of two, so less than half of a batch is padding.
    """
    timesteps = x.flatten(0, 1)  # [B L, E]
    segment = is_init.flatten().cumsum(0) - 1  # [B L]
    position = segment_positions(is_init).flatten()  # [B L]
    lengths = torch.bincount(segment)  # [S]
    size = torch.frexp((lengths - 1).float()).exponent  # groups 1; 2; 3 and 4; 5 to 8; ...

    outputs = []
    places = []
    for group in size.unique().tolist():
        chosen = size == group  # [S]
        place = chosen[segment].nonzero().squeeze(1)  # timesteps of the group
        row_of_segment = chosen.cumsum(0) - 1
        row = row_of_segment[segment[place]]
        where = (row, position[place])
        num_rows = int(chosen.sum())
        longest = int(lengths[chosen].max())
        padded = x.new_zeros(num_rows, longest, x.shape[-1])
        padded = padded.index_put(where, timesteps[place])
        group_outputs = function(padded)
        outputs.append(group_outputs[where])
        places.append(place)

    order = torch.cat(places).argsort()
    in_order = torch.cat(outputs)[order]
    return in_order.unflatten(0, is_init.shape)


def rounded(x: Tensor, resolution: float) -> Tensor:
    """Round to the nearest multiples of a number. Gradients pass unchanged.

    >>> rounded(torch.tensor([-0.4, 0.1, 0.6]), 0.25)
    tensor([-0.5000,  0.0000,  0.5000])
    """
    nearest = (x / resolution).round() * resolution
    # The sum is exactly `nearest`, because both differences are exact in floating point.
    return x + (nearest - x).detach()


def keep_bias(size: int, *, longest: float) -> Tensor:
    """Draw biases b of gates that keep a share sigmoid(b) of the memory at every timestep.

    Args:
        size: Number of channels.
        longest: Largest time constant in timesteps, at least 1; they are drawn between 1 and this
            number, uniformly on a logarithmic scale.

    Returns:
        ``[size]``.

    >>> _ = torch.manual_seed(0)
    >>> time_constant = 1 + keep_bias(10_000, longest=101.0).exp()
    >>> round(time_constant.mean().item()), round(time_constant.max().item())
    (22, 101)
    """
    # Such a gate forgets with the time constant T = 1 + exp(b). The usual biases near zero give T
    # of about 2, and no gradient is left after a hundred timesteps. arXiv 1804.11188 draws T
    # uniformly; a logarithmic scale gives fast channels as well, which react to the present.
    log_time_constant = torch.empty(size).uniform_(0.0, math.log(longest))
    return bias_for(log_time_constant.exp())


def bias_for(time_constant: Tensor) -> Tensor:
    """Return the biases of gates with some time constants, in timesteps; see `keep_bias`."""
    # T = 1 would need a bias of minus infinity.
    return (time_constant - 1).clamp(min=0.1).log()


def spaced_time_constants(size: int, *, longest: float) -> Tensor:
    """Return time constants up to the longest one, evenly spaced on a logarithmic scale.

    For a few channels, of which a draw (`keep_bias`) might leave none that keeps memory for long.

    >>> spaced_time_constants(3, longest=1000.0).round()
    tensor([  10.,  100., 1000.])
    """
    share = torch.arange(1, size + 1) / size
    return (math.log(longest) * share).exp()
