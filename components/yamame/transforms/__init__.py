"""Transforms that bring any TorchRL environment to the common format."""

from yamame.transforms.context import ContextTransform as ContextTransform
from yamame.transforms.context import context_specs as context_specs
from yamame.transforms.context import context_values as context_values
