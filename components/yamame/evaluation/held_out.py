"""Evaluation on held-out tasks: one complete episode of every env, in one or more rounds.

The episodes that count are fixed before the first step, so short episodes are not over-represented
and every policy plays the same tasks. An evaluation has no side effects: a copy of the policy acts,
the global random state is restored, and no step is stored.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.checks import PositiveInt, check_bounds, require, require_choice
from yamame.evaluation.bound import StepLimit
from yamame.evaluation.result import EvaluationResult, concatenate
from yamame.exploration import disable_exploration
from yamame.goals import num_goals
from yamame.spaces.from_specs import env_attribute
from yamame.system.messages import print_once
from yamame.system.signals import exit_if_received

Policy = Callable[[TensorDictBase], TensorDictBase]
MemoryReset = Literal["never", "every_step", "every_trial"]
"""When the policy's memory is reset within an episode."""

_FORMER_RESETS: dict[Any, MemoryReset] = {
    False: "never",
    True: "every_step",
    "trials": "every_trial",
}
"""Values of the former argument ``memory_wiped`` of `evaluate`."""
_SYNC_INTERVAL = 16
"""Steps between two reads of a tensor on an accelerator."""
_FEWEST_TASKS = 8
"""Number of different tasks below which an evaluation of one side of a split is reported."""
_SHOWS_TASKS = 32
"""Fewest episodes that are expected to show so many tasks, if there are as many."""


@check_bounds
def evaluate(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: PositiveInt | None = None,
    greedy: bool = False,
    max_steps: PositiveInt | None = None,
    memory_reset: MemoryReset = "never",
    seed: int = 0,
    task_seeds: Sequence[int] | None = None,
    memory_wiped: Literal["trials"] | bool | None = None,
) -> EvaluationResult:
    """Evaluate a policy on complete episodes.

    Args:
        policy: Writes the environment's action into a tensordict ``[N]``: any TensorDict module, or
            a function. A module is evaluated as a copy in evaluation mode, with every
            `yamame.exploration.Exploration` in it off. TorchRL's own exploration modules keep
            sampling unless ``greedy``.
        env: Environment with at most one batch dimension; without one, the policy still sees
            ``[1]``. The function seeds the environment, and may leave it in the middle of an
            episode. Do not share it with training.
        num_episodes: Episodes, in rounds of one per env; None for one round.
        greedy: Act by the mode of the policy instead of sampling.
        max_steps: Steps after which an episode is cut and reported as not finished; None: no limit,
            except for episodes that seem to be endless (`yamame.evaluation.bound`).
        memory_reset: Ablation of the policy's memory: it sees ``is_init`` set at every step
            (``every_step``), so it acts only on the current timestep with its previous action and
            reward; or at the start of every trial (``every_trial``), so no trial depends on an
            earlier one.
        seed: Seed of the environment and of the policy's samples in the first round. The seeds of
            later rounds are derived from it.
        task_seeds: Tasks to play, one episode each, in an environment whose reset takes
            ``task_seed``; overrides ``num_episodes``.
        memory_wiped: Former form of ``memory_reset``, removed in the next version.

    Raises:
        ArgumentError: The environment is not TorchRL's, has several batch dimensions or lacks an
            entry that ``memory_reset`` needs; the policy returns no TensorDict with an action; or a
            number is not positive.
    """
    if memory_wiped is not None:
        memory_reset = _replace_former(memory_wiped)
    _check_arguments(policy, env, memory_reset)
    num_envs = env.batch_size.numel()
    if task_seeds is not None:
        num_episodes = len(task_seeds)
        require("evaluate", "task_seeds", task_seeds, num_episodes > 0, "name at least one task")
    elif num_episodes is None:
        num_episodes = num_envs

    results = []
    with evaluation_mode(seed, greedy=greedy):
        for index, first in enumerate(range(0, num_episodes, num_envs)):
            env.set_seed(_seed_of_round(seed, index))
            count = min(num_envs, num_episodes - first)
            tasks = None if task_seeds is None else task_seeds[first : first + count]
            copied = fresh_copy(policy)
            results.append(_play_round(copied, env, count, max_steps, memory_reset, tasks))
    return _report_few_tasks(concatenate(results), env, is_sample=task_seeds is None)


def _report_few_tasks(
    result: EvaluationResult, env: EnvBase, *, is_sample: bool
) -> EvaluationResult:
    """Return a result, and print if its sample of one side of a split has few tasks."""
    num_episodes = result.returns.numel()
    num_tasks = result.num_tasks
    has_split = isinstance(env_attribute(env, "novelty"), str)
    # In fewer episodes, a side of many tasks may show few of them by chance.
    shows_tasks = is_sample and has_split and num_episodes >= _SHOWS_TASKS
    if shows_tasks and num_tasks is not None and num_tasks < _FEWEST_TASKS:
        print_once(
            f"evaluation: {num_episodes} episodes have met only {num_tasks} different tasks of "
            "this side of env.split, so scores and intervals say little about other tasks; use an "
            "environment with more tasks",
            subject="few tasks of a side of the split",
        )
    return result


def _check_arguments(policy: Policy, env: EnvBase, memory_reset: MemoryReset) -> None:
    require_choice("evaluate", "memory_reset", memory_reset, get_args(MemoryReset))
    check_players("evaluate", policy, env)
    condition = "have at most one batch dimension"
    require("evaluate", "env", tuple(env.batch_size), env.batch_dims <= 1, condition)


def check_players(owner: str, policy: object, env: object) -> None:
    """Raise unless a policy can be called, and an environment is one of TorchRL.

    Args:
        owner: Function named in the error.
        policy: Policy that is to act.
        env: Environment that is to be played.
    """
    kind = type(policy).__name__
    condition = "be a TensorDict module, or a function of a TensorDict that returns it"
    require(owner, "policy", kind, callable(policy), condition)
    kind = type(env).__name__
    condition = "be a TorchRL environment (EnvBase)"
    remedy = "make a Gymnasium id one with yamame_envs.Gym(id), and an object with "
    remedy += "torchrl.envs.GymWrapper(env)"
    require(owner, "env", kind, isinstance(env, EnvBase), condition, remedy=remedy)


def _replace_former(memory_wiped: Literal["trials"] | bool) -> MemoryReset:
    memory_reset = _FORMER_RESETS[memory_wiped]
    message = f"memory_wiped is deprecated: use memory_reset={memory_reset!r}"
    warnings.warn(message, DeprecationWarning, stacklevel=4)  # past `evaluate` and its bounds
    return memory_reset


def _seed_of_round(seed: int, index: int) -> int:
    if index == 0:
        return seed
    # The shift keeps the seed within 31 bits, because some environments reject larger ones.
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0]) >> 1


def fresh_copy(policy: Policy) -> Policy:
    """Return a copy of a policy that is ready for its first step.

    The copy of a module is in evaluation mode, has an empty memory and does not explore.
    """
    if isinstance(getattr(policy, "__self__", None), EnvBase):
        # A method of an environment, such as `rand_action`, would bring a copy of the environment,
        # whose worker processes and files belong to the original.
        return policy
    copied = copy.deepcopy(policy)
    if not isinstance(copied, nn.Module):
        return copied

    copied.eval()
    disable_exploration(copied)
    # By name, because a custom module may have one of the methods without a collector's protocol.
    for module in copied.modules():
        for name in ("reset_memory", "prepare_to_act"):
            method = getattr(module, name, None)
            if callable(method):
                method()
    return copied


@contextmanager
def evaluation_mode(seed: int, *, greedy: bool) -> Iterator[None]:
    """Seed PyTorch's generators and let policies act without gradients within the block.

    The state of the generators is restored afterwards.

    Args:
        seed: Seed of all generators of PyTorch, those of CUDA only if CUDA is initialized.
        greedy: Whether policies act by their mode instead of sampling.
    """
    devices = []
    if torch.cuda.is_initialized():
        devices = list(range(torch.cuda.device_count()))
    mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
    with torch.random.fork_rng(devices=devices), torch.no_grad(), set_exploration_type(mode):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def _play_round(
    policy: Policy,
    env: EnvBase,
    count: int,
    max_steps: int | None,
    memory_reset: MemoryReset,
    tasks: Sequence[int] | None,
) -> EvaluationResult:
    """Play one episode per env and return the result of the first ``count`` envs."""
    num_envs = env.batch_size.numel()
    timestep = env.reset(None if tasks is None else _reset_options(tasks, env))
    _check_keys(timestep, memory_reset)
    # Both are read before the first step: envs whose episode has ended continue with other tasks.
    goal = timestep.get("goal", None)
    hashes = task_hashes(env)

    stats = _EpisodeStats(num_envs, timestep.get("done").device)
    limit = StepLimit(env, max_steps)
    num_ended = 0
    while stats.is_running():
        if stats.num_ended > num_ended:
            num_ended = stats.num_ended
            limit.note_end(stats.num_steps)
        if limit.is_reached(stats.num_steps):
            break
        exit_if_received()
        acted = act(policy, timestep, env.action_key, memory_reset)
        step, timestep = env.step_and_maybe_reset(acted)
        reward = step["next"].get(env.reward_key).reshape(num_envs)
        stats.add(reward, _read_flags(step, num_envs))

    goal_counts = None
    if goal is not None:
        goal_counts = num_goals(goal.reshape(num_envs, *goal.shape[-2:]))[:count].cpu()
    return dataclasses.replace(
        stats.result(count, goal_counts),
        tasks=None if hashes is None else hashes[:count],
        plays_all_tasks=env_attribute(env, "plays_all_tasks") is True,
    )


def _check_keys(timestep: TensorDictBase, memory_reset: MemoryReset) -> None:
    needed: tuple[str, ...] = ()
    if memory_reset == "every_trial":
        needed = ("is_init", "trial_start")
    elif memory_reset == "every_step":
        needed = ("is_init",)

    keys = sorted(map(str, timestep.keys()))
    for key in needed:
        condition = f"emit {key} for memory_reset={memory_reset}"
        require("evaluate", "env", keys, key in keys, condition)


def _read_flags(step: TensorDictBase, num_envs: int) -> dict[str, Tensor]:
    """Read the flags of a step that the environment emits, each ``[E]`` bool."""
    next_td = step.get("next")
    flags = {name: next_td.get(name, None) for name in ("done", "success", "aborted")}
    flags["trial_start"] = step.get("trial_start", None)
    present = {}
    for name, flag in flags.items():
        if flag is not None:
            present[name] = flag.reshape(num_envs).bool()
    return present


def task_hashes(env: EnvBase) -> Tensor | None:
    """Return hashes ``[N]`` int64 of the tasks that the envs of a reset environment play.

    Equal tasks have equal hashes. They come from the method ``task_hashes()`` of the environment.

    Returns:
        The hashes, on the CPU; None if there is no such method, or if it returns None.

    Raises:
        ArgumentError: The number of hashes is not the number of envs.
    """
    method = env_attribute(env, "task_hashes")
    found = method() if callable(method) else None
    # TorchRL's batches of single environments return a list with the result of each.
    parts = found if isinstance(found, list) else [found]
    hashes = []
    for part in parts:
        if part is None:
            return None
        hashes.append(torch.as_tensor(part, dtype=torch.int64).reshape(-1).cpu())

    joined = torch.cat(hashes)
    num_envs = env.batch_size.numel()
    condition = f"hold one hash for each of {num_envs} envs"
    require("evaluate", "env.task_hashes()", len(joined), len(joined) == num_envs, condition)
    return joined


def _reset_options(tasks: Sequence[int], env: EnvBase) -> TensorDict:
    """Return the argument of ``env.reset`` that chooses the tasks.

    Envs beyond the number of tasks play the last one. They do not count.
    """
    num_envs = env.batch_size.numel()
    padding = [tasks[-1]] * (num_envs - len(tasks))
    seeds = torch.tensor([*tasks, *padding], device=env.device)
    seeds = seeds.view(*env.batch_size, 1)
    return TensorDict({"task_seed": seeds}, env.batch_size, device=env.device)


class _EpisodeStats:
    """Statistics of the first episode of each of E envs.

    The memory grows with the number of trials, not with the number of steps.

    Args:
        num_envs: E.
        device: Device of rewards and flags.

    Attributes:
        num_steps: Number of steps added so far.
        num_ended: Number of first episodes that had ended at the last synchronization.
        playing: ``[E]`` bool, envs whose first episode has not ended.
        lengths: ``[E]`` int64, number of steps of the first episode so far.
        trial: ``[E]`` int64, index of the present trial.
        returns: ``[E, T]`` float64, sum of rewards per trial; T is at least the number of trials.
        seen_flags: ``[E]`` bool by name, flags that were set at any step of the first episode.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.num_steps = 0
        self.num_ended = 0
        self.playing = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.trial = torch.zeros_like(self.lengths)
        # Reading `playing` or `trial` synchronizes with an accelerator. There they are read every
        # few steps; the steps after the last episode are masked.
        self.sync_interval = 1 if device.type == "cpu" else _SYNC_INTERVAL
        columns = 1 + self.sync_interval
        self.returns = torch.zeros(num_envs, columns, dtype=torch.float64, device=device)
        self.seen_flags: dict[str, Tensor] = {}

    def is_running(self) -> bool:
        """Return whether an episode is running, or was at the last synchronization."""
        if self.num_steps % self.sync_interval != 0:
            return True
        num_playing = int(self.playing.sum())
        self.num_ended = len(self.playing) - num_playing
        return num_playing > 0

    def _reserve_trials(self) -> None:
        """Make room for the trials that may begin before the next synchronization."""
        needed = int(self.trial.amax()) + 1 + self.sync_interval
        num_columns = self.returns.shape[1]
        if needed > num_columns:
            # The room at least doubles, so the number of copies is logarithmic.
            self.returns = F.pad(self.returns, (0, max(self.sync_interval, num_columns)))

    def add(self, reward: Tensor, flags: dict[str, Tensor]) -> None:
        """Add a step.

        Args:
            reward: ``[E]``.
            flags: ``[E]`` bool each: ``done``, and those of ``success``, ``aborted`` and
                ``trial_start`` that the environment emits.
        """
        if self.num_steps % self.sync_interval == 0:
            self._reserve_trials()
        # The first trial begins at step 0, whether it is marked or not.
        if "trial_start" in flags and self.num_steps > 0:
            self.trial = self.trial + (flags["trial_start"] & self.playing)

        counted = reward.double() * self.playing
        self.returns.scatter_add_(1, self.trial.unsqueeze(-1), counted.unsqueeze(-1))
        self.lengths = self.lengths + self.playing

        for name in flags.keys() - {"trial_start"}:
            seen = flags[name] & self.playing
            if name in self.seen_flags:
                seen = seen | self.seen_flags[name]
            self.seen_flags[name] = seen
        # The step that ends an episode still counts, so this comes last.
        self.playing = self.playing & ~flags["done"]
        self.num_steps += 1

    def result(self, count: int, goal_counts: Tensor | None) -> EvaluationResult:
        """Return the result of the first ``count`` envs."""
        trial = self.trial[:count].cpu()
        flags = {name: flag[:count].cpu() for name, flag in self.seen_flags.items()}
        finished = flags["done"]
        if "aborted" in flags:
            finished = finished & ~flags["aborted"]

        returns = self.returns[:count, : int(trial.max()) + 1].cpu()
        # NaN for trials that an episode did not reach: a sum of 0 would look like a failure.
        is_absent = torch.arange(returns.shape[1]) > trial.unsqueeze(-1)
        return EvaluationResult(
            returns=returns.sum(-1),
            lengths=self.lengths[:count].cpu(),
            finished=finished,
            trial_returns=returns.masked_fill(is_absent, torch.nan),
            success=flags.get("success"),
            num_goals=goal_counts,
        )


def act(
    policy: Policy,
    timestep: TensorDictBase,
    action_key: NestedKey,
    memory_reset: MemoryReset = "never",
) -> TensorDictBase:
    """Return the timestep with the policy's action.

    Args:
        policy: As for `evaluate`; always called with ``[N]``.
        timestep: ``[N]`` or ``[]``.
        action_key: Key of the environment's action.
        memory_reset: As for `evaluate`.

    Raises:
        ArgumentError: The policy returns no TensorDict, or one without an action.
    """
    is_batched = timestep.batch_dims > 0
    seen = timestep if is_batched else timestep.unsqueeze(0)
    if memory_reset != "never":
        # A shallow copy, because the timestep itself must keep its ``is_init``.
        seen = seen.copy().set("is_init", _reset_flags(seen, memory_reset))

    acted = policy(seen)
    _check_action(acted, action_key)
    if not is_batched:
        acted = acted.squeeze(0)
    if memory_reset == "every_step":
        # The policy's own entries, its memory among them, must not reach the next step.
        return timestep.set(action_key, acted.get(action_key))
    if memory_reset == "every_trial":
        acted = acted.set("is_init", timestep.get("is_init"))
    return acted


def _check_action(acted: object, action_key: NestedKey) -> None:
    """Raise unless a policy has returned a TensorDict with an action."""
    found: object = f"a {type(acted).__name__}"
    has_action = False
    if isinstance(acted, TensorDictBase):
        has_action = acted.get(action_key, None) is not None
        found = sorted(map(str, acted.keys())) if not has_action else None
    condition = f"be a TensorDict with the action under {action_key!r}"
    remedy = "TensorDictModule(policy, in_keys=[...], out_keys=[...]) makes one of a module"
    require("policy", "the result", found, has_action, condition, remedy=remedy)


def _reset_flags(timestep: TensorDictBase, memory_reset: MemoryReset) -> Tensor:
    """Return the ``is_init`` that the policy sees."""
    starts = timestep.get("is_init")
    if memory_reset == "every_trial":
        return starts | timestep.get("trial_start")
    return torch.ones_like(starts)
