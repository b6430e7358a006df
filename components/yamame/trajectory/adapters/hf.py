"""Any Transformer of the library `transformers` that takes a mask as trajectory encoder.

A linear map of the features takes the place of the embedding of tokens; the layers are the
library's own. They are told which timesteps each one sees, by a mask, and where it lies in its
episode, by ``step_index``. So sequences may be packed. The memory of acting is the cache of keys
and values of `yamame.trajectory.kv_cache`.

Needs ``pip install 'yamame[hf]'``. Nothing is fetched, no code of a model's folder runs, and
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

from yamame.checks import require, require_at_least
from yamame.system.messages import one_line
from yamame.trajectory.base import Device, TrajectoryEncoder, TrajectoryKeys, segment_positions
from yamame.trajectory.kv_cache import CacheStep, grow_cache, init_cache

_OWNER = "HFEncoder"
_OF_TOKENS = (
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
    "use_cache",
)
"""Fields of a configuration that say nothing about the layers."""
_INITIALIZER = 0.02 * 768**0.5
"""The library's deviation of new weights, which is for a width of 768, times the root of that
width.
"""
_TABLES = ("wpe", "position_embeddings", "embed_positions")
"""Modules that learn a vector for each position."""
_PARITY = 1e-5
"""Largest difference of the two passes in float32, behind a norm."""


class MissingLibrary(ImportError, ValueError):  # noqa: N818
    """The package `transformers` is not installed."""


class HFEncoder(TrajectoryEncoder):
    """A linear map of the features, and the layers of a model of `transformers`.

    Every timestep sees the whole episode up to itself. The model must keep keys and values, and
    take positions and a mask: gpt2, llama, mistral, qwen2, qwen3, gemma, phi, gpt_neox, bert and
    others do. The constructor compares both passes and refuses a model in which they differ.

    Args:
        in_features: Size E of the features.
        model_type: The library's name of the architecture.
        d_model: Its ``hidden_size``, D, which is the size of the context.
        num_heads: Its ``num_attention_heads``; also ``num_key_value_heads`` unless ``settings`` say
            otherwise.
        num_layers: Its ``num_hidden_layers``.
        settings: Further fields of its configuration, by the library's names. ``intermediate_size``
            is 4 D, ``head_dim`` D / ``num_heads`` and ``initializer_range`` 0.55 / sqrt(D) unless
            they say otherwise. Learnt positions (gpt2) end at ``n_positions``.
        path: A local folder with a ``config.json``, which must say the same as all of the above,
            and safetensors whose weights the layers begin with; None for random weights. Its
            embedding of tokens is left out.
        context_length: How many timesteps acting remembers; None for all, with a cache that grows.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: The library knows no such model or setting, the model takes no mask, the folder
            has no such weights, or at a call, ``step_index`` lies beyond the learnt positions.
        MissingLibrary: The library is not installed; both an `ImportError` and a `ValueError`.

    >>> HFEncoder(3, d_model=8, num_heads=0)
    Traceback (most recent call last):
    ValueError: HFEncoder: num_heads must be at least 1, got 0
    """

    capture_obstacle = _OWNER  # the library's code may read back from the device

    def __init__(
        self,
        in_features: int,
        *,
        model_type: str = "gpt2",
        d_model: int = 128,
        num_heads: int = 8,
        num_layers: int = 2,
        settings: Mapping[str, Any] | None = None,
        path: str | None = None,
        context_length: int | None = 1024,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        require_at_least(_OWNER, 1, d_model=d_model, num_heads=num_heads, num_layers=num_layers)
        require(
            _OWNER,
            "d_model",
            d_model,
            d_model % num_heads == 0,
            f"be a multiple of num_heads {num_heads}",
        )
        super().__init__(in_features, d_model, context_length=context_length, keys=keys)
        sizes = {
            "hidden_size": d_model,
            "num_attention_heads": num_heads,
            "num_hidden_layers": num_layers,
        }
        config = _configuration(model_type, sizes, settings or {})
        self._refuse_what_masks_cannot_say(config)
        self.embed = nn.Linear(in_features, d_model)
        self.model = _random(config) if path is None else _pretrained(config, path)
        self.model.set_input_embeddings(nn.Identity())  # of tokens, of which there are none
        takes = inspect.signature(self.model.forward).parameters  # new versions have another name
        self._cache_argument = "cache" if "cache" in takes else "past_key_values"
        heads = getattr(config, "num_key_value_heads", None) or num_heads
        self._cache_shape = (
            num_layers,
            heads,
            getattr(config, "head_dim", None) or d_model // num_heads,
        )
        learnt = [
            m
            for name, m in self.model.named_modules()
            if name.endswith(_TABLES) and isinstance(m, nn.Embedding)
        ]
        self.num_positions = min((table.num_embeddings for table in learnt), default=None)
        self._check_parity(model_type)

    @property
    def parameter_roles(self) -> dict[str, str]:
        """The linear layers of GPT-2 are the library's own, ``Conv1D``."""
        kinds = {name: type(module).__name__ for name, module in self.model.named_modules()}
        return {
            f"model.{name}.weight": "hidden" for name, kind in kinds.items() if kind == "Conv1D"
        }

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        segment = is_init.cumsum(1)
        visible = (segment.unsqueeze(2) == segment.unsqueeze(1)).tril().unsqueeze(1)
        return self._encode(x, step_index, visible, None)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """An empty cache; see `yamame.trajectory.kv_cache`."""
        layers, heads, size = self._cache_shape
        slots = 0 if capacity is None else min(capacity, self.context_length or capacity)
        return init_cache((num_envs, layers, heads, slots, size), self.embed.weight, device)

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """``memory`` with slots for some timesteps more; see `TrajectoryEncoder.grow_by`."""
        return grow_cache(memory, num_steps, capacity=self.context_length)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see
        `TrajectoryEncoder.step`.
        """
        self.check_step(x, memory, is_init)
        slots, condition = memory["keys"].shape[3], "be positive: grow(memory) adds some"
        require(_OWNER, "slots of memory", slots, slots > 0, condition)
        cache = CacheStep(memory, is_init, capacity=self.context_length, sinks=0)
        position = cache.position if step_index is None else step_index
        context = self._encode(x.unsqueeze(1), position.unsqueeze(1), cache.reached, _Slots(cache))
        return context.squeeze(1), cache.next_cache()

    def _encode(
        self, x: Tensor, step_index: Tensor, visible: Tensor, cache: "_Slots | None"
    ) -> Tensor:
        """``[B, L, E]``, ``[B, L]`` and which keys a query sees ``[B, 1, L, *]`` ->
        ``[B, L, D]``.
        """
        try:
            return self.model(
                inputs_embeds=self.embed(x),
                position_ids=step_index,
                attention_mask=visible,
                use_cache=cache is not None,
                **{self._cache_argument: cache},
            ).last_hidden_state
        except IndexError as error:
            most, largest = self.model.config.max_position_embeddings, int(step_index.max())
            raise ValueError(
                f"{_OWNER}: step_index must be below {most} positions of settings, got {largest}"
            ) from error

    def _refuse_what_masks_cannot_say(self, config: Any) -> None:
        window, length = getattr(config, "sliding_window", None), self.context_length
        fits = window is None or (length is not None and length <= window)
        require(
            _OWNER,
            "context_length",
            length,
            fits,
            f"be at most sliding_window {window} of settings",
        )
        rope = getattr(config, "rope_parameters", None)
        by_length = any(name in str(rope) for name in ("dynamic", "longrope"))
        require(
            _OWNER,
            "rope_parameters",
            rope,
            not by_length,
            "not depend on how long other sequences are",
        )

    @torch.no_grad()
    def _check_parity(self, model_type: str) -> None:
        """Refuses a model that does not obey masks and positions, or keeps other things than keys
        and values.
        """
        length, device = min(4, self.context_length or 4), self.embed.weight.device
        x = torch.linspace(-1.0, 1.0, 2 * length * self.in_features, device=device).view(
            2, length, -1
        )
        is_init = torch.zeros(2, length, dtype=torch.bool, device=device)
        is_init[:, 0] = is_init[1, length // 2] = True
        inputs, mode = (x, segment_positions(is_init), is_init), self.training
        condition = "take masks and positions and keep keys and values alone"
        with _refusing("model_type", model_type, condition):
            off = (self.eval().parallel(*inputs) - super().parallel(*inputs)).abs().max()
        self.train(mode)
        require(_OWNER, "model_type", model_type, bool(off <= _PARITY), condition)


class _Slots:
    """What a model takes for a cache of its library: it stores in one of ours, and is told masks
    and positions.
    """

    def __init__(self, cache: CacheStep) -> None:
        self.cache = cache

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots ``[N, H, S, d]``, those of this timestep ``[N, H, 1, d]``
        among them.
        """
        held_keys, held_values = self.cache.store(layer_idx, keys, values)
        return held_keys.to(keys.dtype), held_values.to(values.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many timesteps every env has seen at least."""
        return 0


def _configuration(model_type: str, sizes: Mapping[str, int], settings: Mapping[str, Any]) -> Any:
    """The configuration of a model: ``sizes`` and ``settings``, and what follows from them; it
    knows no tokens.
    """
    library = _library()
    known = library.CONFIG_MAPPING
    require(
        _OWNER,
        "model_type",
        model_type,
        model_type in known,
        "be a model of the library transformers",
    )
    make = known[model_type]
    own = _fields(make) - _fields(library.PreTrainedConfig) - set(_OF_TOKENS)
    unsized = sorted(set(sizes) - own)
    require(
        _OWNER,
        "model_type",
        model_type,
        not unsized,
        f"be of a Transformer, which has {', '.join(unsized)}",
    )
    taken = {*sizes, *(make.attribute_map.get(name) for name in sizes)}
    wrong = sorted(map(str, settings.keys() - (own - taken)))
    condition = f"hold fields of the configuration of {model_type} that no argument sets"
    require(_OWNER, "settings", wrong, not wrong, condition)
    follows = {
        "intermediate_size": 4 * sizes["hidden_size"],
        "num_key_value_heads": sizes["num_attention_heads"],
        "head_dim": sizes["hidden_size"] // sizes["num_attention_heads"],
        "initializer_range": _INITIALIZER * sizes["hidden_size"] ** -0.5,
    }
    values = {
        **{name: value for name, value in follows.items() if name in own},
        **sizes,
        **settings,
    }
    with _refusing("settings", dict(settings), f"fit {model_type}"):
        return make(vocab_size=1, bos_token_id=None, eos_token_id=None, pad_token_id=None, **values)


def _fields(make: Any) -> set[str]:
    """The names of what a class of configurations holds, the library's general ones for it too."""
    return {field.name for field in dataclasses.fields(make)} | set(make.attribute_map)


def _random(config: Any) -> Any:
    """A model with new weights."""
    with _refusing("model_type", config.model_type, "be of a model with attention by torch (sdpa)"):
        return _library().AutoModel.from_config(
            config, attn_implementation="sdpa", trust_remote_code=False
        )


def _pretrained(config: Any, path: str) -> Any:
    """The model of a folder, whose configuration must be ``config`` but for tokens."""
    library, folder = _library(), Path(path)
    whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    condition = "be a local folder with config.json and a whole model in safetensors"
    require(
        _OWNER, "path", path, whole and not (folder / "adapter_config.json").exists(), condition
    )
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with _refusing("path", path, condition):
        saved = library.AutoConfig.from_pretrained(folder, **options).to_dict()
    stated = config.to_dict()
    general = _fields(library.PreTrainedConfig) | {*_OF_TOKENS, "initializer_range", "auto_map"}
    other = {
        name: saved.get(name)
        for name in sorted((stated.keys() | saved.keys()) - general)
        if not name.startswith("_") and stated.get(name) != saved.get(name)
    }
    require(
        _OWNER, "path", path, not other, f"hold what the arguments say; its config.json has {other}"
    )
    with _refusing("path", path, condition), _quiet(library):
        model, loaded = library.AutoModel.from_pretrained(
            folder,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            **options,
        )
    missing = sorted(loaded["missing_keys"])[:3]
    require(_OWNER, "path", path, not missing, f"hold all weights, it lacks {', '.join(missing)}")
    return model


@contextmanager
def _refusing(name: str, value: Any, condition: str) -> Iterator[None]:
    """Makes one line of what the library raises, which may be anything where something does not
    fit.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{_OWNER}: {name} must {condition}, got {value!r}: {one_line(error)}"
        ) from error


@contextmanager
def _quiet(library: ModuleType) -> Iterator[None]:
    """Keeps the library from writing of its progress, and of weights that are not used."""
    logging = library.logging
    level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows:
            logging.enable_progress_bar()


def _library() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        missing = (error.name or "transformers").partition(".")[0]
        remedy = "run: pip install 'yamame[hf]'"
        raise MissingLibrary(
            f"{_OWNER}: the package {missing} must be installed, {remedy}"
        ) from error
    return transformers
