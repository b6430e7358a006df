"""Parts of one's own: two environments with a hidden task, a trajectory encoder, a loss, a
relabeller, an optimizer.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from yamame.goals import completion_times, num_goals
from yamame.losses import MultiGammaREDQLoss
from yamame.replay import RelabelKeys
from yamame.replay.gather import BatchTransform
from yamame.replay.hindsight import rewrite
from yamame.trajectory import TrajectoryEncoder


class Doors(EnvBase):
    """One of some doors pays, the same one for an episode of eight steps: only the reward tells
    which.

    Args:
        num_envs: Episodes played side by side.
        seed: Decides which doors pay.
        device: Where all tensors are.
        num_doors: The doors to choose from.
        time_limit: Steps of an episode.
    """

    def __init__(
        self,
        *,
        num_envs: int = 1,
        seed: int = 0,
        device: str = "cpu",
        num_doors: int = 3,
        time_limit: int = 8,
    ) -> None:
        super().__init__(batch_size=[num_envs], device=device)
        self.num_doors, self.time_limit = num_doors, time_limit
        flag = Binary(1, (num_envs, 1), dtype=torch.bool, device=device)
        names = ("done", "terminated", "truncated")
        self.observation_spec = Composite(observation=Unbounded((num_envs, 1)), shape=[num_envs])
        self.action_spec = Categorical(num_doors, shape=(num_envs,))
        self.reward_spec = Unbounded((num_envs, 1))
        self.done_spec = Composite({name: flag.clone() for name in names}, shape=[num_envs])
        self.door = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.t = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._set_seed(seed)

    def _set_seed(self, seed: int | None) -> None:
        self.rng = torch.Generator(self.device).manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        begins = torch.ones_like(self.door, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():
            begins = tensordict["_reset"].view(-1)
        drawn = torch.randint(
            self.num_doors, self.batch_size, generator=self.rng, device=self.device
        )
        self.door = torch.where(begins, drawn, self.door)
        self.t = torch.where(begins, 0, self.t)
        return self._shown()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.t = self.t + 1
        reward = (tensordict["action"] == self.door).float().unsqueeze(-1)
        return self._shown().set("reward", reward)

    def _shown(self) -> TensorDict:
        over = (self.t >= self.time_limit).unsqueeze(-1)
        seen = {"observation": torch.ones_like(over, dtype=torch.float32), "done": over}
        seen |= {"terminated": over.clone(), "truncated": torch.zeros_like(over)}
        return TensorDict(seen, self.batch_size, device=self.device)


class Levers(gymnasium.Env):
    """One of some levers pays, most of the time: a task apart from the noise, told by nothing but
    rewards.

    Args:
        num_levers: The levers to choose from.
        reliable: Share of pulls in which the right lever pays.
    """

    def __init__(self, num_levers: int = 4, reliable: float = 0.9) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(num_levers)
        self.num_levers, self.reliable, self.right = num_levers, reliable, 0

    def sample_task(self, seed: int) -> int:
        """The lever that pays in the task of a seed."""
        return int(np.random.default_rng(seed).integers(self.num_levers))

    def set_task(self, task: int) -> None:
        """Lets this lever pay from now on."""
        self.right = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, whose noise is of the seed."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pulls a lever; the info tells whether it was the right one."""
        right = int(action) == self.right
        reward = float(right and self.np_random.uniform() < self.reliable)
        return np.ones(1, np.float32), reward, False, False, {"success": right}


gymnasium.register("Levers-v0", Levers, max_episode_steps=5)


class FadingSum(TrajectoryEncoder):
    """A sum of what was seen that fades.

    Args:
        in_features: Size E of the features.
        out_features: Size D of the context.
        keep: Share of the sum that stays after a timestep, in [0, 1).
    """

    def __init__(self, in_features: int, *, out_features: int = 32, keep: float = 0.9) -> None:
        super().__init__(in_features, out_features)
        self.keep, self.out = keep, nn.Linear(in_features, out_features)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Any = None
    ) -> TensorDict:
        """Sums of zero, ``[N, E]``."""
        total = self.out.weight.new_zeros(num_envs, self.in_features, device=device).detach()
        return TensorDict({"sum": total}, [num_envs], device=total.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``."""
        self.check_step(x, memory, is_init)
        total = self.keep * memory["sum"].masked_fill(is_init.view(-1, 1), 0.0) + x
        return self.out(total), TensorDict({"sum": total}, memory.batch_size, device=memory.device)


class PenalisedLoss(MultiGammaREDQLoss):
    """The loss of AMAGO, and a penalty for large weights of the actor.

    Args:
        penalty: Factor of the sum of their squares; the other arguments are those of
            `MultiGammaREDQLoss`.
    """

    def __init__(self, *args: Any, penalty: float = 1e-5, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.penalty = penalty

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Adds ``loss_weights`` to the terms."""
        squares = [weight.square().sum() for weight in self.actor_network.parameters()]
        return (
            super()
            .forward(tensordict)
            .set("loss_weights", self.penalty * torch.stack(squares).sum())
        )


class FinalGoal(BatchTransform):
    """Asks for what was achieved at the very end of a trajectory that completed nothing."""

    def __init__(self) -> None:
        self.keys = RelabelKeys()
        super().__init__(in_keys=self.keys.needed())

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """``[B, L]`` -> ``[B, L']``."""
        goal, achieved, achieved_mask, mask, *_ = self.entries(tensordict, self.keys.needed())
        real, instruction = mask.squeeze(-1), goal[:, 0].clone()
        missed = completion_times(instruction, achieved, achieved_mask, real)[:, 0] >= real.shape[1]
        last = real.sum(-1) - 1
        rows = torch.arange(len(real))
        missed = missed & achieved_mask[rows, last, 0] & (num_goals(instruction) > 0)
        instruction[missed, 0] = achieved[rows, last, 0][missed]
        return rewrite(tensordict, instruction, missed, self.keys)


class SignDescent(torch.optim.Optimizer):
    """Moves every weight by the same amount, against the sign of its gradient.

    Args:
        params: What is learned.
        lr: The amount.
    """

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())
