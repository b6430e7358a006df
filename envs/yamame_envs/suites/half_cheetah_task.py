"""Half-Cheetah-Vel: run at a hidden velocity, which only the reward depends on.

The task of Finn, Abbeel and Levine, arXiv 1703.03400, with rewards and horizon as in AMAGO, arXiv
2310.09971. The physics are Gymnasium's HalfCheetah-v5, which moves exactly as HalfCheetah-v4.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from yamame_envs.adapters.extras import import_extra
from yamame_envs.suites.display import require_display

Vector = npt.NDArray[np.float32]


class HalfCheetahVelTask(gymnasium.Env[Vector, Vector]):
    """Cheetah in the plane with a hidden target velocity, drawn at every reset.

    The reward of a step is ``-|velocity - target| - 0.05 |action|^2``, its velocity the distance
    travelled over the time passed, 0.05 seconds. An episode never ends.

    Args:
        max_velocity: Targets are uniform in [0, max_velocity], metres per second; positive.

    Attributes:
        target: Target velocity.

    Raises:
        ImportError: If MuJoCo is not installed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, *, max_velocity: float = 3.0) -> None:
        import_extra("mujoco", extra="mujoco", owner="HalfCheetahVel")
        from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

        self._env = HalfCheetahEnv(ctrl_cost_weight=0.05, render_mode=self.render_mode)
        self._max_velocity = max_velocity
        self.target = 0.0
        size = self._env.observation_space.shape
        self.observation_space = spaces.Box(-np.inf, np.inf, size, dtype=np.float32)
        self.action_space = self._env.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Draw the posture, then the target, so that the posture is independent of the target."""
        seen, _ = self._env.reset(seed=seed, options=options)
        self.target = float(self._env.np_random.uniform(0.0, self._max_velocity))
        return seen.astype(np.float32), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        seen, _, _, _, info = self._env.step(action)
        reward = info["reward_ctrl"] - abs(info["x_velocity"] - self.target)
        return seen.astype(np.float32), float(reward), False, False, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return the picture: ``[480, 480, 3]``."""
        require_display()
        picture: npt.NDArray[np.uint8] = self._env.render()
        return picture

    def close(self) -> None:
        """Close the window, if there was one."""
        self._env.close()
