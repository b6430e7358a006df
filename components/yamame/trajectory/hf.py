"""Any causal model of the library `transformers` as memory: GPT-2, Llama, Mistral, Qwen and others.

Features take the place of the embeddings of tokens. Masks and positions are ours, so that an episode in the middle of a
row sees nothing before it; keys and values are kept in `yamame.trajectory.kv_cache`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import UsageError, require
from yamame.trajectory.base import Device, TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.kv_cache import CacheStep, grow_cache, init_cache


class HFEncoder(TrajectoryEncoder):
    """A causal model of ``transformers``, between a linear map of the features and the context.

    Its weights are new, or those of a folder on this machine; nothing is downloaded and no code of a folder is run.

    Args:
        in_features: Size E of the features.
        model_type: As `transformers.AutoConfig.for_model` knows it: ``gpt2``, ``llama``, ``mistral``, ``qwen2``, ...
        settings: Arguments of the model's configuration, in the library's own words.
        path: A folder with ``config.json`` and safetensors, whose model and weights are taken instead.
        context_length: Timesteps that acting remembers; None for all.
        keys: Where to read and write, if not under the usual names.

    Raises:
        UsageError: ``transformers`` is not installed.
        ValueError: The library knows no such model or setting, the folder holds none, or the model is not causal.
    """

    capture_obstacle = "the library's layers decide by data"

    def __init__(
        self,
        in_features: int,
        *,
        model_type: str = "gpt2",
        settings: Mapping[str, Any] = MappingProxyType({}),
        path: str | None = None,
        context_length: int | None = 1024,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        model = _build(model_type, settings) if path is None else _load(path)
        config = model.config
        width = int(config.hidden_size)
        super().__init__(in_features, width, context_length=context_length, keys=keys)
        self.embed = nn.Linear(in_features, width)
        self.model = model
        model.set_input_embeddings(nn.Embedding(1, width).requires_grad_(False))  # tokens there are none
        self.num_layers = int(config.num_hidden_layers)
        self.num_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self.head_size = int(getattr(config, "head_dim", None) or width // config.num_attention_heads)

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        segment = is_init.cumsum(1)
        column = torch.arange(x.shape[1], device=x.device)
        seen = (segment.unsqueeze(2) == segment.unsqueeze(1)) & (column.unsqueeze(1) >= column)
        return self._encode(x, step_index, seen.unsqueeze(1), None)

    def init_memory(self, num_envs: int, *, capacity: int | None = None, device: Device = None) -> TensorDict:
        """An empty cache; see `yamame.trajectory.kv_cache`."""
        weight = self.embed.weight
        slots = 0 if capacity is None else min(capacity, self.context_length or capacity)
        shape = (num_envs, self.num_layers, self.num_heads, slots, self.head_size)
        device = weight.device if device is None else torch.device(device)
        return init_cache(shape, dtype=weight.dtype, device=device)

    def grow(self, memory: TensorDict) -> TensorDict:
        """``memory`` with a slot for one timestep more; see `TrajectoryEncoder.grow`."""
        return grow_cache(memory, capacity=self.context_length)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        slots, condition = memory["keys"].shape[3], "be positive: grow(memory) adds some"
        require("HFEncoder", "slots of memory", slots, slots > 0, condition)
        cache = CacheStep(memory, is_init, capacity=self.context_length, sinks=0)
        position = cache.position if step_index is None else step_index
        context = self._encode(x.unsqueeze(1), position.unsqueeze(1), cache.reached, _Slots(cache))
        return context.squeeze(1), cache.next_cache()

    def _encode(self, x: Tensor, position: Tensor, seen: Tensor, slots: Any) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, bool ``[B, 1, L, S]`` -> ``[B, L, D]``."""
        if self.model.config.model_type == "gpt2":  # it has a table of positions
            most, last = int(self.model.config.n_positions), int(position.max())
            require("HFEncoder", "step_index", last, last < most, f"be below {most}")
        out = self.model(
            inputs_embeds=self.embed(x),
            attention_mask=seen,
            position_ids=position,
            past_key_values=slots,
            use_cache=slots is not None,
        )
        return out.last_hidden_state


class _Slots:
    """A `CacheStep` as the library's layers ask for it."""

    def __init__(self, cache: CacheStep) -> None:
        self._cache = cache

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores the keys and values ``[N, H, 1, d]`` of a layer; returns all of them ``[N, H, S, d]``."""
        return self._cache.store(layer, k, v)

    def get_seq_length(self, layer: int = 0) -> int:
        """Unused where positions are given."""
        return 0


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            f"HFEncoder: the package transformers must be installed, run: pip install 'yamame[hf]': {error}"
        ) from error
    return transformers


def _build(model_type: str, settings: Mapping[str, Any]) -> Any:
    """A model with new weights; it has one token, for it is never given any."""
    library = _transformers()
    tokens = {"vocab_size": 1, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    try:
        config = library.AutoConfig.for_model(model_type, **{**tokens, **settings})
        return _causal(library.AutoModel.from_config(config, attn_implementation="sdpa"))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        problem = (
            f"model_type and settings must be what transformers knows, got {model_type!r} {dict(settings)}"
        )
        raise ValueError(f"HFEncoder: {problem}: {error}") from error


def _load(path: str) -> Any:
    """A model of a folder."""
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    try:
        model = _transformers().AutoModel.from_pretrained(path, attn_implementation="sdpa", **options)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"HFEncoder: path must be a folder with a model, got {path!r}: {error}") from error
    return _causal(model.float())


def _causal(model: Any) -> Any:
    """The model, if it looks back only."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    kind = model.config.model_type
    decodes = kind in CAUSAL and kind not in ("bert", "roberta", "electra", "xlm-roberta")
    require("HFEncoder", "model_type", kind, decodes, "be a causal model")
    return model
