"""MiniHack: small levels of NetHack.

Source: Samvelyan et al., "MiniHack the Planet: A Sandbox for Open-Ended Reinforcement Learning
Research", arXiv 2109.13202.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from yamame_envs.adapters.extras import import_extra
from yamame_envs.adapters.registered import make_registered

# There is no extra: the package pins Gymnasium 1.2.0.
_REMEDY = "pip install minihack==1.0.2 'setuptools<81'"


class MiniHackTask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Level of MiniHack whose seed decides all of it, and whose info holds success.

    Args:
        id: Registered id.
        observations: Observed parts, by MiniHack's names.

    Raises:
        ImportError: If MiniHack is not installed.
    """

    def __init__(self, id: str, observations: Sequence[str]) -> None:
        import_extra("minihack", owner="MiniHack", remedy=_REMEDY)
        super().__init__(
            make_registered(id, {"observation_keys": tuple(observations)}, limited=False)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the seed decides all of it."""
        # MiniHack passes the seed of a reset to Gymnasium only, so NetHack is seeded here.
        level, game = np.random.SeedSequence(seed).generate_state(2)
        self.get_wrapper_attr("seed")(int(level), int(game), reseed=False)
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        # Levels also report success where they punish the end.
        success = float(reward) > 0 and info["end_status"].name == "TASK_SUCCESSFUL"
        return seen, reward, terminated, truncated, {"success": success}
