"""Plays: a policy acts in a batched environment, and whole trajectories come out."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.agent import InContextPolicy
from yamame.agent.policy import acting_copy
from yamame.capturing import cuda_recorder
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Episodes

NOT_STORED: tuple[NestedKey, ...] = (
    "task_seed",
    "success",
    "aborted",
    "done",
    "terminated",
    "truncated",
    "reward",
)
"""Root entries that no learner reads, or that are stored under ``next``."""


class Player:
    """Steps a batched environment with its own copy of a policy; the engine of every collector.

    What a trajectory holds of a step: every observation entry of the environment (`NOT_STORED` excepted),
    ``action``, and ``("next", "reward" | "terminated" | "truncated")``, with ``("next", "success")`` where the
    environment tells it. An episode in which the environment set ``aborted`` (it failed) is dropped and counted.

    Args:
        env: Environment with one batch dimension ``[N]``, which emits ``is_init``.
        policy: The policy to act with; copied.
        exploration: Changes the policy's action before it is executed; the executed action is what is stored. Who
            plays tells it of the steps taken.
        owner: Who plays, for the text of errors.
        greedy: The policy acts by its most probable action; exploration still changes it.
        autocast: Precision in which the policy encodes timesteps and history and remembers it; None for that of the
            weights.
        compile_policy: Compile what of the policy's step is faster so.
        cuda_graph: Record the policy's decisions, all but the draw, as CUDA graphs.

    Raises:
        ValueError: If the environment has another number of batch dimensions, or no ``is_init``, or ``autocast`` is
            unknown, or something is to be compiled or recorded and cannot be.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: InContextPolicy,
        *,
        exploration: TensorDictModuleBase | None,
        owner: str,
        greedy: bool = False,
        autocast: Literal["bfloat16"] | None = None,
        compile_policy: bool = False,
        cuda_graph: bool = False,
    ) -> None:
        if autocast not in (None, "bfloat16"):
            raise ValueError(f"{owner}: autocast must be None or 'bfloat16', got {autocast!r}")
        if len(env.batch_size) != 1:
            raise ValueError(f"{owner}: env must have one batch dimension, got {tuple(env.batch_size)}")
        self.env = env
        self.num_rows = env.batch_size[0]
        self.exploration = exploration
        self._mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
        self._keys = _stored_keys(env, owner)
        self._dtype, self._compiled = None if autocast is None else torch.bfloat16, compile_policy
        recorder = None
        if cuda_graph:
            recorder = cuda_recorder(next(policy.parameters()).device, owner)
            if compile_policy:
                raise ValueError(f"{owner}: compile_policy must be false with cuda_graph, got true")
        self.policy = acting_copy(
            policy, num_rows=self.num_rows, dtype=self._dtype, compiled=compile_policy, recorder=recorder
        )
        self._outcomes = [key for key in ("success", "aborted") if key in env.observation_spec.keys()]
        self.assembler = TrajectoryAssembler()
        self._current: TensorDictBase | None = None

    @torch.no_grad()
    def play(self, num_steps: int) -> tuple[Episodes, TensorDictBase | None]:
        """Takes at least ``num_steps`` steps, over all rows; what ended and its trajectories ``[E, L]``, if any."""
        current = self.env.reset() if self._current is None else self._current
        num_blocks = -(-num_steps // self.num_rows)
        kept: dict[NestedKey, list[Tensor]] = {}
        dones, terminals = [], []
        for _ in range(num_blocks):
            with set_exploration_type(self._mode):
                current = self.policy(current)
            if self.exploration is not None:
                current = self.exploration(current)
            stepped, following = self.env.step_and_maybe_reset(current)
            for key, value in self._record(stepped):
                kept.setdefault(key, []).append(value)
            arrived = stepped.get("next")
            dones.append(arrived.get("done").view(-1))
            if dones[-1].any():
                terminals.append(arrived.select(*self._keys)[dones[-1]])
            current = following
        self._current = current
        steps = TensorDict({}, [num_blocks, self.num_rows], device=self.env.device)
        for key, values in kept.items():
            steps.set(key, torch.stack(values))
        done = torch.stack(dones)
        finished = self.assembler.add(steps, done, torch.cat(terminals) if terminals else None)
        finished, num_aborted = self._without_aborted(finished)
        return self._episodes(num_blocks * self.num_rows, finished, num_aborted), finished

    def _record(self, stepped: TensorDictBase) -> list[tuple[NestedKey, Tensor]]:
        """What is stored of a step, without copying any tensor."""
        arrived = stepped.get("next")
        transition = ("reward", "terminated", "truncated", *self._outcomes)
        return [
            *((key, stepped.get(key)) for key in (*self._keys, "action")),
            *((("next", key), arrived.get(key)) for key in transition),
        ]

    def _without_aborted(self, finished: TensorDictBase | None) -> tuple[TensorDictBase | None, int]:
        """The finished trajectories that are data, and how many are not."""
        if finished is None or "aborted" not in self._outcomes:
            return finished, 0
        aborted = finished.get(("next", "aborted")).flatten(1).any(-1)
        kept = finished.exclude(("next", "aborted"))
        if not aborted.any():
            return kept, 0
        return (None if aborted.all() else kept[~aborted]), int(aborted.sum())

    def _episodes(self, num_steps: int, finished: TensorDictBase | None, num_aborted: int) -> Episodes:
        tells_success = "success" in self._outcomes
        if finished is None:
            empty = torch.zeros(0)
            success = empty.bool() if tells_success else None
            return Episodes(num_steps, empty, empty.long(), success, num_aborted)
        success = finished.get(("next", "success")).flatten(1).any(-1) if tells_success else None
        lengths = finished.get("mask").flatten(1).sum(-1) - 1
        returns = finished.get(("next", "reward")).flatten(1).sum(-1)
        return Episodes(num_steps, returns, lengths, success, num_aborted)

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy. Its memory survives."""
        TensorDict.from_module(self.policy).data.update_(weights)
        self.policy.prepare(self._dtype, compiled=self._compiled)

    def load_policy_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads the ``state_dict`` of a policy into the acting one. Its memory survives."""
        self.policy.load_state_dict(state)
        self.policy.prepare(self._dtype, compiled=self._compiled)

    def state_dict(self) -> dict[str, Any]:
        """Environment, current observation, open episodes, weights and memory of the policy, exploration.

        Where the environment's ``state_dict`` is empty, as in most of TorchRL's own, it begins new episodes when it is
        restored.
        """
        return {
            "env": _environment_state(self.env),
            "current": None if self._current is None else self._current.clone(),
            "open": self.assembler.state_dict(),
            "policy": self.policy.state_dict(),
            "memory": self.policy.trajectory_encoder.memory_state_dict(),
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, in a player built from the same settings."""
        self.load_policy_state_dict(state["policy"])
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])
        if state["env"] is None:
            self._current, self.assembler = None, TrajectoryAssembler()
            return
        _restore_environment(self.env, state["env"])
        current, device = state["current"], self.env.device
        self._current = current if current is None or device is None else current.to(device)
        self.assembler.load_state_dict(
            {k: v if v is None or device is None else v.to(device) for k, v in state["open"].items()}
        )
        self.policy.trajectory_encoder.load_memory_state_dict(state["memory"])

    def close(self) -> None:
        """Closes the environment."""
        if not self.env.is_closed:
            self.env.close()


def _environment_state(env: EnvBase) -> dict[str, Any] | None:
    """All that decides how an environment goes on, transforms included; None where it does not tell."""
    if isinstance(env, TransformedEnv):  # whose own state is that of its transforms alone
        base = _environment_state(env.base_env)
        return None if base is None else {"base_env": base, "transforms": env.state_dict()}
    state = env.state_dict()
    return state if _holds_something(state) else None


def _holds_something(state: Mapping[str, Any]) -> bool:
    return any(_holds_something(v) if isinstance(v, Mapping) else True for v in state.values())


def _restore_environment(env: EnvBase, state: Mapping[str, Any]) -> None:
    if isinstance(env, TransformedEnv):
        _restore_environment(env.base_env, state["base_env"])
        env.load_state_dict(state["transforms"])
    else:
        env.load_state_dict(state)


def _stored_keys(env: EnvBase, owner: str) -> Sequence[NestedKey]:
    keys = list(env.observation_spec.keys(True, True))
    if "is_init" not in keys:
        raise ValueError(
            f"{owner}: env must emit is_init (yamame.transforms.ContextTransform does), got {keys}"
        )
    return [key for key in keys if key not in NOT_STORED]
