"""Arguments of AMAGO's classes that weights do not show: activations, positions, discount factors.

They come from AMAGO's ``config.txt``, from what the user types, or are AMAGO's defaults. Those that
weights show as well are compared with them, so that the file of another run is found.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from yamame.checks import Activation, Bounds, SettingError, UsageError
from yamame.deploy.amago.gin import Unread, class_name
from yamame.deploy.amago.network import GRU, Network, Transformer
from yamame.system.messages import format_value, print_stderr

TYPED = "amago.gin"
"""Setting in which a user types arguments."""
MEMORY = {Transformer: "TformerTrajEncoder", GRU: "GRUTrajEncoder"}
"""AMAGO's classes of trajectory encoders."""
_GAMMAS = [0.1, 0.9, 0.95, 0.97, 0.99, 0.995]
_ACTIVATION = "leaky_relu"

DEFAULTS: dict[str, dict[str, Any]] = {
    "Agent": {
        "num_critics": 4,
        "num_critics_td": 2,
        "online_coeff": 1.0,
        "offline_coeff": 0.1,
        "critic_loss_weight": 10.0,
        "gamma": 0.999,
        "reward_multiplier": 10.0,
        "tau": 0.003,
        "fake_filter": False,
        "num_actions_for_value_in_critic_loss": 1,
        "num_actions_for_value_in_actor_loss": 1,
        "fbc_filter_func": "binary_filter",
        "popart": True,
        "use_target_actor": True,
        "use_multigamma": True,
        "n_step": 1,
        "actor_type": "Actor",
        "critic_type": "NCritics",
        "pass_obs_keys_to_actor": None,
    },
    "Multigammas": {"discrete": _GAMMAS, "continuous": _GAMMAS},
    "Actor": {
        "n_layers": 2,
        "d_hidden": 256,
        "activation": _ACTIVATION,
        "dropout_p": 0.0,
        "continuous_dist_type": "TanhGaussian",
        "discrete_dist_type": "Discrete",
    },
    "NCritics": {"d_hidden": 256, "n_layers": 2, "dropout_p": 0.0, "activation": _ACTIVATION},
    "PopArtLayer": {"beta": 5e-4, "init_nu": 100.0},
    "InputNorm": {"beta": 1e-4, "init_nu": 1.0},
    "Discrete": {"clip_prob_low": 0.001, "clip_prob_high": 0.99},
    "TanhGaussian": {
        "std_low": 0.006737946999085467,
        "std_high": 7.38905609893065,
        "std_activation": "tanh_bounded_positive",
        "clip_actions_on_log_prob": (-0.99, 0.99),
    },
    "Beta": {
        "alpha_low": 1.0001,
        "alpha_high": None,
        "beta_low": 1.0001,
        "beta_high": None,
        "std_activation": "softplus_bounded_positive",
        "clip_actions_on_log_prob": (-0.99, 0.99),
    },
    "Multibinary": {},
    "FFTstepEncoder": {
        "n_layers": 2,
        "d_hidden": 512,
        "d_output": 256,
        "norm": None,
        "out_norm": "layer",
        "activation": _ACTIVATION,
        "hide_rl2s": False,
        "normalize_inputs": True,
        "specify_obs_keys": None,
        "auto_scale": False,
    },
    "TformerTrajEncoder": {
        "d_model": 256,
        "n_heads": 8,
        "d_ff": 1024,
        "n_layers": 3,
        "dropout_ff": 0.05,
        "dropout_emb": 0.05,
        "dropout_attn": 0.0,
        "dropout_qkv": 0.0,
        "activation": _ACTIVATION,
        "norm": "layer",
        "pos_emb": "fixed",
        "sigma_reparam": True,
        "normformer_norms": True,
        "head_scaling": True,
        "attention_type": "FlashAttention",
    },
    "GRUTrajEncoder": {"d_hidden": 256, "n_layers": 2, "d_output": 256, "norm": "layer"},
    "SigmaReparam": {"bias": True, "fast_init": False},
    "LearnablePosEmb": {"max_time_idx": None},
    "FlashAttention": {"window_size": (-1, -1)},
    "Experiment": {"max_seq_len": None, "traj_save_len": None},
}
"""Arguments of the classes that can be imported, with their defaults in AMAGO 3.3."""
_ONLY: dict[str, tuple[Any, ...]] = {
    "Agent.actor_type": ("Actor",),
    "Agent.critic_type": ("NCritics",),
    "Agent.pass_obs_keys_to_actor": (None, [], ()),
    "Actor.discrete_dist_type": ("Discrete",),
    "Actor.continuous_dist_type": ("TanhGaussian", "Beta", "Multibinary"),
    "TanhGaussian.std_low": (DEFAULTS["TanhGaussian"]["std_low"],),
    "TanhGaussian.std_high": (DEFAULTS["TanhGaussian"]["std_high"],),
    "TanhGaussian.std_activation": ("tanh_bounded_positive",),
    "Beta.alpha_low": (1.0001,),
    "Beta.alpha_high": (None,),
    "Beta.beta_low": (1.0001,),
    "Beta.beta_high": (None,),
    "Beta.std_activation": ("softplus_bounded_positive",),
    "FFTstepEncoder.norm": (None, "none"),
    "FFTstepEncoder.out_norm": ("layer",),
    "FFTstepEncoder.hide_rl2s": (False,),
    "TformerTrajEncoder.norm": ("layer",),
    "TformerTrajEncoder.pos_emb": ("fixed", "learnable", "rope"),
    "TformerTrajEncoder.attention_type": (
        *("FlashAttention", "VanillaAttention", "VanillaFlexAttention"),
    ),
    "GRUTrajEncoder.norm": ("layer",),
    "FlashAttention.window_size": ((-1, -1), [-1, -1]),
}
"""Values of arguments that can be imported, where not all can."""
_FAMILIES = {"box": ("TanhGaussian", "Beta"), "bits": ("Multibinary",)}
"""Families of continuous policies by the kind of actions that weights show."""
_ACTIVATIONS = (
    *("Actor.activation", "NCritics.activation"),
    *("FFTstepEncoder.activation", "TformerTrajEncoder.activation"),
)
_KINDS: dict[str, type | tuple[type, ...]] = {bool: bool, int: int, float: (int, float)}  # type: ignore[dict-item]
MOST_STEPS = 10**9
"""Largest length of a sequence; a larger one is a typing error."""
_COUNT = Bounds(least=1, most=MOST_STEPS)
_LAYERS = Bounds(least=0, most=1_000)
_DROPOUT = Bounds(least=0, below=1)
_WEIGHT = Bounds(least=0, most=1e12)
_RANGES = {
    **dict.fromkeys(("num_critics", "num_critics_td", "n_step", "n_heads"), _COUNT),
    **dict.fromkeys(("d_hidden", "d_output", "d_model", "d_ff"), _COUNT),
    "num_actions_for_value_in_critic_loss": _COUNT,
    "num_actions_for_value_in_actor_loss": _COUNT,
    **dict.fromkeys(("max_seq_len", "traj_save_len", "max_time_idx"), _COUNT),
    "n_layers": _LAYERS,
    **dict.fromkeys(("dropout_p", "dropout_ff", "dropout_emb"), _DROPOUT),
    **dict.fromkeys(("dropout_attn", "dropout_qkv"), _DROPOUT),
    **dict.fromkeys(("online_coeff", "offline_coeff", "critic_loss_weight"), _WEIGHT),
    "reward_multiplier": Bounds(above=0, most=1e12),
    "tau": Bounds(above=0, most=1),
    "beta": Bounds(above=0, most=1),
    "init_nu": Bounds(above=0, most=1e12),
    **dict.fromkeys(("clip_prob_low", "clip_prob_high"), Bounds(least=0, most=1)),
}
"""Ranges of numbers, by argument. `Arguments.gammas` and `_ONLY` restrict the other numbers."""
_REFUSED = ("SlidingWindowFlexAttention", "ClippedSlidingSinkAttention", "MultiTaskAgent")
"""Classes that cannot be imported, and that their arguments in a file show alone."""
_PARTS = ("TstepEncoder", "TrajEncoder", "Agent")
"""Ends of the names of classes of an agent, as AMAGO names its own."""
_TYPES = {
    "Experiment.tstep_encoder_type": ("FFTstepEncoder",),
    "Experiment.traj_encoder_type": tuple(MEMORY.values()),
    "Experiment.agent_type": ("Agent",),
}
"""Classes that can be imported, by the arguments of an experiment that name them."""
_HIDDEN = (
    *("FFTstepEncoder.activation", "FFTstepEncoder.normalize_inputs"),
    *("FFTstepEncoder.specify_obs_keys", "TformerTrajEncoder.activation"),
    *("TformerTrajEncoder.pos_emb", "Actor.activation", "Actor.continuous_dist_type"),
    *("Discrete.clip_prob_low", "Discrete.clip_prob_high", "NCritics.activation"),
    *("Agent.gamma", "Agent.use_multigamma", "Multigammas.discrete", "Multigammas.continuous"),
    *("Agent.popart", "Agent.reward_multiplier"),
)
"""Arguments that determine outputs, and that weights do not show."""
_OWN_RATES = {
    "InputNorm.beta": "the normaliser of inputs has its own rate",
    "NCritics.dropout_p": "critics have no dropout",
    "TformerTrajEncoder.dropout_attn": "attention has no dropout",
    "TformerTrajEncoder.dropout_qkv": "queries, keys and values have no dropout",
}
"""Arguments of training alone that have no counterpart, with what is left."""


class Arguments:
    """Arguments of AMAGO's classes, by ``Class.argument``.

    Args:
        read: Those of ``config.txt``; None without a file.
        typed: Those that the user has typed, which must not contradict the file.
        source: Name of the file in messages; None without one.
        network: Networks of the agent.

    Raises:
        UsageError: An argument is unknown, has a value that cannot be imported, or is not that of
            the weights.
    """

    def __init__(
        self,
        read: Mapping[str, Any] | None,
        typed: Mapping[str, Any],
        *,
        source: str | None,
        network: Network,
    ) -> None:
        self._read = dict(read or {})
        self._typed = dict(typed)
        self._source = source
        self._network = network
        for name in self._typed:
            self._require_known(name)
        self._refuse_others()
        # Classes of other kinds of agents may be in the file as well.
        for name in [*self._read, *self._typed]:
            group, _, argument = name.partition(".")
            if group in self._used():
                self._check(name)
            # AMAGO's experiment has many more arguments, which are not read.
            elif group == "Experiment" and argument in DEFAULTS[group]:
                self._check_range(name)
        self._compare_sizes()
        self._compare_typed()

    def __getitem__(self, name: str) -> Any:
        """Return the value of an argument, names of classes as texts."""
        group, _, argument = name.partition(".")
        default = DEFAULTS[group][argument]
        value = self._typed.get(name, self._read.get(name, default))
        if isinstance(default, str) or name in _ONLY:
            return class_name(value) or value
        return value

    def is_given(self, name: str) -> bool:
        """Return whether the file or the user give an argument."""
        return name in self._typed or name in self._read

    def key(self, name: str) -> str:
        """Return the setting in which a user gives an argument."""
        return f"{TYPED}.{name}"

    def refuse(self, name: str, condition: str) -> UsageError:
        """Return the error of an argument.

        Args:
            name: The argument.
            condition: Condition that it does not meet, in words that follow "must".
        """
        value = self._typed.get(name, self._read.get(name, self[name]))
        if name in self._typed or name not in self._read:
            missing = "no config.txt was found with the weights, or in two folders above them: "
            remedy = None if self._source is not None else f"{missing}set amago.config to its path"
            return SettingError(self.key(name), value, condition, remedy=remedy)
        return UsageError(f"{self._source}: {name} must {condition}, got {format_value(value)}")

    @property
    def gammas(self) -> list[float]:
        """Discount factors of the heads; the last one acts."""
        name = "Multigammas.discrete"
        if self._network.action_kind != "discrete":
            name = "Multigammas.continuous"
        others = list(self[name]) if self["Agent.use_multigamma"] else []
        gammas = [*others, self["Agent.gamma"]]
        number = self._network.num_gammas
        if len(gammas) != number:
            if not self["Agent.use_multigamma"]:
                condition = f"be true: the weights have {number} discount factors"
                raise self.refuse("Agent.use_multigamma", condition)
            condition = f"have {number - 1} numbers: the weights are of these and Agent.gamma"
            raise self.refuse(name, condition)
        for number, gamma in enumerate(gammas):
            if not _is_number(gamma) or not 0.0 < gamma < 1.0:
                if number == len(others):
                    raise self.refuse("Agent.gamma", "be above 0 and below 1")
                raise self.refuse(name, "be numbers above 0 and below 1")
        return [float(gamma) for gamma in gammas]

    @property
    def box_distribution(self) -> str:
        """Family of continuous policies."""
        kind = self["Actor.continuous_dist_type"]
        # gin leaves out classes that were passed as objects, but not their arguments.
        if not self.is_given("Actor.continuous_dist_type") and "Beta.alpha_low" in self._read:
            kind = "Beta"
        return "beta" if kind == "Beta" else "tanh_normal"

    def _assumed(self) -> list[str]:
        """Return the arguments of which neither weights, file nor user show the value."""
        used = self._used()
        if self._network.action_kind == "discrete":
            unused = {"Actor.continuous_dist_type", "Multigammas.continuous"}
        else:
            unused = {"Multigammas.discrete"}
        shows_family = {"Beta.alpha_low", "TanhGaussian.std_low"} & self._read.keys()
        if self._network.action_kind == "bits" or shows_family:
            unused.add("Actor.continuous_dist_type")
        memory = self._network.memory
        if isinstance(memory, Transformer) and memory.positions is not None:
            unused.add("TformerTrajEncoder.pos_emb")
        if self._has_popart:
            unused.add("Agent.popart")
        names = []
        for name in _HIDDEN:
            is_used = name.partition(".")[0] in used and name not in unused
            if is_used and not self.is_given(name):
                names.append(name)
        return names

    @property
    def _has_popart(self) -> bool:
        """True if values were normalised in training; AMAGO's counter starts at 1."""
        counter = self._network.popart[-1]
        return bool((counter > 1).any())

    def report(self) -> None:
        """Print which values are assumed, and what an agent does otherwise than AMAGO's."""
        assumed = self._assumed()
        if assumed:
            values = ", ".join(f"{name}={format_value(self[name])}" for name in assumed)
            has_file = self._source is not None
            place = f"{self._source} does not give them" if has_file else "no config.txt gives them"
            print_stderr(
                f"amago.config: the weights do not show these arguments, and {place}; AMAGO's "
                f"defaults are assumed: {values}; give others as {TYPED}.Agent.gamma=0.99"
            )
        dropouts = ("TformerTrajEncoder.dropout_ff", "TformerTrajEncoder.dropout_emb")
        is_transformer = isinstance(self._network.memory, Transformer)
        if is_transformer and "FlashAttention.window_size" in self._read:
            print_stderr(
                f"{self._source}: FlashAttention rounds queries, keys and values to bfloat16; here "
                "they are float32, so outputs differ by that rounding"
            )
        for name, what in _OWN_RATES.items():
            group, _, argument = name.partition(".")
            if group in self._used() and self[name] != DEFAULTS[group][argument]:
                print_stderr(f"{name}={self[name]} is left out, only training uses it: {what}")
        if is_transformer and self[dropouts[0]] != self[dropouts[1]]:
            print_stderr(
                f"{dropouts[1]}={self[dropouts[1]]} is left out, only training uses it: there is "
                f"one rate, {dropouts[0]}={self[dropouts[0]]}"
            )

    def _used(self) -> set[str]:
        """Return AMAGO's classes of this agent."""
        used = {"Agent", "Multigammas", "Actor", "NCritics", "PopArtLayer", "InputNorm"}
        used |= {"FFTstepEncoder", MEMORY[type(self._network.memory)]}
        if isinstance(self._network.memory, Transformer):
            used |= {"SigmaReparam", "FlashAttention"}
        if self._network.action_kind == "discrete":
            return used | {"Discrete"}
        if self._network.action_kind == "box":
            used.add("Beta" if self.box_distribution == "beta" else "TanhGaussian")
        return used

    def _require_known(self, name: str) -> None:
        group, _, argument = name.partition(".")
        if group not in DEFAULTS:
            condition = f"be of {', '.join(DEFAULTS)}"
            raise SettingError(self.key(name), self._typed[name], condition)
        if argument not in DEFAULTS[group]:
            condition = f"be an argument of {group}: {', '.join(DEFAULTS[group]) or 'none'}"
            raise SettingError(self.key(name), self._typed[name], condition)

    def _refuse_others(self) -> None:
        """Raise if the file has arguments of a class that cannot be imported.

        AMAGO writes those of the classes that a run has used.
        """
        for name, value in self._read.items():
            group = name.partition(".")[0]
            is_other = group.endswith(_PARTS) and group not in DEFAULTS
            if group in _REFUSED or is_other:
                raise UsageError(f"{self._source}: {group} cannot be imported, it has {name}")
            if name in _TYPES and class_name(value) not in _TYPES[name]:
                condition = f"be {_listed(_TYPES[name])} to be imported"
                found = class_name(value) or format_value(value)
                raise UsageError(f"{self._source}: {name} must {condition}, got {found}")

    def _check(self, name: str) -> None:
        """Raise unless the value of an argument can be imported."""
        group, _, argument = name.partition(".")
        if argument not in DEFAULTS[group]:
            raise UsageError(
                f"{self._source}: {name} is no argument of AMAGO 3.3, cannot be imported"
            )
        value = self[name]
        allowed = _ONLY.get(name)
        if name in _ACTIVATIONS:
            allowed = get_args(Activation)
        if allowed is not None:
            # 1 equals True, but no activation or norm is a number.
            if not any(value == each and type(value) is type(each) for each in allowed):
                raise self.refuse(name, f"be {_listed(allowed)} to be imported")
            return
        default = DEFAULTS[group][argument]
        kind = _KINDS.get(type(default))  # type: ignore[call-overload]
        if kind is not None:
            is_flag = isinstance(value, bool) and kind is not bool
            if is_flag or not isinstance(value, kind):
                raise self.refuse(name, "be a flag" if kind is bool else "be a number")
            if kind is not bool:
                self._check_range(name)
        elif isinstance(default, list | tuple):
            is_list = isinstance(value, list | tuple)
            if not is_list or not all(_is_number(each) for each in value):
                raise self.refuse(name, "be a list of numbers")

    def _check_range(self, name: str) -> None:
        """Raise for a number outside of its range; None and references of a file are no numbers."""
        value = self[name]
        bounds = _RANGES.get(name.partition(".")[2])
        if value is None or isinstance(value, Unread) or bounds is None:
            return
        if not _is_number(value) or not bounds.contain(value):
            raise self.refuse(name, bounds.condition)
        if bounds in (_COUNT, _LAYERS) and not isinstance(value, int):
            raise self.refuse(name, "be a whole number")

    def _compare_sizes(self) -> None:
        """Raise if an argument is not that of the weights, as in the file of another run."""
        network = self._network
        sizes = {
            "FFTstepEncoder.n_layers": len(network.timestep) - 1,
            "Actor.n_layers": len(network.actor) - 1,
            "Actor.d_hidden": network.actor[0][0].shape[0],
            "NCritics.n_layers": len(network.critics) - 1,
            "NCritics.d_hidden": network.critics[0][0].shape[2],
            "Agent.num_critics": network.num_critics,
        }
        if self._has_popart:
            sizes["Agent.popart"] = True
        if not self["FFTstepEncoder.auto_scale"]:
            sizes["FFTstepEncoder.d_hidden"] = network.timestep[0][0].shape[0]
            sizes["FFTstepEncoder.d_output"] = network.timestep[-1][0].shape[0]
        memory = network.memory
        if isinstance(memory, Transformer):
            block = memory.blocks[0]
            sizes["TformerTrajEncoder.d_model"] = memory.embed[0].shape[0]
            sizes["TformerTrajEncoder.n_heads"] = len(block.head_scale)
            sizes["TformerTrajEncoder.d_ff"] = block.ff1.weight.shape[0]
            sizes["TformerTrajEncoder.n_layers"] = len(memory.blocks)
            sizes["TformerTrajEncoder.sigma_reparam"] = block.ff1.gamma is not None
            sizes["TformerTrajEncoder.normformer_norms"] = block.norms[1] is not None
            if memory.positions is not None:
                sizes["LearnablePosEmb.max_time_idx"] = len(memory.positions)
        else:
            sizes["GRUTrajEncoder.d_hidden"] = memory.layers[0][1].shape[1]
            sizes["GRUTrajEncoder.n_layers"] = len(memory.layers)
            sizes["GRUTrajEncoder.d_output"] = memory.out[0].shape[0]
        for name, size in sizes.items():
            if self.is_given(name) and self[name] != size:
                raise self.refuse(name, f"be {size}, as in the weights")
        name = "Agent.num_critics_td"
        if self[name] > network.num_critics:
            raise self.refuse(name, f"be at most {network.num_critics}, the critics of the weights")
        name = "Actor.continuous_dist_type"
        families = _FAMILIES.get(network.action_kind)
        if families and self.is_given(name) and self[name] not in families:
            raise self.refuse(name, f"be {_listed(families)}, as in the weights")

    def _compare_typed(self) -> None:
        """Raise if the user gives another value than the file."""
        for name, value in self._typed.items():
            if name in self._read and _comparable(self._read[name]) != _comparable(value):
                condition = f"be {format_value(self._read[name])}, as in {self._source}"
                remedy = "amago.config=null leaves the file out"
                raise SettingError(self.key(name), value, condition, remedy=remedy)


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number; a flag is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # `math.isfinite` raises for integers that are no floats.
    return -math.inf < value < math.inf


def _comparable(value: Any) -> Any:
    """Return a value in the form that typed and written ones share."""
    if isinstance(value, list | tuple):
        return list(value)
    return class_name(value) or value


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join("null" if value is None else str(value) for value in values)
