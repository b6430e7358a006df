"""How the values of an environment's spaces become entries, and actions become values again.

An environment that plays Gymnasium environments describes its spaces by a `Spaces` object
(``env.spaces``). The environment itself, `yamame.data` and `yamame.deploy` read values with that
one object. It holds plain data, needs NumPy alone, and is stored with a checkpoint, so that an
agent can act where Gymnasium is not installed. `yamame.spaces.from_specs` describes environments
that have specs of TorchRL alone.
"""

from yamame.spaces.action import ActionEntry as ActionEntry
from yamame.spaces.action import Part as Part
from yamame.spaces.description import Spaces as Spaces
from yamame.spaces.observation import ObservationEntry as ObservationEntry
