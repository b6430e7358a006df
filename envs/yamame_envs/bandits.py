"""Multi-armed bandits: find the arm that pays best, in as few pulls as possible.

Source: RL^2, arXiv 1611.02779, section 3.1.
"""

from functools import cache
from statistics import NormalDist
from typing import Annotated, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical
from yamame.checks import (
    Bounds,
    NonNegativeFloat,
    PositiveInt,
    check_bounds,
    require_choice,
)
from yamame.execution.capturing import Constant

from yamame_envs.base import BatchedEnv
from yamame_envs.rendering import CELL, Palette, disc, frame, ring, tile
from yamame_envs.streams import fold, integers, uniform
from yamame_envs.tasks import Tensors

_QUANTILES: Final = 2**16
# Height of the picture of an arm.
_ROWS_SHOWN: Final = 8


class Bandits(BatchedEnv):
    """Multi-armed bandits with new arms in every episode.

    Action: the arm, 0..``num_arms`` - 1. Observation ``[N, 1]`` float32: always 0; all information
    is in ``prev_action`` and ``prev_reward``. An episode has exactly ``time_limit`` steps.
    Success is to pull the arm with the highest mean at the last step.

    ``"bernoulli"``: an arm pays 1 with its own probability, uniform in [0, 1], else 0. Always
    pulling the best of A arms earns A / (A + 1) per step on average, pulling at random 0.5.
    ``"gaussian"``: an arm has a mean of its own from the standard normal distribution and pays it
    with normal noise. Pulling at random earns 0.

    Args:
        num_envs: Number of bandits, played at the same time.
        num_arms: Number of arms, at least 2.
        time_limit: Steps of an episode.
        reward: Distribution of rewards. ``bernoulli``: an arm pays 1 or 0. ``gaussian``: normally
            distributed around its mean.
        gaussian_std: Standard deviation of the noise of Gaussian rewards.
        observable: Write the means of the arms to ``hidden`` ``[N, num_arms]``.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range or ``reward`` is unknown.

    >>> env = Bandits(num_envs=2, num_arms=5)
    >>> env.rollout(200)["next", "reward"].shape
    torch.Size([2, 100, 1])
    """

    identity = ("means",)

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        num_arms: Annotated[int, Bounds(least=2)] = 10,
        time_limit: PositiveInt = 100,
        reward: Literal["bernoulli", "gaussian"] = "bernoulli",
        gaussian_std: NonNegativeFloat = 1.0,
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        require_choice(self.label, "reward", reward, ("bernoulli", "gaussian"))
        self._num_arms = num_arms
        self._gaussian = reward == "gaussian"
        self._std = gaussian_std
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=Categorical(num_arms),
            observations={
                "observation": Bounded(0.0, 1.0, shape=(1,), dtype=torch.float32, device=device)
            },
            hidden=num_arms if observable else 0,
            seed=seed,
            device=device,
        )
        self._quantiles = Constant(torch.tensor(_normal_quantiles() if self._gaussian else ()))

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        key = fold(task_seed, 0)
        if self._gaussian:
            means = self._normal(key, self._num_arms)
        else:
            means = uniform(key, self._num_arms)
        return {"means": means, "best": means.argmax(-1), "pulls": fold(task_seed, 1)}

    def _normal(self, key: Tensor, *shape: int) -> Tensor:
        """Draw standard normal numbers, the same on any device: ``[*] -> [*, *shape]`` float32."""
        return self._quantiles.on(key.device)[integers(key, _QUANTILES, *shape)]

    def begin(self, task: Tensors) -> Tensors:
        return {}

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        mean = task["means"].gather(1, action.unsqueeze(-1))
        key = fold(task["pulls"].unsqueeze(-1), state["step_index"])
        if self._gaussian:
            reward = mean + self._std * self._normal(key)
        else:
            reward = (uniform(key) < mean).float()
        last = state["step_index"] + 1 >= self.horizon
        return {}, reward, last & (action == task["best"]).unsqueeze(-1)

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        return {"observation": torch.zeros_like(state["step_index"], dtype=torch.float32)}

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        return task["means"].to(torch.float32, copy=True)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        A bar per arm is as high as the arm's mean, the best one's is bright. The disc is below the
        arm that was pulled last, and the dot above it shows that more was paid than an arm pays on
        average.
        """
        env_state = self.env_state
        means = env_state.task["means"][env_id].cpu().numpy().astype(np.float64)
        heights = (means + 3.0) / 6.0 if self._gaussian else means
        best = int(env_state.task["best"][env_id])
        walls = np.ones((_ROWS_SHOWN + 4, 2 * self._num_arms + 1), bool)
        walls[1:-1, 1::2] = False
        picture = frame(walls)
        base = (_ROWS_SHOWN + 2) * CELL
        for arm, height in enumerate(np.clip(heights, 0.02, 1.0)):
            left, top = (2 * arm + 1) * CELL, base - round(float(height) * _ROWS_SHOWN * CELL)
            picture[top:base, left + 4 : left + CELL - 3] = (
                Palette.ACTIVE if arm == best else Palette.FUTURE
            )
        if int(env_state.state["step_index"][env_id]) > 0:
            pulled = 2 * int(env_state.timestep["prev_action"][env_id].argmax()) + 1
            disc(picture, (_ROWS_SHOWN + 2, pulled), Palette.AGENT, 0.34)
            if float(env_state.timestep["prev_reward"][env_id]) > (0.0 if self._gaussian else 0.5):
                tile(picture, (1, pulled), Palette.ACTIVE_TILE)
                ring(picture, (1, pulled), Palette.COMPLETED, 0.34)
                disc(picture, (1, pulled), Palette.COMPLETED, 0.2)
        return picture


@cache
def _normal_quantiles() -> tuple[float, ...]:
    """Return equally likely numbers that approximate the standard normal distribution.

    Their distribution function is within 2^-17 of the normal one.

    Drawing one of them by its index is exact on every device. The usual transformations of uniform
    numbers take logarithms or error functions, which differ between devices in their last bits.
    """
    quantile = NormalDist().inv_cdf
    upper = [quantile(0.5 + (i + 0.5) / _QUANTILES) for i in range(_QUANTILES // 2)]
    return (*(-x for x in reversed(upper)), *upper)
