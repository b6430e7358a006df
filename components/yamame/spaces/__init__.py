"""Descriptions of spaces: how values become entries, and actions become values again.

An environment that wraps Gymnasium environments describes their spaces by a `Spaces` object
(``env.spaces``). The environment itself, `yamame.data` and `yamame.deploy` read values with that
object. It holds plain data, needs only NumPy, and is stored with a checkpoint, so that an agent can
act where Gymnasium is not installed. `yamame.spaces.from_specs` describes environments that have
only TorchRL specs.
"""

from yamame.spaces.action import ActionEntry as ActionEntry
from yamame.spaces.action import Part as Part
from yamame.spaces.description import Spaces as Spaces
from yamame.spaces.observation import ObservationEntry as ObservationEntry
