"""Environment side: what brings any TorchRL environment to the one format."""

from yamame.transforms.context import ContextTransform as ContextTransform
from yamame.transforms.context import context_specs as context_specs
from yamame.transforms.context import context_values as context_values
