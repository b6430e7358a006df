"""Custom parts of each kind: environments with a hidden task, an encoder, a loss, a relabeller, an
optimizer.
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
    """TorchRL environment in which one door pays a reward, the same one for a whole episode.

    Only the reward reveals the door.

    Args:
        num_envs: Number of environments in the batch.
        seed: Seed of the doors that pay.
        device: Device of all tensors.
        num_doors: Number of doors to choose from.
        time_limit: Steps per episode.
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
        self.num_doors = num_doors
        self.time_limit = time_limit
        # Every timestep looks the same, so only memory of actions and rewards helps.
        self.observation_spec = Composite(observation=Unbounded((num_envs, 1)), shape=[num_envs])
        self.action_spec = Categorical(num_doors, shape=(num_envs,))
        self.reward_spec = Unbounded((num_envs, 1))
        flag = Binary(1, (num_envs, 1), dtype=torch.bool, device=device)
        self.done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=[num_envs]
        )
        self.door = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.t = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._set_seed(seed)

    def _set_seed(self, seed: int | None) -> None:
        self.rng = torch.Generator(self.device).manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        is_init = torch.ones_like(self.door, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():
            # A partial reset: the episodes of the other environments go on.
            is_init = tensordict["_reset"].view(-1)
        doors = torch.randint(
            self.num_doors, self.batch_size, generator=self.rng, device=self.device
        )
        self.door = torch.where(is_init, doors, self.door)
        self.t = torch.where(is_init, 0, self.t)
        return self._timestep()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.t = self.t + 1
        is_right = tensordict["action"] == self.door
        timestep = self._timestep()
        return timestep.set("reward", is_right.float().unsqueeze(-1))

    def _timestep(self) -> TensorDict:
        done = (self.t >= self.time_limit).unsqueeze(-1)
        entries = {
            "observation": torch.ones_like(done, dtype=torch.float32),
            "done": done,
            # The limit is part of the task, so values beyond it are 0 and nothing is truncated.
            "terminated": done.clone(),
            "truncated": torch.zeros_like(done),
        }
        return TensorDict(entries, self.batch_size, device=self.device)


class Levers(gymnasium.Env):
    """Gymnasium environment in which one lever pays a reward, most of the time.

    The task (the lever) and the noise (whether it pays) have separate seeds.

    Args:
        num_levers: Number of levers to choose from.
        reliable: Probability that the right lever pays, in [0, 1].
    """

    def __init__(self, num_levers: int = 4, reliable: float = 0.9) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(num_levers)
        self.num_levers = num_levers
        self.reliable = reliable
        self.right = 0

    def sample_task(self, seed: int) -> int:
        """Return the task of a seed, the lever that pays."""
        return int(np.random.default_rng(seed).integers(self.num_levers))

    def set_task(self, task: int) -> None:
        """Set the lever that pays in all further episodes."""
        self.right = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with the seed of its noise."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pull a lever; ``success`` in the info is true for the right one."""
        is_right = int(action) == self.right
        reward = float(is_right and self.np_random.uniform() < self.reliable)
        return np.ones(1, np.float32), reward, False, False, {"success": is_right}


gymnasium.register("Levers-v0", Levers, max_episode_steps=5)


class FadingSum(TrajectoryEncoder):
    """Exponentially decaying sum of the features.

    Args:
        in_features: Size E of the features.
        out_features: Size D of the context.
        keep: Factor on the sum at every timestep, in [0, 1).
    """

    def __init__(self, in_features: int, *, out_features: int = 32, keep: float = 0.9) -> None:
        super().__init__(in_features, out_features)
        self.keep = keep
        self.out = nn.Linear(in_features, out_features)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Any = None
    ) -> TensorDict:
        """Return sums of zero, ``[N, E]``."""
        total = self.out.weight.new_zeros(num_envs, self.in_features, device=device).detach()
        return TensorDict({"sum": total}, [num_envs], device=total.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode features ``[N, E]`` as contexts ``[N, D]``."""
        self.check_step(x, memory, is_init)
        # A new episode must not depend on the last one.
        before = memory["sum"].masked_fill(is_init.view(-1, 1), 0.0)
        total = self.keep * before + x
        memory = TensorDict({"sum": total}, memory.batch_size, device=memory.device)
        return self.out(total), memory


class PenalisedLoss(MultiGammaREDQLoss):
    """Loss of AMAGO with a penalty on large weights of the actor.

    Args:
        penalty: Factor on the sum of squared weights. The other arguments are those of
            `MultiGammaREDQLoss`.
    """

    def __init__(self, *args: Any, penalty: float = 1e-5, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.penalty = penalty

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the terms of the loss and ``loss_weights``."""
        squares = [weight.square().sum() for weight in self.actor_network.parameters()]
        output = super().forward(tensordict)
        # The learner minimises the sum of all entries whose name begins with "loss_".
        return output.set("loss_weights", self.penalty * torch.stack(squares).sum())


class FinalGoal(BatchTransform):
    """Relabeller: the last achieved goal becomes the goal of trajectories that reached none."""

    needs_goals = True

    def __init__(self) -> None:
        self.keys = RelabelKeys()
        super().__init__(in_keys=self.keys.needed())

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Relabel a batch of trajectories ``[B, L]``."""
        goal, achieved, achieved_mask, mask, *_ = self.entries(tensordict, self.keys.needed())
        is_real = mask.squeeze(-1)
        instruction = goal[:, 0].clone()
        times = completion_times(instruction, achieved, achieved_mask, is_real)
        reached_none = times[:, 0] >= is_real.shape[1]

        last = is_real.sum(-1) - 1
        rows = torch.arange(len(is_real))
        has_achieved = achieved_mask[rows, last, 0]
        changed = reached_none & has_achieved & (num_goals(instruction) > 0)
        instruction[changed, 0] = achieved[rows, last, 0][changed]
        return rewrite(tensordict, instruction, changed, self.keys)


class SignDescent(torch.optim.Optimizer):
    """Optimizer that moves every weight by the same amount, against the sign of its gradient.

    Args:
        params: Parameters to optimize.
        lr: Size of a step.
    """

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())
