"""Environment side: what brings any TorchRL environment to the one format."""

from yamame.transforms.context import ContextTransform as ContextTransform
