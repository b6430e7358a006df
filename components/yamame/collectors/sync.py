"""Acting and learning in turn, in one process: deterministic, and exactly resumable."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.checks import check_bounds, require
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Episodes, PreparesToAct, Remembers, Replay, outermost
from yamame.collectors.block import on_host
from yamame.collectors.entries import Block, StepEntries, with_ends
from yamame.collectors.memory import MemoryAfterUpdate, check_memory, renew_memory
from yamame.execution.precision import Precision, check_precision, in_precision, is_lower
from yamame.execution.recorded_steps import Capturable, RecordedSteps, is_capturable
from yamame.execution.recorder import check_compiler, cuda_recorder


class SyncCollector:
    """Steps a batched environment with its own copy of a policy and stores whole trajectories.

    `yamame.collectors.entries` lists the entries of a trajectory. An episode in which the
    environment sets ``aborted`` (it failed) is dropped and counted.

    Args:
        env: Environment with one batch dimension ``[N]``, which emits ``is_init``.
        policy: Any TensorDict module that writes ``action``; copied. A state that it keeps in the
            TensorDict needs its primer in ``env``. `yamame.collectors.base` lists optional methods.
        replay: Receives finished trajectories ``[E, L]`` on the CPU, through its ``extend``.
        exploration: Changes the policy's action before it is executed; the executed action is
            stored. Its ``step(num_env_steps)`` is called after every `collect`. Unlike the policy
            it is not copied: it is moved in place to the device of ``env``.
        greedy: Act by the most probable action instead of sampling; exploration still changes it.
        autocast: Precision in which the policy computes. ``bfloat16``: lower precision. ``auto``:
            bfloat16 on devices that multiply it (AVX512_BF16, AMX, GPUs since Ampere). None: the
            precision of the weights.
        cuda_graph: Record acting as CUDA graphs and replay them: whole steps in native
            environments, else the policy's decisions alone. Needs CUDA.
        compile: Compile the policy's decisions, which takes up to minutes at first. With
            ``cuda_graph``, recordings contain the compiled code.
        memory_after_update: Treatment of the agent's memory of open episodes when its weights
            change: ``keep``, ``rebuild`` (by the new weights) or ``reset``.

    Raises:
        ArgumentError: The environment does not have one batch dimension or has no ``is_init``,
            ``autocast`` is unknown, decisions cannot be recorded or compiled although they should
            be, or the memory cannot be rebuilt or reset.
    """

    @check_bounds
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
        require(owner, "policy", policy, isinstance(policy, nn.Module), "be a TensorDict module")
        batch_size = tuple(env.batch_size)
        require(owner, "env", batch_size, len(batch_size) == 1, "have one batch dimension")
        observed = list(env.observation_spec.keys(True, True))
        condition = "emit is_init (yamame.transforms.ContextTransform does)"
        require(owner, "env", observed, "is_init" in observed, condition)
        check_memory(owner, policy, memory_after_update, cuda_graph=cuda_graph)

        self.env = env
        self.replay = replay
        self.memory_after_update = memory_after_update
        self.num_envs = batch_size[0]
        self.assembler = TrajectoryAssembler()
        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self.exploration = exploration
        if exploration is not None and env.device is not None:
            self.exploration = exploration.to(env.device)
        self._current: TensorDictBase | None = None
        self._entries = StepEntries(observed, policy, replay)

        device = self._policy_device()
        check_precision(owner, autocast, device)
        # Autocast caches no casts of weights, which change in place between two steps.
        self._precision = in_precision(device, autocast, cache=False)
        self._cast_weights = _cast_weights(self.policy, device, autocast)
        self._mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
        # Reading a tensor of such a device synchronizes with it.
        self._is_async_device = device.type != "cpu"
        if compile:
            check_compiler(device, owner)
            self._require_method("compile_decisions")
            self.policy.compile_decisions()
        parts = [self.policy]
        if self.exploration is not None:
            parts.append(self.exploration)
        parts.append(env)
        self._parts: list[Capturable] = [part for part in parts if is_capturable(part)]
        self._recorded: RecordedSteps | None = None
        if cuda_graph:
            recorder = cuda_recorder(device, owner)
            if len(self._parts) == len(parts):
                self._recorded = RecordedSteps(self._step, self._parts, recorder, device)
            else:
                self._require_method("record")
                self.policy.record(recorder)
        self._prepare_to_act()

    def _policy_device(self) -> torch.device:
        for parameter in self.policy.parameters():
            return parameter.device
        return self.env.device or torch.device("cpu")

    def _require_method(self, name: str) -> None:
        has_method = callable(getattr(self.policy, name, None))
        policy_name = type(self.policy).__name__
        require(type(self).__name__, "policy", policy_name, has_method, f"have {name}()")

    @torch.no_grad()
    def collect(self, num_steps: int) -> Episodes:
        """Take at least ``num_steps`` steps, over all envs, and store the episodes that ended."""
        timestep = self.env.reset() if self._current is None else self._current
        length = -(-num_steps // self.num_envs)  # rounded up
        if self._recorded is not None:
            block, timestep = self._recorded.take(timestep, length)
        else:
            if self._is_async_device:
                # Parts whose memory grows read its length from the device: once per block here
                # instead of once per step. On the CPU this would only enlarge the memory early.
                for part in self._parts:
                    part.reserve(length)
            steps: list[TensorDictBase] = []
            for _ in range(length):
                # As `_take_step`, without its frame: this is the middle of every traceback.
                with set_exploration_type(self._mode), self._precision:
                    timestep = self.policy(timestep)
                if self.exploration is not None:
                    timestep = self.exploration(timestep)
                step, timestep = self.env.step_and_maybe_reset(timestep)
                steps.append(step)
            block = self._entries.stack(steps)
        self._current = timestep
        episodes = self._store(block)
        if self.exploration is not None:
            self.exploration.step(episodes.num_steps)
        return episodes

    def _take_step(self, timestep: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Take one step, and return it and the next timestep."""
        with set_exploration_type(self._mode), self._precision:
            timestep = self.policy(timestep)
        if self.exploration is not None:
            timestep = self.exploration(timestep)
        return self.env.step_and_maybe_reset(timestep)

    def _step(self, timestep: TensorDictBase) -> tuple[Block, TensorDictBase]:
        """Take one step, to be recorded; return the entries to store and the next timestep."""
        step, timestep = self._take_step(timestep)
        return self._entries.select(step), timestep

    def _store(self, block: Mapping[NestedKey, Tensor], *, first_only: bool = False) -> Episodes:
        """Store the episodes that ended in a block of steps.

        Args:
            block: Entries ``[S, N, ...]``.
            first_only: Store only the first episode of every env. Steps after the last of these
                ends do not count.
        """
        block = with_ends(on_host(block))
        done = block["next", "done"].flatten(1)
        if first_only:
            # Keep only the first end per env. At least one episode must have ended.
            done = done & (done.cumsum(0) == 1)
            last_end = int(done.nonzero()[:, 0].max())
            done = done[: last_end + 1]
        steps = self._entries.transitions(block, done)
        finished = self.assembler.add(steps, done, self._entries.terminal(block, done))

        num_aborted = 0
        if "aborted" in self._entries.outcomes:
            aborted = finished.get(("next", "aborted")).flatten(1).any(-1)
            finished = finished.exclude(("next", "aborted"))
            num_aborted = int(aborted.sum())
            if num_aborted:
                finished = finished[~aborted]
        if len(finished):
            self.replay.extend(finished)

        success = None
        if "success" in self._entries.outcomes:
            success = finished.get(("next", "success")).flatten(1).any(-1)
        returns = finished.get(("next", "reward")).flatten(1).sum(-1)
        # A trajectory has one timestep more than transitions.
        lengths = finished.get("mask").flatten(1).sum(-1) - 1
        return Episodes(done.numel(), returns, lengths, success, num_aborted)

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copy ``TensorDict.from_module(policy).data`` into the acting policy.

        ``memory_after_update`` decides what happens to its memory.

        Args:
            weights: Parameters and buffers of a policy of the same structure.
        """
        TensorDict.from_module(self.policy).data.update_(weights)
        self._prepare_to_act()
        with self._precision:
            renew_memory(self.policy, self.memory_after_update, self.assembler, self.env.device)

    def _prepare_to_act(self) -> None:
        for _, module in outermost(self.policy, PreparesToAct):
            module.prepare_to_act()
        if self._cast_weights is not None:
            self._cast_weights.refresh()

    def metrics(self) -> dict[str, float]:
        """Return ``unfinished_steps``: steps of episodes that have not ended."""
        return {"unfinished_steps": float(self.assembler.num_open)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environment, open episodes, policy with memory, and exploration.

        If the environment's ``state_dict`` is empty, as in most of TorchRL's own, a restored
        collector begins new episodes.
        """
        memory = {}
        for name, module in outermost(self.policy, Remembers):
            memory[name] = module.memory_state_dict()
        return {
            "env": _env_state(self.env),
            "current": None if self._current is None else self._current.clone(),
            "open": self.assembler.state_dict(),
            "policy": self.policy.state_dict(),
            "memory": memory,
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`, in a collector built from the same settings."""
        self.policy.load_state_dict(state["policy"])
        self._prepare_to_act()
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])
        self._current = None
        self.assembler = TrajectoryAssembler()
        # The environment could not be saved, so begin new episodes.
        if state["env"] is None:
            return

        _load_env_state(self.env, state["env"])
        current = state["current"]
        if current is not None and self.env.device is not None:
            current = current.to(self.env.device)
        self._current = current
        self.assembler.load_state_dict(state["open"])
        for name, module in outermost(self.policy, Remembers):
            module.load_memory_state_dict(state["memory"][name])

    def shutdown(self) -> None:
        """Close the environment."""
        if not self.env.is_closed:
            self.env.close()


def _cast_weights(policy: nn.Module, device: torch.device, autocast: Precision) -> Any:
    """Return the `CastWeights` of a policy, None if it acts in the precision of its weights."""
    if not is_lower(device, autocast):
        return None
    # It loads all sequence models.
    from yamame.collectors.cast_weights import CastWeights

    return CastWeights(policy, torch.bfloat16)


def _env_state(env: EnvBase) -> dict[str, Any] | None:
    """Return the state of an environment, None if it has no state to save."""
    if isinstance(env, TransformedEnv):
        # The state of a TransformedEnv itself holds only that of its transforms.
        base_state = _env_state(env.base_env)
        if base_state is None:
            return None
        return {"base_env": base_state, "transforms": env.state_dict()}
    state = env.state_dict()
    return state if _has_leaves(state) else None


def _load_env_state(env: EnvBase, state: Mapping[str, Any]) -> None:
    """Restore the result of `_env_state`."""
    if isinstance(env, TransformedEnv):
        _load_env_state(env.base_env, state["base_env"])
        env.load_state_dict(state["transforms"])
    else:
        env.load_state_dict(state)


def _has_leaves(state: Mapping[str, Any]) -> bool:
    for value in state.values():
        if not isinstance(value, Mapping) or _has_leaves(value):
            return True
    return False
