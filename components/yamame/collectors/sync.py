"""Acting and learning in turn, in one process: deterministic, and exactly resumable."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torchrl.envs import EnvBase

from yamame.agent import InContextPolicy
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Episodes

NOT_STORED: tuple[NestedKey, ...] = ("task_seed", "success", "done", "terminated", "truncated", "reward")
"""Root entries that no learner reads, or that are stored under ``next``."""


class _Replay(Protocol):
    def extend(self, data: TensorDictBase) -> Any: ...


class SyncCollector:
    """Steps a batched environment with its own copy of a policy and appends finished trajectories to replay.

    What is stored of a step: every observation entry of the environment (`NOT_STORED` excepted), ``action``, and
    ``("next", "reward" | "terminated" | "truncated")``, with ``("next", "success")`` where the environment tells it.

    Args:
        env: Environment with one batch dimension ``[N]``, which emits ``is_init``.
        policy: The policy to act with; copied.
        replay: Receives finished trajectories ``[E, L]`` through its ``extend``.
        exploration: Changes the policy's action before it is executed; the executed action is what is stored. Its
            ``step(num_env_steps)`` is called after every `collect`.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: InContextPolicy,
        replay: _Replay,
        *,
        exploration: TensorDictModuleBase | None = None,
    ) -> None:
        if len(env.batch_size) != 1:
            raise ValueError(f"SyncCollector: env must have one batch dimension, got {tuple(env.batch_size)}")
        self.env = env
        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self.replay = replay
        self.exploration = exploration
        self._keys = _stored_keys(env)
        self._tells_success = "success" in env.observation_spec.keys()
        self._assembler = TrajectoryAssembler()
        self._current: TensorDictBase | None = None

    @torch.no_grad()
    def collect(self, num_steps: int) -> Episodes:
        """Takes at least ``num_steps`` environment steps, over all rows, and appends the episodes that ended."""
        num_rows = self.env.batch_size[0]
        current = self.env.reset() if self._current is None else self._current
        steps, dones, terminals = [], [], []
        for _ in range(-(-num_steps // num_rows)):
            current = self.policy(current)
            if self.exploration is not None:
                current = self.exploration(current)
            before = current.select(*self._keys, "action")
            stepped, current = self.env.step_and_maybe_reset(current)
            following = stepped.get("next")
            done = following.get("done").squeeze(-1)
            steps.append(self._record(before, following))
            dones.append(done)
            if done.any():
                terminals.append(following.select(*self._keys)[done])
        self._current = current
        finished = self._assembler.add(
            torch.stack(steps), torch.stack(dones), torch.cat(terminals) if terminals else None
        )
        if finished is not None:
            self.replay.extend(finished)
        taken = len(steps) * num_rows
        if self.exploration is not None:
            self.exploration.step(taken)
        return self._episodes(taken, finished)

    def _record(self, before: TensorDictBase, following: TensorDictBase) -> TensorDictBase:
        """One row per environment of what is stored, without copying any tensor."""
        keys = ["reward", "terminated", "truncated"] + ["success"] * self._tells_success
        return before.set("next", following.select(*keys))

    def _episodes(self, num_steps: int, finished: TensorDictBase | None) -> Episodes:
        if finished is None:
            empty = torch.zeros(0)
            return Episodes(num_steps, empty, empty.long(), empty.bool() if self._tells_success else None)
        success = finished.get(("next", "success")).flatten(1).any(-1) if self._tells_success else None
        lengths = finished.get("mask").flatten(1).sum(-1) - 1
        return Episodes(num_steps, finished.get(("next", "reward")).flatten(1).sum(-1), lengths, success)

    def max_appended(self, num_steps: int) -> int:
        """The most timesteps that `collect` of ``num_steps`` may append: every step an episode with two of them."""
        num_rows = self.env.batch_size[0]
        return self._assembler.num_open + 2 * (-(-num_steps // num_rows) * num_rows)

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy. Its memory survives."""
        TensorDict.from_module(self.policy).data.update_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Environment, current observation, open episodes, weights and memory of the policy, exploration."""
        return {
            "env": self.env.state_dict(),
            "current": None if self._current is None else self._current.clone(),
            "open": self._assembler.state_dict(),
            "policy": self.policy.state_dict(),
            "memory": self.policy.trajectory_encoder.memory_state_dict(),
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, in a collector built from the same settings."""
        self.env.load_state_dict(state["env"])
        current, device = state["current"], self.env.device
        self._current = current if current is None or device is None else current.to(device)
        self._assembler.load_state_dict(
            {k: v if v is None or device is None else v.to(device) for k, v in state["open"].items()}
        )
        self.policy.load_state_dict(state["policy"])
        self.policy.trajectory_encoder.load_memory_state_dict(state["memory"])
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])

    def shutdown(self) -> None:
        """Closes the environment."""
        if not self.env.is_closed:
            self.env.close()


def _stored_keys(env: EnvBase) -> Sequence[NestedKey]:
    keys = list(env.observation_spec.keys(True, True))
    if "is_init" not in keys:
        raise ValueError(
            f"SyncCollector: env must emit is_init (yamame.transforms.ContextTransform does), got {keys}"
        )
    return [key for key in keys if key not in NOT_STORED]
