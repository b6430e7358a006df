"""Memory Gym: commands, paths and dangers to remember, seen as pixels.

Source: Pleines et al., "Memory Gym: Towards Endless Tasks to Benchmark Memory Capabilities of
Agents", arXiv 2309.17207.
"""

import os
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs import registration

from yamame_envs.adapters.extras import import_extra
from yamame_envs.adapters.registered import make_registered

# There is no extra: the package pins Gymnasium 0.29.0.
_REMEDY = "pip install --no-deps memory-gym==1.0.2 && pip install pygame"


def names() -> tuple[str, ...]:
    """Return the short names of all environments, for example MortarMayhem-Grid."""
    import_extra("memory_gym", owner="MemoryGym", remedy=_REMEDY)
    points = {key: str(spec.entry_point) for key, spec in registration.registry.items()}
    return tuple(
        key.removesuffix("-v0") for key, point in points.items() if point.startswith("memory_gym.")
    )


class MemoryGymTask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment of Memory Gym with the same options at every reset.

    Args:
        id: Name, one of `names`.
        options: Options of the reset.
    """

    def __init__(self, id: str, options: Mapping[str, Any]) -> None:
        # Without it, pygame would look for loudspeakers.
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        super().__init__(make_registered(f"memory_gym:{id}-v0", {}, limited=False))
        self._options = dict(options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the seed decides all of it."""
        return self.env.reset(seed=seed, options=self._options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        # Mortar Mayhem reports success after the last command even if it ends with a mistake.
        seen, reward, terminated, truncated, info = self.env.step(action)
        success = bool(info.get("success")) and float(reward) > 0
        return seen, reward, terminated, truncated, {"success": success}

    def close(self) -> None:
        """Leave the display open, because all envs of a process draw on the same one."""
