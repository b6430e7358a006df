"""Transformers of the library `transformers` that accept a mask, as trajectory encoders.

A linear map of the features replaces the embedding of tokens; the layers are those of the library.
A mask determines which timesteps each one attends to, and ``step_index`` its position, so sequences
may be packed. The memory of acting is the cache of keys and values of
`yamame.trajectory.kv_cache`.

Needs ``pip install 'yamame[hf]'``. Nothing is downloaded, no code of a model's folder runs, and
weights are read from safetensors only.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import ArgumentError, NumLayers, PositiveInt, check_bounds, require
from yamame.system.messages import one_line
from yamame.trajectory.adapters.parity import PARITY, difference_of_passes
from yamame.trajectory.base import Device, TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.kv_cache import CacheStep, grow_cache, init_cache

_OWNER = "HFEncoder"
_TOKEN_FIELDS = (
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
    "use_cache",
)
"""Fields of a configuration that do not concern the layers."""
_INITIALIZER = 0.02 * 768**0.5
"""Standard deviation of new weights, times the root of the width: the library's 0.02 is meant for a
width of 768.
"""
_POSITION_TABLES = ("wpe", "position_embeddings", "embed_positions")
"""Names of modules that learn a vector for each position."""


class MissingLibrary(ImportError, ValueError):  # noqa: N818
    """Raised if the package `transformers` is not installed."""


class HFEncoder(TrajectoryEncoder):
    """A linear map of the features, and the layers of a model of `transformers`.

    Every timestep attends to the whole episode up to itself. The model must cache keys and values,
    and accept positions and a mask: gpt2, llama, mistral, qwen2, qwen3, gemma, phi, gpt_neox, bert
    and others do. The constructor compares both passes and raises for a model in which they differ.

    Args:
        in_features: Size E of the features.
        model_type: Name of the architecture in the library: ``gpt2``, ``llama``, ``mistral``,
            ``qwen2`` and others.
        d_model: Size D of the layers and of the context (the library's ``hidden_size``).
        num_heads: Number of attention heads, which divides ``d_model`` (``num_attention_heads``;
            also ``num_key_value_heads`` unless ``settings`` has a different number).
        num_layers: Number of layers (``num_hidden_layers``).
        settings: Further fields of the model's configuration, by the names of the library. Defaults
            that differ from the library's: ``intermediate_size`` 4 D, ``head_dim`` D /
            ``num_heads`` and ``initializer_range`` 0.55 / sqrt(D). Learnt positions (gpt2) end at
            ``n_positions``.
        path: A local folder with a ``config.json`` that agrees with all of the above, and
            safetensors with the initial weights of the layers; None for random weights. The
            embedding of tokens is not used.
        context_length: Longest history, in timesteps, that the agent remembers while acting; older
            timesteps are forgotten. None: all, with a cache that grows.
        keys: Keys to read and write; None for the defaults. A memory in the TensorDict has the full
            size of ``context_length``, as for `TransformerEncoder`.

    Raises:
        ValueError: The library has no such model or setting, the model ignores masks, or the folder
            has no such weights; at a call, ``step_index`` exceeds the learnt positions.
        MissingLibrary: The library is not installed; both an `ImportError` and a `ValueError`.

    >>> HFEncoder(3, d_model=8, num_heads=0)
    Traceback (most recent call last):
    yamame.checks.ArgumentError: HFEncoder: num_heads must be at least 1, got 0
    """

    capture_obstacle = _OWNER  # code of the library may read values back from the device

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        model_type: str = "gpt2",
        d_model: PositiveInt = 128,
        num_heads: PositiveInt = 8,
        num_layers: NumLayers = 2,
        settings: Mapping[str, Any] | None = None,
        path: str | None = None,
        context_length: PositiveInt | None = 1024,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        divides = d_model % num_heads == 0
        require(_OWNER, "d_model", d_model, divides, f"be a multiple of num_heads {num_heads}")
        super().__init__(in_features, d_model, context_length=context_length, keys=keys)
        self.limit_memory(context_length, "context_length")
        sizes = {
            "hidden_size": d_model,
            "num_attention_heads": num_heads,
            "num_hidden_layers": num_layers,
        }
        config = _configuration(model_type, sizes, settings or {})
        _check_attention(config, context_length)
        self.embed = nn.Linear(in_features, d_model)
        self.model = _random(config) if path is None else _pretrained(config, path)
        # The model is called with embedded inputs only.
        self.model.set_input_embeddings(nn.Identity())

        # The argument was renamed in a later version of the library.
        parameters = inspect.signature(self.model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        key_heads = getattr(config, "num_key_value_heads", None) or num_heads
        head_size = getattr(config, "head_dim", None) or d_model // num_heads
        self._cache_shape = (num_layers, key_heads, head_size)
        table_sizes = []
        for name, module in self.model.named_modules():
            if name.endswith(_POSITION_TABLES) and isinstance(module, nn.Embedding):
                table_sizes.append(module.num_embeddings)
        self.num_positions = min(table_sizes, default=None)
        self._check_parity(model_type)

    @property
    def parameter_roles(self) -> dict[str, str]:
        """Roles of the linear layers of GPT-2, which have a class of their own (``Conv1D``)."""
        roles = {}
        for name, module in self.model.named_modules():
            if type(module).__name__ == "Conv1D":
                roles[f"model.{name}.weight"] = "hidden"
        return roles

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode ``[B, L, E]``, with ``step_index`` and starts ``[B, L]``, as ``[B, L, D]``."""
        segment = is_init.cumsum(1)
        is_same = segment.unsqueeze(2) == segment.unsqueeze(1)  # [B, L, L]
        visible = is_same.tril().unsqueeze(1)
        return self._encode(x, step_index, visible, None)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return an empty cache; see `yamame.trajectory.kv_cache`."""
        layers, heads, size = self._cache_shape
        num_slots = 0
        if capacity is not None:
            num_slots = capacity
            if self.context_length is not None:
                num_slots = min(capacity, self.context_length)
        shape = (num_envs, layers, heads, num_slots, size)
        return init_cache(shape, like=self.embed.weight, device=device)

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """Return a cache with slots for more timesteps; see `TrajectoryEncoder.grow_by`."""
        return grow_cache(memory, num_steps, capacity=self.context_length)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        num_slots = memory["keys"].shape[3]
        condition = "be positive: grow(memory) adds some"
        require(_OWNER, "slots of memory", num_slots, num_slots > 0, condition)
        cache = CacheStep(memory, is_init, capacity=self.context_length, sinks=0)
        position = cache.position if step_index is None else step_index
        context = self._encode(
            x.unsqueeze(1), position.unsqueeze(1), cache.reached, _LibraryCache(cache)
        )
        return context.squeeze(1), cache.next_cache()

    def _encode(
        self, x: Tensor, step_index: Tensor, visible: Tensor, cache: "_LibraryCache | None"
    ) -> Tensor:
        """Apply the model.

        Args:
            x: ``[B, L, E]``.
            step_index: ``[B, L]`` int64.
            visible: ``[B, 1, L, *]`` bool, keys that each query sees.
            cache: Cache of a step, or None.

        Returns:
            ``[B, L, D]``.
        """
        inputs = {
            "inputs_embeds": self.embed(x),
            "position_ids": step_index,
            "attention_mask": visible,
            "use_cache": cache is not None,
            self._cache_argument: cache,
        }
        try:
            return self.model(**inputs).last_hidden_state
        except IndexError as error:
            most = self.model.config.max_position_embeddings
            raise ArgumentError(
                _OWNER,
                "step_index",
                int(step_index.max()),
                f"be below {most} positions of settings",
                remedy="set more positions, or a limit of episodes, as env.time_limit",
            ) from error

    @torch.no_grad()
    def _check_parity(self, model_type: str) -> None:
        """Raise for a model that ignores masks or positions, or has memory beside keys and values.

        Compares the parallel pass with steps, on two sequences of which the second has two starts.
        """
        length = min(4, self.context_length or 4)
        condition = "accept masks and positions, and remember nothing but keys and values"
        with _as_argument_error("model_type", model_type, condition):
            difference = difference_of_passes(self, length)
        # NaN fails, too.
        require(_OWNER, "model_type", model_type, bool(difference <= PARITY), condition)


class _LibraryCache:
    """Interface of a cache of the library, on the slots of a `CacheStep`."""

    def __init__(self, cache: CacheStep) -> None:
        self.cache = cache

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the keys and values ``[N, H, 1, d]`` of a layer.

        Returns:
            Keys and values of all slots, ``[N, H, S, d]``.
        """
        all_keys, all_values = self.cache.store(layer_idx, keys, values)
        return all_keys.to(keys.dtype), all_values.to(values.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: the library derives masks and positions from it, which are passed instead."""
        return 0


def _check_attention(config: Any, context_length: int | None) -> None:
    """Raise for a configuration whose attention depends on more than mask and positions."""
    window = getattr(config, "sliding_window", None)
    fits = window is None or (context_length is not None and context_length <= window)
    condition = f"be at most sliding_window {window} of settings"
    require(_OWNER, "context_length", context_length, fits, condition)

    rope = getattr(config, "rope_parameters", None)
    depends_on_length = "dynamic" in str(rope) or "longrope" in str(rope)
    condition = "not depend on how long other sequences are"
    require(_OWNER, "rope_parameters", rope, not depends_on_length, condition)


def _configuration(model_type: str, sizes: Mapping[str, int], settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a model without tokens.

    Args:
        model_type: Name of the architecture.
        sizes: Fields that arguments set.
        settings: Further fields.
    """
    library = _library()
    is_known = model_type in library.CONFIG_MAPPING
    condition = "be a model of the library transformers"
    require(_OWNER, "model_type", model_type, is_known, condition)
    make = library.CONFIG_MAPPING[model_type]

    own_fields = _fields(make) - _fields(library.PreTrainedConfig) - set(_TOKEN_FIELDS)
    lacking = sorted(set(sizes) - own_fields)
    condition = f"be of a Transformer, which has {', '.join(lacking)}"
    require(_OWNER, "model_type", model_type, not lacking, condition)

    # A field has a second name in some architectures: hidden_size is n_embd in GPT-2.
    set_by_arguments = set(sizes) | {make.attribute_map.get(name) for name in sizes}
    wrong = sorted(map(str, settings.keys() - (own_fields - set_by_arguments)))
    condition = f"hold fields of the configuration of {model_type} that no argument sets"
    require(_OWNER, "settings", wrong, not wrong, condition)

    defaults = {
        "intermediate_size": 4 * sizes["hidden_size"],
        "num_key_value_heads": sizes["num_attention_heads"],
        "head_dim": sizes["hidden_size"] // sizes["num_attention_heads"],
        "initializer_range": _INITIALIZER * sizes["hidden_size"] ** -0.5,
    }
    values: dict[str, Any] = {}
    for name, value in defaults.items():
        if name in own_fields:
            values[name] = value
    values.update(sizes)
    values.update(settings)
    with _as_argument_error("settings", dict(settings), f"fit {model_type}"):
        return make(vocab_size=1, bos_token_id=None, eos_token_id=None, pad_token_id=None, **values)


def _fields(make: Any) -> set[str]:
    """Return the names of the fields of a configuration class, inherited and second ones too."""
    names = {field.name for field in dataclasses.fields(make)}
    return names | set(make.attribute_map)


def _random(config: Any) -> Any:
    """Return a model with new weights."""
    library = _library()
    condition = "be of a model with attention by torch (sdpa)"
    with _as_argument_error("model_type", config.model_type, condition):
        return library.AutoModel.from_config(
            config, attn_implementation="sdpa", trust_remote_code=False
        )


def _pretrained(config: Any, path: str) -> Any:
    """Return the model of a folder, whose configuration must equal ``config`` except for tokens."""
    library = _library()
    folder = Path(path)
    is_model = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    is_adapter = (folder / "adapter_config.json").exists()  # weights of a part of the model only
    condition = "be a local folder with config.json and a whole model in safetensors"
    require(_OWNER, "path", path, is_model and not is_adapter, condition)
    # Neither download nor run what a folder refers to.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

    with _as_argument_error("path", path, condition):
        saved = library.AutoConfig.from_pretrained(folder, **options).to_dict()
    wanted = config.to_dict()
    ignored = _fields(library.PreTrainedConfig) | {*_TOKEN_FIELDS, "initializer_range", "auto_map"}
    different = {}
    for name in sorted((wanted.keys() | saved.keys()) - ignored):
        if not name.startswith("_") and wanted.get(name) != saved.get(name):
            different[name] = saved.get(name)
    found = f"its config.json has {different}"
    require(_OWNER, "path", path, not different, "agree with the arguments", remedy=found)

    with _as_argument_error("path", path, condition), _quiet(library):
        model, loaded = library.AutoModel.from_pretrained(
            folder,
            use_safetensors=True,  # pickles can run code
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            **options,
        )
    missing = sorted(loaded["missing_keys"])[:3]
    found = f"it lacks {', '.join(missing)}"
    require(_OWNER, "path", path, not missing, "hold all weights", remedy=found)
    return model


@contextmanager
def _as_argument_error(name: str, value: Any, condition: str) -> Iterator[None]:
    """Raise ArgumentError for any error inside, with the first line of its message as remedy."""
    try:
        yield
    # The library raises errors of many classes for arguments that do not fit together.
    except Exception as error:
        raise ArgumentError(_OWNER, name, value, condition, remedy=one_line(error)) from error


@contextmanager
def _quiet(library: ModuleType) -> Iterator[None]:
    """Turn off progress bars and the warnings about unused weights."""
    logging = library.logging
    level = logging.get_verbosity()
    shows_progress = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_progress:
            logging.enable_progress_bar()


def _library() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        # The missing package may be a dependency of transformers.
        missing = (error.name or "transformers").partition(".")[0]
        raise MissingLibrary(
            f"{_OWNER}: the package {missing} must be installed, run: pip install 'yamame[hf]'"
        ) from error
    return transformers
