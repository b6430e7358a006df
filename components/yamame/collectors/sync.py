"""Acting and learning in turn, in one process: deterministic, and exactly resumable.

What a trajectory holds of a timestep: every observation entry of the environment but those that
`yamame.keys` does not store and those that the policy writes itself (a recurrent state in the
tensordict); ``action``; ``("next", "reward" | "terminated" | "truncated")``, and
``("next", "success")`` where the environment tells it. An episode in which the environment set
``aborted`` (it failed) is dropped and counted.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.checks import require
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import (
    Carries,
    Compiles,
    Episodes,
    PreparesToAct,
    Records,
    Remembers,
    Replay,
    carries,
    lacking,
    outermost,
)
from yamame.collectors.block import on_host
from yamame.collectors.memory import MemoryAfterUpdate, check_memory, renew_memory
from yamame.collectors.recorded import RecordedSteps
from yamame.execution.precision import Precision, check_precision, in_precision
from yamame.execution.recorder import Recorder, check_compiler, cuda_recorder
from yamame.keys import NOT_STORED


class SyncCollector:
    """Steps a batched environment with its own copy of a policy and appends finished trajectories
    to replay.

    Args:
        env: Environment with one batch dimension ``[N]``, which emits ``is_init``.
        policy: Any TensorDict module that writes ``action``; copied. A state that it keeps in the
            tensordict needs its primer in ``env``. What more it may offer:
            `yamame.collectors.base`.
        replay: Receives finished trajectories ``[E, L]`` on the CPU, through its ``extend``.
        exploration: Changes the policy's action before it is executed; the executed action is what
            is stored. Its ``step(num_env_steps)`` is called after every `collect`.
        greedy: Act by the mode of the policy's distribution; exploration still changes the action.
        autocast: Precision in which the policy computes: ``"bfloat16"``, ``"auto"`` for that where
            a device multiplies it, None for that of its weights.
        cuda_graph: Record CUDA graphs: of whole steps where policy, exploration and environment
            allow it (`yamame.collectors.Carries`), else of the policy's decisions.
        compile: Compile the policy's decisions; what is recorded then launches what was compiled.
        memory_after_update: What the policy remembers of open episodes when its weights change:
            ``keep``, ``rebuild`` (by the new weights) or ``reset``; see `yamame.collectors.memory`.

    Raises:
        ValueError: If the environment has another number of batch dimensions or no ``is_init``,
            ``autocast`` is unknown, decisions are to be recorded and cannot be, or the memory
            cannot be rebuilt or reset.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: TensorDictModuleBase,
        replay: Replay,
        *,
        exploration: TensorDictModuleBase | None = None,
        greedy: bool = False,
        autocast: Precision = None,
        cuda_graph: bool = False,
        compile: bool = False,
        memory_after_update: MemoryAfterUpdate = "keep",
    ) -> None:
        owner = type(self).__name__
        require(
            owner, "policy", policy, isinstance(policy, torch.nn.Module), "be a TensorDict module"
        )
        require(
            owner, "env", tuple(env.batch_size), env.batch_dims == 1, "have one batch dimension"
        )
        observed = list(env.observation_spec.keys(True, True))
        condition = "emit is_init (yamame.transforms.ContextTransform does)"
        require(owner, "env", observed, "is_init" in observed, condition)
        check_memory(owner, policy, memory_after_update, cuda_graph=cuda_graph)
        self.env, self.replay, self.memory_after_update = env, replay, memory_after_update
        self.exploration = (
            exploration if exploration is None or env.device is None else exploration.to(env.device)
        )
        self.num_envs = env.batch_size[0]
        self.assembler = TrajectoryAssembler()
        self._current: TensorDictBase | None = None
        unstored = {*NOT_STORED, *lacking(replay)}
        self._observed = [
            key for key in observed if key not in unstored and not _is_state_of(policy, key)
        ]
        self._outcomes = [key for key in ("success", "aborted") if key in observed]
        following = [*self._observed, "reward", "done", "terminated", "truncated", *self._outcomes]
        self._next_keys = [(key, unravel_key(("next", key))) for key in dict.fromkeys(following)]

        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        device = next((p.device for p in policy.parameters()), env.device or torch.device("cpu"))
        self._mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
        check_precision(owner, autocast, device)
        self._precision = in_precision(device, autocast, cache=False)
        self._waits = device.type != "cpu"  # for the device, whoever looks at what is there
        parts = [part for part in (self.policy, self.exploration, env) if part is not None]
        self._parts: list[Carries] = [part for part in parts if carries(part)]
        self._recorded: RecordedSteps | None = None
        if compile:
            check_compiler(device, owner)
            able = isinstance(self.policy, Compiles)
            require(owner, "policy", type(policy).__name__, able, "have compile_decisions()")
            self.policy.compile_decisions()
        if cuda_graph:
            self._record(cuda_recorder(device, owner), device, whole=len(self._parts) == len(parts))
        self._prepare_to_act()

    def _record(self, recorder: Recorder, device: torch.device, *, whole: bool) -> None:
        if whole:
            self._recorded = RecordedSteps(self._step, self._parts, recorder, device)
            return
        name = type(self.policy).__name__
        require(
            type(self).__name__, "policy", name, isinstance(self.policy, Records), "have record()"
        )
        self.policy.record(recorder)

    @torch.no_grad()
    def collect(self, num_steps: int) -> Episodes:
        """Takes at least ``num_steps`` environment steps, over all envs, and appends the episodes
        that ended.
        """
        timestep = self.env.reset() if self._current is None else self._current
        length, block = -(-num_steps // self.num_envs), None
        if self._recorded is not None:
            block, self._current = self._recorded.take(timestep, length)
        else:
            if self._waits:
                for part in self._parts:
                    part.reserve(length)
            steps: list[TensorDictBase] = []
            for _ in range(length):
                with set_exploration_type(self._mode), self._precision:
                    timestep = self.policy(timestep)
                if self.exploration is not None:
                    timestep = self.exploration(timestep)
                step, timestep = self.env.step_and_maybe_reset(timestep)
                steps.append(step)
            block, self._current = self._stack(steps), timestep
        episodes = self._store(block)
        if self.exploration is not None:
            self.exploration.step(episodes.num_steps)
        return episodes

    def _step(self, timestep: TensorDictBase) -> tuple[dict[NestedKey, Tensor], TensorDictBase]:
        """A step to record, and what is kept of it; `collect` writes it out, so that a traceback is
        short.
        """
        with set_exploration_type(self._mode), self._precision:
            timestep = self.policy(timestep)
        if self.exploration is not None:
            timestep = self.exploration(timestep)
        step, timestep = self.env.step_and_maybe_reset(timestep)
        return self._kept(step), timestep

    def _kept(self, step: TensorDictBase) -> dict[NestedKey, Tensor]:
        """What is kept of a step; of the next timestep all that is seen, too."""
        following = step.get("next")
        kept = {key: step.get(key) for key in (*self._observed, "action")}
        for key, in_step in self._next_keys:
            if (value := following.get(key, None)) is not None:
                kept[in_step] = value
        return kept

    def _stack(self, steps: list[TensorDictBase]) -> dict[NestedKey, Tensor]:
        """What is kept of consecutive steps ``[N]``: ``[S, N, ...]``."""
        kept = [self._kept(step) for step in steps]
        return {key: torch.stack([each[key] for each in kept]) for key in kept[0]}

    def _store(self, block: Mapping[NestedKey, Tensor], *, first_only: bool = False) -> Episodes:
        """Appends the episodes that ended in a block of steps; if ``first_only``, the first of
        every env.

        Then what follows when all have ended does not count.
        """
        block = _with_ends(on_host(block))
        done = block["next", "done"].flatten(1)
        if first_only:
            done = done & (done.cumsum(0) == 1)
            done = done[: 1 + int(done.nonzero()[:, 0].max())]
        length = len(done)
        steps = TensorDict({}, done.shape, device="cpu")
        flags = ("reward", "terminated", "truncated", *self._outcomes)
        for key in (*self._observed, "action", *(("next", name) for name in flags)):
            steps.set(key, block[key][:length])
        last = None
        if done.any():
            seen = {key: block[unravel_key(("next", key))][:length][done] for key in self._observed}
            last = TensorDict(seen, [len(done.nonzero())], device="cpu")
        finished = self.assembler.add(steps, done, last)
        num_aborted = 0
        if "aborted" in self._outcomes:
            aborted = finished.get(("next", "aborted")).flatten(1).any(-1)
            finished, num_aborted = finished.exclude(("next", "aborted")), int(aborted.sum())
            if num_aborted:
                finished = finished[~aborted]
        if len(finished):
            self.replay.extend(finished)
        success = None
        if "success" in self._outcomes:
            success = finished.get(("next", "success")).flatten(1).any(-1)
        returns = finished.get(("next", "reward")).flatten(1).sum(-1)
        lengths = finished.get("mask").flatten(1).sum(-1) - 1
        return Episodes(done.numel(), returns, lengths, success, num_aborted)

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy; see
        ``memory_after_update``.
        """
        TensorDict.from_module(self.policy).data.update_(weights)
        self._prepare_to_act()
        with self._precision:
            renew_memory(self.policy, self.memory_after_update, self.assembler, self.env.device)

    def _prepare_to_act(self) -> None:
        for _, module in outermost(self.policy, PreparesToAct):
            module.prepare_to_act()

    def metrics(self) -> dict[str, float]:
        """``unfinished_steps``: steps of episodes that have not ended."""
        return {"unfinished_steps": float(self.assembler.num_open)}

    def state_dict(self) -> dict[str, Any]:
        """Environment, current timestep, unfinished episodes, weights and memory of the policy,
        exploration.

        Where the environment's ``state_dict`` is empty, as in most of TorchRL's own, it begins new
        episodes when it is restored.
        """
        return {
            "env": _env_state(self.env),
            "current": None if self._current is None else self._current.clone(),
            "open": self.assembler.state_dict(),
            "policy": self.policy.state_dict(),
            "memory": {
                name: m.memory_state_dict() for name, m in outermost(self.policy, Remembers)
            },
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, in a collector built from the same settings."""
        self.policy.load_state_dict(state["policy"])
        self._prepare_to_act()
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])
        self._current, self.assembler = None, TrajectoryAssembler()
        if state["env"] is None:
            return
        _load_env_state(self.env, state["env"])
        device = self.env.device

        def moved(value: Any) -> Any:
            return value if value is None or device is None else value.to(device)

        self._current = moved(state["current"])
        self.assembler.load_state_dict(state["open"])
        for name, module in outermost(self.policy, Remembers):
            module.load_memory_state_dict(state["memory"][name])

    def shutdown(self) -> None:
        """Closes the environment."""
        if not self.env.is_closed:
            self.env.close()


def _is_state_of(policy: TensorDictModuleBase, key: NestedKey) -> bool:
    """Whether the policy writes ``("next", key)``, or a TensorDict that holds it, to read it at the
    next step.
    """
    path = unravel_key(("next", key))
    return any(
        path[:length] in getattr(policy, "out_keys", ()) for length in range(2, len(path) + 1)
    )


def _env_state(env: EnvBase) -> dict[str, Any] | None:
    """All that decides how an environment goes on, transforms included; None where it does not
    tell.
    """
    if isinstance(env, TransformedEnv):  # whose own state is that of its transforms alone
        base = _env_state(env.base_env)
        return None if base is None else {"base_env": base, "transforms": env.state_dict()}
    state = env.state_dict()
    return state if _has_leaves(state) else None


def _has_leaves(state: Mapping[str, Any]) -> bool:
    return any(_has_leaves(v) if isinstance(v, Mapping) else True for v in state.values())


def _load_env_state(env: EnvBase, state: Mapping[str, Any]) -> None:
    if isinstance(env, TransformedEnv):
        _load_env_state(env.base_env, state["base_env"])
        env.load_state_dict(state["transforms"])
    else:
        env.load_state_dict(state)


def _with_ends(block: dict[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
    """The block of an environment that does not tell how its episodes end: all that is done is
    terminated.
    """
    done, terminated = block["next", "done"], block.get(("next", "terminated"))
    if terminated is not None and ("next", "truncated") in block:
        return block
    terminated = done if terminated is None else terminated
    return {**block, ("next", "terminated"): terminated, ("next", "truncated"): done & ~terminated}
