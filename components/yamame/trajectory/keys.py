"""Keys of trajectory encoders."""

from dataclasses import dataclass

from tensordict.utils import NestedKey


@dataclass(frozen=True)
class TrajectoryKeys:
    """Keys that an encoder reads and writes; see the module.

    ``memory``: None, and the module keeps its memory. With a key, the memory lives in the
    TensorDict: a step reads it there (a fresh one if it is missing at a start) and writes the next
    one under ``("next", memory)``, as `torchrl.modules.GRUModule` does, and
    `TrajectoryEncoder.make_tensordict_primer` adds it to an environment. Any number of streams may
    then share a module. Whole sequences always begin with a fresh memory: they do not read the
    stored one. The price: the memory is part of every stored step, twice, and is copied at
    every step and reset. That is little for recurrent encoders. A Transformer has a cache of
    ``2 * layers * context_length * d_model`` numbers per env, allocated in full.
    """

    features: NestedKey = "features"
    step_index: NestedKey = "step_index"
    is_init: NestedKey = "is_init"
    mask: NestedKey = "mask"
    context: NestedKey = "context"
    memory: NestedKey | None = None
