"""Import of an agent that AMAGO 3.3 has trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensordict import NestedKey
from torch import Tensor

from yamame.actions import ActionEncoding
from yamame.checks import SettingError, UsageError, require_setting
from yamame.deploy.amago.arguments import MOST_STEPS, Arguments
from yamame.deploy.amago.checkpoint import find_config, read_weights
from yamame.deploy.amago.convert import fill
from yamame.deploy.amago.gin import read_gin, typed_values
from yamame.deploy.amago.network import GRU, Network, Tensors, Transformer, read_network
from yamame.deploy.build import build_agent
from yamame.deploy.interface import Interface, dotted
from yamame.deploy.saved import SavedAgent
from yamame.keys import CONTEXT
from yamame.system.messages import print_stderr
from yamame.timestep import inputs_from_spec

_CLIP = 1e4
"""Largest normalised input of AMAGO's agents."""
_KINDS = {
    "discrete": ("index", "one_hot"),
    "box": ("box",),
    "bits": ("bits",),
}
"""Kinds of actions of an environment by those of AMAGO."""
_FILTERS = {"binary_filter": "binary", "exp_filter": "exponential"}
_POSITIONS = {"fixed": "sinusoidal", "learnable": "learned", "rope": "rotary"}


def import_amago(
    weights: str | Path,
    *,
    interface: Interface,
    config: Mapping[str, Any],
    gin: str | Path | None = "auto",
    typed: Mapping[str, Any] | None = None,
    max_seq_len: int | None = None,
) -> SavedAgent:
    """Build an agent with the weights of one that AMAGO 3.3 has trained.

    Policies, values and memory are those of AMAGO's agent, up to rounding. Nothing of the files is
    executed.

    Args:
        weights: ``policy_epoch_*.pt`` or ``policy.pt`` of AMAGO, or the folder of a training state.
        interface: Observations and actions of the environment.
        config: Configuration of a run, in plain data. The parts of the agent are replaced, the
            other sections are kept, among them ``env``.
        gin: AMAGO's ``config.txt``. ``auto``: the one beside or above the weights, if there is one.
            None: none.
        typed: Arguments of AMAGO's classes that the file does not give, as ``{"Agent": {"gamma":
            0.9}}``.
        max_seq_len: Timesteps that a Transformer remembers, as AMAGO's ``Experiment`` was given. A
            smaller or larger number than in training is found only if it contradicts ``gin`` or
            exceeds a table of positions; it is printed as assumed.

    Raises:
        UsageError: A file is missing or damaged; a part cannot be imported; an argument is missing,
            or not that of the weights or of ``gin``; the environment has other observations or
            actions.
    """
    source = Path(weights)
    network = read_network(Tensors(read_weights(source), str(source)))
    place = find_config(source) if gin == "auto" else None if gin is None else Path(gin)
    arguments = _read_arguments(place, typed or {}, network)
    _check_actions(interface, network)
    columns = _columns(interface, network, arguments)

    length = _context_length(network, arguments, max_seq_len)
    sections = _sections(network, arguments, config, length)
    saved_config = {**config, **sections}
    agent = build_agent(saved_config, interface)
    fill(agent, network, columns)
    state = {name: value.clone() for name, value in agent.state_dict().items()}
    _report_length(length)
    about = {"origin": "AMAGO 3.3"}
    return SavedAgent(str(source), saved_config, interface, state, about)


def _read_arguments(place: Path | None, typed: Mapping[str, Any], network: Network) -> Arguments:
    read = None
    if place is not None:
        try:
            read = read_gin(place)
        except FileNotFoundError as error:
            raise SettingError("amago.config", str(place), "be an existing file") from error
    source = None if place is None else str(place)
    arguments = Arguments(read, typed_values(typed), source=source, network=network)
    arguments.report()
    return arguments


def _check_actions(interface: Interface, network: Network) -> None:
    """Raise unless the actions of the environment are those of the weights."""
    encoding = ActionEncoding(interface.action_spec)
    is_kind = encoding.kind in _KINDS[network.action_kind] and len(encoding.nvec) <= 1
    size = encoding.encoded_size
    fits = is_kind and size == network.num_actions
    condition = (
        f"have actions of AMAGO's agent ({network.action_kind}, {network.num_actions}), it has "
        f"{'discrete' if encoding.kind == 'index' else encoding.kind}, {size}"
    )
    _require_env(fits, condition)
    has_goal = "goal" in interface.observation_spec.keys(True, True)
    _require_env(not has_goal, "have no instruction: AMAGO's agents read goals as observations")


def _require_env(holds: bool, condition: str) -> None:
    if not holds:
        raise UsageError(f"must {condition}", key="env")


def _columns(
    interface: Interface, network: Network, arguments: Arguments
) -> dict[NestedKey, Sequence[int]]:
    """Return the columns of AMAGO's inputs for each entry of a timestep.

    AMAGO concatenates all observations by the order of their names, the reward, and the action.
    """
    inputs = inputs_from_spec(interface.observation_spec, batch_dims=0)
    entries = {_name(key): key for key in inputs if key not in CONTEXT}
    name = "FFTstepEncoder.specify_obs_keys"
    wanted = arguments[name]
    is_list = isinstance(wanted, list | tuple) and all(type(key) in (str, int) for key in wanted)
    if wanted is not None and not is_list:
        raise arguments.refuse(name, "be null or a list of names of observations")
    names = sorted(entries if wanted is None else map(str, wanted))
    unknown = [name for name in names if name not in entries]
    _require_env(not unknown, f"have the observations {unknown} of FFTstepEncoder.specify_obs_keys")

    columns: dict[NestedKey, Sequence[int]] = {}
    first = 0
    for name in names:
        size = inputs[entries[name]].size
        columns[entries[name]] = range(first, first + size)
        first += size
    found = network.num_inputs - 1 - network.num_actions
    sizes = ", ".join(f"{name} {inputs[entries[name]].size}" for name in names)
    condition = (
        f"have observations of {found} numbers, as AMAGO's agent, it has {first} ({sizes}); "
        "amago.gin.FFTstepEncoder.specify_obs_keys=[...] chooses some"
    )
    _require_env(found == first, condition)
    columns["prev_reward"] = [first]
    columns["prev_action"] = range(first + 1, network.num_inputs)
    return columns


def _name(key: NestedKey) -> str:
    """Return the name of an observation in AMAGO, where a dictionary has no level of its own."""
    is_part = isinstance(key, tuple) and len(key) > 1 and key[0] == "observation"
    return dotted(key[1:]) if is_part else dotted(key)


def _context_length(network: Network, arguments: Arguments, max_seq_len: int | None) -> int | None:
    """Return the timesteps of memory; None for a GRU, whose memory has no length."""
    if isinstance(network.memory, GRU):
        return None
    key = "amago.max_seq_len"
    given = arguments["Experiment.max_seq_len"]
    length = given if max_seq_len is None else max_seq_len
    is_length = type(length) is int and length >= 1
    condition = "be the max_seq_len of AMAGO's Experiment, which weights do not hold"
    require_setting(key, length, is_length, condition)
    require_setting(key, length, length <= MOST_STEPS, f"be at most {MOST_STEPS:,}")
    is_same = type(given) is not int or length == given  # a reference in a file is no number
    require_setting(key, length, is_same, f"be {given}, as Experiment.max_seq_len")

    # AMAGO requires whole sequences in a file of trajectories.
    most = arguments["Experiment.traj_save_len"]
    is_saved = type(most) is not int or length <= most
    require_setting(key, length, is_saved, f"be at most {most}, Experiment.traj_save_len")
    if network.memory.positions is not None:
        most = len(network.memory.positions)
        condition = f"be at most {most}, the size of the table of positions"
        remedy = f"no episode is longer, so that {most} remembers all of it"
        require_setting(key, length, length <= most, condition, remedy=remedy)
    return int(length)


def _report_length(length: int | None) -> None:
    """Print that nothing shows whether the length of the memory is that of training."""
    if length is not None:
        print_stderr(
            f"amago.max_seq_len={length} is taken as it is, as the weights do not show it: with "
            "another one than in training, actions differ in longer episodes"
        )


def _sections(
    network: Network, arguments: Arguments, config: Mapping[str, Any], length: int | None
) -> dict[str, Any]:
    """Return the sections of a configuration that describe the agent."""
    sections = {
        "timestep_encoder": {
            "_target_": "yamame.timestep.MLPTimestepEncoder",
            "_partial_": True,
            "hidden_size": _out(network.timestep[0][0]),
            "out_size": _out(network.timestep[-1][0]),
            "num_layers": len(network.timestep) - 1,
            "normalize": arguments["FFTstepEncoder.normalize_inputs"],
            "clip": _CLIP,
            "activation": arguments["FFTstepEncoder.activation"],
        },
        "agent": _agent_section(network, arguments, config["agent"]),
    }
    if isinstance(network.memory, GRU):
        sections["encoder"] = {
            "_target_": "yamame.trajectory.GRUEncoder",
            "_partial_": True,
            "hidden_size": network.memory.layers[0][1].shape[1],
            "num_layers": len(network.memory.layers),
            "out_features": _out(network.memory.out[0]),
        }
        return sections
    sections["encoder"] = _transformer_section(network.memory, arguments, length)
    return {**sections, "context_length": length}


def _transformer_section(
    transformer: Transformer, arguments: Arguments, length: int | None
) -> dict[str, Any]:
    block = transformer.blocks[0]
    name = "TformerTrajEncoder"
    is_learned = transformer.positions is not None
    kind = arguments[f"{name}.pos_emb"]
    if arguments.is_given(f"{name}.pos_emb") and (kind == "learnable") != is_learned:
        held = "a table of positions" if is_learned else "no table of positions"
        raise arguments.refuse(f"{name}.pos_emb", f"fit the weights, which hold {held}")
    return {
        "_target_": "yamame.trajectory.TransformerEncoder",
        "_partial_": True,
        "d_model": _out(transformer.embed[0]),
        "num_heads": len(block.head_scale),
        "num_layers": len(transformer.blocks),
        "d_ff": _out(block.ff1.weight),
        "dropout": float(arguments[f"{name}.dropout_ff"]),
        "activation": arguments[f"{name}.activation"],
        "context_length": length,
        "positions": "learned" if is_learned else _POSITIONS[kind],
        "num_positions": None if transformer.positions is None else len(transformer.positions),
        "position_precision": "float64" if is_learned else "float32",
        "norm_attention": block.norms[1] is not None,
        "norm_feedforward": block.norms[3] is not None,
        "head_scaling": True,
        "sigma_reparam": block.ff1.gamma is not None,
    }


def _agent_section(
    network: Network, arguments: Arguments, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the section ``agent``, with the loss of a configuration at AMAGO's values."""
    clip = None
    if network.action_kind == "discrete":
        low, high = (float(arguments[f"Discrete.clip_prob_{end}"]) for end in ("low", "high"))
        if not 0.0 <= low < high <= 1.0:
            condition = "be at least 0 and below Discrete.clip_prob_high, which is at most 1"
            raise arguments.refuse("Discrete.clip_prob_low", condition)
        clip = [low, high]
    return {
        "gammas": arguments.gammas,
        "multi_gamma": True,
        "probability_floor": 0.0,
        "box_distribution": arguments.box_distribution,
        "probability_clip": clip,
        "actor": {
            "_target_": "yamame.heads.ActorHead",
            "_partial_": True,
            "hidden_size": _out(network.actor[0][0]),
            "num_layers": len(network.actor) - 1,
            "dropout": float(arguments["Actor.dropout_p"]),
            "activation": arguments["Actor.activation"],
        },
        "critic": {
            "_target_": "yamame.heads.make_critic",
            "_partial_": True,
            "num_critics": network.num_critics,
            "hidden_size": network.critics[0][0].shape[2],
            "num_layers": len(network.critics) - 1,
            "activation": arguments["NCritics.activation"],
            "round_gammas": True,
        },
        "returns": {
            "_target_": "yamame.heads.PopArt",
            "_partial_": True,
            "decay": float(arguments["PopArtLayer.beta"]),
            "initial_second_moment": float(arguments["PopArtLayer.init_nu"]),
            "enabled": arguments["Agent.popart"],
        },
        "loss": _loss_section(arguments, given["loss"]),
    }


def _loss_section(arguments: Arguments, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of the loss. Values are in units of multiplied rewards, as in AMAGO."""
    values = {
        "num_target_critics": arguments["Agent.num_critics_td"],
        "reward_multiplier": float(arguments["Agent.reward_multiplier"]),
        "online_coeff": float(arguments["Agent.online_coeff"]),
        "cloning_coeff": float(arguments["Agent.offline_coeff"]),
        "critic_coeff": float(arguments["Agent.critic_loss_weight"]),
        "n_step": arguments["Agent.n_step"],
        "num_action_samples": arguments["Agent.num_actions_for_value_in_actor_loss"],
        "target_tau": float(arguments["Agent.tau"]),
    }
    chosen = _FILTERS.get(str(arguments["Agent.fbc_filter_func"]))
    if arguments["Agent.fake_filter"]:
        chosen = "none"
    if chosen is not None:
        values["cloning_filter"] = chosen
    # A loss of another class may not have all of them.
    return {name: values.get(name, value) for name, value in given.items()}


def _out(weight: Tensor) -> int:
    """Return the number of outputs of a linear layer."""
    return weight.shape[0]
