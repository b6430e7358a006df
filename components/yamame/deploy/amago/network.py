"""Networks of AMAGO's agents, read from their weights: which parts there are, and how large.

Sizes come from the weights alone, so no file asks for more memory than it takes itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from yamame.checks import UsageError
from yamame.system.messages import printable

ActionKind = Literal["discrete", "box", "bits"]
Layer = tuple[Tensor, Tensor]
"""Weight and bias."""

_COPIES = ("target_actor.", "target_critics.", "maximized_critics.")
"""Copies of other parts, which a learner makes anew."""
MOST_UPDATES = 10**15
"""Largest number of updates that a counter may show."""
_UNSUPPORTED = {
    "traj_encoder.mambas.": "MambaTrajEncoder",
    "traj_encoder.traj_emb.": "FFTrajEncoder",
    "tstep_encoder.cnn.": "CNNTstepEncoder",
    "actor.residual_blocks.": "ResidualActor",
}
"""Parts of AMAGO that cannot be imported, by the beginning of the names of their weights."""


class Tensors:
    """Tensors of a checkpoint, of which each is taken by its name.

    Args:
        tensors: Tensors by name.
        source: File of origin, for messages.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: str) -> None:
        self.source = source
        self._tensors = tensors
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self._tensors

    def starts(self, prefix: str) -> bool:
        """Return whether the name of any tensor begins with a prefix."""
        return any(name.startswith(prefix) for name in self._tensors)

    def take(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor, after comparing its shape.

        Args:
            name: Its name.
            shape: Its sizes, None for those of at least 1.

        Raises:
            UsageError: It is missing, or has another shape.
        """
        if name not in self._tensors:
            raise UsageError(f"{self.source}: must hold {name}, it does not")
        tensor = self._tensors[name]
        found = tuple(tensor.shape)
        fits = len(found) == len(shape)
        for size, wanted in zip(found, shape, strict=False):
            fits &= size >= 1 if wanted is None else size == wanted
        if not fits:
            sizes = ", ".join("*" if size is None else str(size) for size in shape)
            raise UsageError(f"{self.source}: {name} must have the shape ({sizes}), got {found}")
        self._taken.add(name)
        return tensor

    def refuse_rest(self) -> None:
        """Raise if there are weights that nothing has taken, but for copies of others."""
        for name in self._tensors:
            if name not in self._taken and not name.startswith(_COPIES):
                shown = printable(name[:100])
                raise UsageError(
                    f"{self.source}: {shown} belongs to no part of AMAGO 3.3 that can be imported"
                )


@dataclass(frozen=True)
class SigmaLayer:
    """Linear layer, sigma-reparametrised if it has ``gamma``, ``u`` and ``v``."""

    weight: Tensor
    bias: Tensor | None
    gamma: Tensor | None
    u: Tensor | None
    v: Tensor | None


@dataclass(frozen=True)
class Block:
    """One layer of a Transformer; norms are None where there are none."""

    head_scale: Tensor
    qkv: SigmaLayer
    out: SigmaLayer
    ff1: SigmaLayer
    ff2: SigmaLayer
    norms: list[Layer | None]


@dataclass(frozen=True)
class Transformer:
    """Transformer of a trajectory encoder."""

    embed: Layer
    blocks: list[Block]
    norm: Layer
    positions: Tensor | None
    """Table of learnt positions."""


@dataclass(frozen=True)
class GRU:
    """Gated recurrent network of a trajectory encoder."""

    layers: list[list[Tensor]]
    """Weights of each layer, in PyTorch's order."""
    out: Layer
    norm: Layer


@dataclass(frozen=True)
class Network:
    """All networks of an agent.

    Attributes:
        moments: ``mu``, ``nu`` and the counter of the normaliser of inputs.
        timestep: Layers of the timestep encoder.
        timestep_norm: Its LayerNorm.
        memory: Trajectory encoder.
        actor: Layers of the actor.
        critics: Layers of the critics, ``[C, in, out]`` and ``[C, out]``.
        popart: ``mu``, ``nu``, ``w``, ``b`` and the counter, ``[G]`` each.
        action_kind: Kind of the actions.
        num_actions: Size A of an encoded action.
    """

    moments: tuple[Tensor, Tensor, Tensor]
    timestep: list[Layer]
    timestep_norm: Layer
    memory: Transformer | GRU
    actor: list[Layer]
    critics: list[Layer]
    popart: list[Tensor] = field(repr=False)
    action_kind: ActionKind
    num_actions: int

    @property
    def num_inputs(self) -> int:
        """Numbers that the timestep encoder reads: observation, reward and previous action."""
        return self.timestep[0][0].shape[1]

    @property
    def num_gammas(self) -> int:
        """Number G of discount factors."""
        return len(self.popart[0])

    @property
    def num_critics(self) -> int:
        """Number C of critics."""
        return self.critics[0][0].shape[0]


def read_network(tensors: Tensors) -> Network:
    """Read the networks of an agent.

    Raises:
        UsageError: A part is missing, of another kind than those that can be imported, or sizes
            differ.
    """
    for prefix, name in _UNSUPPORTED.items():
        if tensors.starts(prefix):
            raise UsageError(f"{tensors.source}: {name} cannot be imported")
    timestep = _mlp(tensors, "tstep_encoder.base")
    inputs = timestep[0][0].shape[1]
    features = timestep[-1][0].shape[0]
    moments = (
        tensors.take("tstep_encoder.in_norm.mu", inputs),
        tensors.take("tstep_encoder.in_norm.nu", inputs),
        tensors.take("tstep_encoder.in_norm._t", 1),
    )
    timestep_norm = _norm(tensors, "tstep_encoder.out_norm", features)
    memory = _memory(tensors, features)
    width = memory.norm[0].shape[0]

    gammas = tensors.take("popart.mu", None, 1).shape[0]
    popart = [tensors.take(f"popart.{name}", gammas, 1) for name in ("mu", "nu", "w", "b", "_t")]
    actor = _mlp(tensors, "actor.base", width)
    critics = _critics(tensors)
    kind, num_actions = _actions(tensors, actor, critics, width=width, gammas=gammas)
    tensors.refuse_rest()
    _check_moments(tensors.source, moments[-1], popart)
    return Network(
        moments=moments,
        timestep=timestep,
        timestep_norm=timestep_norm,
        memory=memory,
        actor=actor,
        critics=critics,
        popart=[value.squeeze(-1) for value in popart],
        action_kind=kind,
        num_actions=num_actions,
    )


def _check_moments(source: str, num_inputs: Tensor, popart: list[Tensor]) -> None:
    """Raise unless counters and moments are those of a normaliser."""
    _, second_moment, scale, _, num_returns = popart
    for name, counter in {"tstep_encoder.in_norm._t": num_inputs, "popart._t": num_returns}.items():
        # AMAGO counts the initial moments as an update.
        is_count = (counter >= 1) & (counter <= MOST_UPDATES) & (counter == counter.round())
        if not bool(is_count.all()):
            raise UsageError(
                f"{source}: {name} must hold numbers of updates, whole numbers in "
                f"1..{MOST_UPDATES}, got {counter.flatten().tolist()}"
            )
    if not bool((second_moment >= 0).all() & (scale > 0).all()):
        raise UsageError(f"{source}: popart.nu must be at least 0, and popart.w positive")


def _linear(tensors: Tensors, name: str, outputs: int | None, inputs: int | None) -> Layer:
    weight = tensors.take(f"{name}.weight", outputs, inputs)
    return weight, tensors.take(f"{name}.bias", weight.shape[0])


def _norm(tensors: Tensors, name: str, size: int | None) -> Layer:
    """Return the gain and the bias of a LayerNorm; other normalisations have other weights."""
    if not tensors.has(f"{name}.norm.weight"):
        raise UsageError(f"{tensors.source}: {name} must be a LayerNorm, others cannot be imported")
    weight = tensors.take(f"{name}.norm.weight", size)
    return weight, tensors.take(f"{name}.norm.bias", weight.shape[0])


def _mlp(tensors: Tensors, name: str, inputs: int | None = None) -> list[Layer]:
    """Return the layers of a perceptron, the output layer last."""
    layers = [_linear(tensors, f"{name}.in_layer", None, inputs)]
    hidden = layers[0][0].shape[0]
    while tensors.has(f"{name}.layers.{len(layers) - 1}.weight"):
        layers.append(_linear(tensors, f"{name}.layers.{len(layers) - 1}", hidden, hidden))
    layers.append(_linear(tensors, f"{name}.out_layer", None, hidden))
    return layers


def _memory(tensors: Tensors, features: int) -> Transformer | GRU:
    if tensors.starts("traj_encoder.tformer."):
        return _transformer(tensors, features)
    if tensors.starts("traj_encoder.rnn."):
        return _gru(tensors, features)
    kind = "this trajectory encoder" if tensors.starts("traj_encoder.") else "IdentityTrajEncoder"
    raise UsageError(f"{tensors.source}: {kind} cannot be imported")


def _gru(tensors: Tensors, features: int) -> GRU:
    rnn = "traj_encoder.rnn"
    layers: list[list[Tensor]] = []
    size = features
    while tensors.has(f"{rnn}.weight_ih_l{len(layers)}"):
        end = f"l{len(layers)}"
        state = tensors.take(f"{rnn}.weight_hh_{end}", None, None)
        hidden = state.shape[1]
        if layers and hidden != size:
            raise UsageError(f"{tensors.source}: {rnn} must have layers of one size")
        layers.append(
            [
                tensors.take(f"{rnn}.weight_ih_{end}", 3 * hidden, size),
                tensors.take(f"{rnn}.weight_hh_{end}", 3 * hidden, hidden),
                tensors.take(f"{rnn}.bias_ih_{end}", 3 * hidden),
                tensors.take(f"{rnn}.bias_hh_{end}", 3 * hidden),
            ]
        )
        size = hidden
    out = _linear(tensors, "traj_encoder.out", None, size)
    return GRU(layers, out, _norm(tensors, "traj_encoder.out_norm", out[0].shape[0]))


def _transformer(tensors: Tensors, features: int) -> Transformer:
    name = "traj_encoder.tformer"
    embed = _linear(tensors, f"{name}.inp", None, features)
    width = embed[0].shape[0]
    blocks: list[Block] = []
    while tensors.starts(f"{name}.layers.{len(blocks)}."):
        blocks.append(_block(tensors, f"{name}.layers.{len(blocks)}", width))
    if not blocks:
        raise UsageError(f"{tensors.source}: {name}.layers must be at least one")
    if len({_kinds_of(block) for block in blocks}) > 1:
        raise UsageError(f"{tensors.source}: {name}.layers must be of one kind and size")
    table = f"{name}.position_embedding.embeddings.weight"
    positions = tensors.take(table, None, width) if tensors.has(table) else None
    return Transformer(embed, blocks, _norm(tensors, f"{name}.norm", width), positions)


def _kinds_of(block: Block) -> tuple[bool | int, ...]:
    """Return what all layers of a Transformer have in common."""
    linears = (block.qkv, block.out, block.ff1, block.ff2)
    has_sigma = [layer.gamma is not None for layer in linears]
    if len(set(has_sigma)) > 1:
        return (-1, id(block))
    has_norms = [norm is not None for norm in block.norms]
    return (*has_sigma, *has_norms, len(block.head_scale), block.ff1.weight.shape[0])


def _block(tensors: Tensors, name: str, width: int) -> Block:
    attention = f"{name}.attention_layer"
    scale = tensors.take(f"{attention}.head_scaler", 1, 1, None, 1)
    if width % scale.shape[2]:
        raise UsageError(
            f"{tensors.source}: {attention}.head_scaler must have a divisor of {width}"
        )
    ff1 = _sigma(tensors, f"{name}.ff1", None, width)
    hidden = ff1.weight.shape[0]
    norms: list[Layer | None] = []
    for number, size in ((1, width), (2, width), (3, width), (4, hidden)):
        norm = f"{name}.norm{number}"
        is_optional = number in (2, 4)
        is_left_out = is_optional and not tensors.starts(f"{norm}.")
        norms.append(None if is_left_out else _norm(tensors, norm, size))
    return Block(
        head_scale=scale.flatten(),
        qkv=_sigma(tensors, f"{attention}.qkv_projection", 3 * width, width, bias=False),
        out=_sigma(tensors, f"{attention}.out_projection", width, width),
        ff1=ff1,
        ff2=_sigma(tensors, f"{name}.ff2", width, hidden),
        norms=norms,
    )


def _sigma(
    tensors: Tensors, name: str, outputs: int | None, inputs: int, *, bias: bool = True
) -> SigmaLayer:
    weight = tensors.take(f"{name}.weight", outputs, inputs)
    size = weight.shape[0]
    offset = tensors.take(f"{name}.bias", size) if bias else None
    if not tensors.has(f"{name}.gamma"):
        return SigmaLayer(weight, offset, None, None, None)
    gamma = tensors.take(f"{name}.gamma", 1)
    u = tensors.take(f"{name}.u", size)
    return SigmaLayer(weight, offset, gamma, u, tensors.take(f"{name}.v", inputs))


def _critics(tensors: Tensors) -> list[Layer]:
    """Return the layers of all critics, the output layer last."""
    first = tensors.take("critics.net.inp_layer.weight", None, None, None)
    number, _, hidden = first.shape
    layers = [(first, tensors.take("critics.net.inp_layer.bias", 1, 1, number, hidden))]
    while tensors.has(f"critics.net.core_layers.{len(layers) - 1}.weight"):
        name = f"critics.net.core_layers.{len(layers) - 1}"
        weight = tensors.take(f"{name}.weight", number, hidden, hidden)
        layers.append((weight, tensors.take(f"{name}.bias", 1, 1, number, hidden)))
    last = tensors.take("critics.net.output_layer.weight", number, hidden, None)
    layers.append(
        (last, tensors.take("critics.net.output_layer.bias", 1, 1, number, last.shape[2]))
    )
    return [(weight, bias[0, 0]) for weight, bias in layers]


def _actions(
    tensors: Tensors, actor: list[Layer], critics: list[Layer], *, width: int, gammas: int
) -> tuple[ActionKind, int]:
    """Return the kind of the actions and the size of an encoded one.

    Critics of discrete actions read the context alone. All others read the feature of a discount
    factor and the action as well.
    """
    source = tensors.source
    params, rest = divmod(actor[-1][0].shape[0], gammas)
    if rest:
        raise UsageError(f"{source}: actor.base must have the outputs of {gammas} discount factors")
    read = critics[0][0].shape[1] - width
    outputs = critics[-1][0].shape[2]
    if read == 0 and outputs == gammas * params:
        return "discrete", params
    num_actions = read - 1
    if num_actions >= 1 and outputs > 1:
        raise UsageError(f"{source}: NCriticsTwoHot (of MultiTaskAgent) cannot be imported")
    if num_actions >= 1 and params == 2 * num_actions:
        return "box", num_actions
    if num_actions >= 1 and params == num_actions:
        return "bits", num_actions
    raise UsageError(
        f"{source}: the policy must be Discrete, TanhGaussian, Beta or Multibinary: it has "
        f"{params} parameters for an action, and critics that read {read} numbers in addition "
        "to the context"
    )
