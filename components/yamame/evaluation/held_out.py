"""Evaluation on held-out tasks: one complete episode of every env, in one or more rounds.

The episodes that count are fixed before the first step, so short episodes are not over-represented
and every policy meets the same tasks. Nothing is trained and nothing is left behind: a copy of the
policy acts, the global random state is restored, and no step is stored.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.checks import PositiveInt, check_bounds, require
from yamame.evaluation.result import EvaluationResult, concatenate
from yamame.exploration import disable_exploration
from yamame.goals import num_goals
from yamame.system.signals import exit_if_received

Policy = Callable[[TensorDictBase], TensorDictBase]
Wiped = Literal["trials"] | bool
"""When memory is wiped: at every step, at the start of every trial, or never."""


@check_bounds
def evaluate(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: PositiveInt | None = None,
    greedy: bool = False,
    max_steps: PositiveInt | None = None,
    memory_wiped: Wiped = False,
    seed: int = 0,
    task_seeds: Sequence[int] | None = None,
) -> EvaluationResult:
    """Evaluate a policy on complete episodes.

    Args:
        policy: Writes the environment's action into a tensordict ``[N]``: any TensorDict module, or
            a function. A module is evaluated as a copy in evaluation mode, with every
            `yamame.exploration.Exploration` in it off. TorchRL's own exploration modules keep
            sampling unless ``greedy``.
        env: Environment with at most one batch dimension; without one, the policy still sees
            ``[1]``. It is seeded, so every call plays the same tasks, and left in mid-episode. Do
            not share it with training.
        num_episodes: Number of episodes, in rounds of one per env; only the first envs count in the
            last round. None for one round.
        greedy: Act by the mode of the policy instead of sampling.
        max_steps: Steps after which an episode is cut and reported as not finished; None for no
            limit.
        memory_wiped: Control without memory: the policy sees ``is_init`` set at every step, so it
            acts on the current timestep (with its previous action and reward) alone. *trials*: it
            is set at the start of every trial, so nothing is carried from one trial to the next.
        seed: Seed of the environment and of the policy's samples in the first round. The seeds of
            later rounds are derived from it.
        task_seeds: Tasks to play, one episode each, in an environment whose reset takes
            ``task_seed``; overrides ``num_episodes``.

    Raises:
        ArgumentError: The environment has several batch dimensions, a number is not positive, or
            the environment lacks ``is_init`` or ``trial_start``, which ``memory_wiped`` needs.
    """
    shape = tuple(env.batch_size)
    require("evaluate", "env", shape, env.batch_dims <= 1, "have at most one batch dimension")
    num_envs = env.batch_size.numel()
    if task_seeds is not None:
        num_episodes = len(task_seeds)
        require("evaluate", "task_seeds", task_seeds, num_episodes > 0, "name at least one task")
    elif num_episodes is None:
        num_episodes = num_envs

    results = []
    with acting(seed, greedy=greedy):
        for index, first in enumerate(range(0, num_episodes, num_envs)):
            env.set_seed(_seed_of_round(seed, index))
            count = min(num_envs, num_episodes - first)
            tasks = None if task_seeds is None else task_seeds[first : first + count]
            copied = fresh_copy(policy)
            results.append(_play_round(copied, env, count, max_steps, memory_wiped, tasks))
    return concatenate(results)


def _seed_of_round(seed: int, index: int) -> int:
    if index == 0:
        return seed
    # The shift keeps the seed within 31 bits, because some environments reject larger ones.
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0]) >> 1


def fresh_copy(policy: Policy) -> Policy:
    """Return a copy of a policy that is ready for its first step.

    The copy of a module is in evaluation mode, has an empty memory and does not explore.
    """
    copied = copy.deepcopy(policy)
    if not isinstance(copied, nn.Module):
        return copied

    copied.eval()
    disable_exploration(copied)
    for module in copied.modules():
        for name in ("reset_memory", "prepare_to_act"):
            method = getattr(module, name, None)
            if callable(method):
                method()
    return copied


@contextmanager
def acting(seed: int, *, greedy: bool) -> Iterator[None]:
    """Let policies act without gradients, by their mode or by samples, within the block.

    PyTorch's generators are seeded, and restored afterwards. CUDA's generators are not touched
    before CUDA is initialized.
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
    memory_wiped: Wiped,
    tasks: Sequence[int] | None,
) -> EvaluationResult:
    """Play one episode per env and return the result of the first ``count`` envs."""
    num_envs = env.batch_size.numel()
    timestep = env.reset(None if tasks is None else _reset_options(tasks, env))
    _check_keys(timestep, memory_wiped)
    # Both are read before the first step: envs whose episode has ended go on to other tasks.
    goal = timestep.get("goal", None)
    hashes = task_hashes(env)

    tally = _Tally(num_envs, timestep.get("done").device)
    num_steps = 0
    while (max_steps is None or num_steps < max_steps) and tally.goes_on(num_steps):
        acted = act(policy, timestep, env.action_key, memory_wiped)
        step, timestep = env.step_and_maybe_reset(acted)
        reward = step["next"].get(env.reward_key).reshape(num_envs)
        tally.add(reward, _read_flags(step, num_envs))
        num_steps += 1

    goal_counts = None
    if goal is not None:
        goal_counts = num_goals(goal.reshape(num_envs, *goal.shape[-2:]))[:count].cpu()
    return dataclasses.replace(
        tally.result(count, goal_counts),
        tasks=None if hashes is None else hashes[:count],
        plays_all_tasks=_read_attribute(env, "plays_all_tasks") is True,
    )


def _check_keys(timestep: TensorDictBase, memory_wiped: Wiped) -> None:
    needed: tuple[str, ...] = ()
    if memory_wiped == "trials":
        needed = ("is_init", "trial_start")
    elif memory_wiped:
        needed = ("is_init",)

    keys = sorted(map(str, timestep.keys()))
    for key in needed:
        condition = f"emit {key} for memory_wiped={memory_wiped}"
        require("evaluate", "env", keys, key in keys, condition)


def _read_flags(step: TensorDictBase, num_envs: int) -> dict[str, Tensor]:
    """Read the flags of a step that the environment emits, each ``[E]`` bool."""
    following = step.get("next")
    flags = {name: following.get(name, None) for name in ("done", "success", "aborted")}
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
    method = _read_attribute(env, "task_hashes")
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


def _read_attribute(env: EnvBase, name: str) -> Any:
    """Return an attribute of an environment, or None if it has none of this name."""
    try:
        return getattr(env, name, None)
    except RecursionError:
        # TorchRL's batched environments raise this for names that their members lack.
        return None


def _reset_options(tasks: Sequence[int], env: EnvBase) -> TensorDict:
    """Return the argument of ``env.reset`` that chooses the tasks.

    Envs beyond the number of tasks play the last one. They do not count.
    """
    num_envs = env.batch_size.numel()
    padding = [tasks[-1]] * (num_envs - len(tasks))
    seeds = torch.tensor([*tasks, *padding], device=env.device)
    seeds = seeds.view(*env.batch_size, 1)
    return TensorDict({"task_seed": seeds}, env.batch_size, device=env.device)


class _Tally:
    """Statistics of the first episode of each of E envs.

    Its size grows with the number of trials, not with the number of steps.

    Args:
        num_envs: E.
        device: Device of rewards and flags.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.playing = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.trial = torch.zeros_like(self.lengths)
        # Each look at the flags waits for an accelerator. There, a few steps too many are cheaper.
        self.look_every = 1 if device.type == "cpu" else 16
        columns = 1 + self.look_every
        self.returns = torch.zeros(num_envs, columns, dtype=torch.float64, device=device)
        self.happened: dict[str, Tensor] = {}

    def goes_on(self, num_steps: int) -> bool:
        """Return whether an episode is still running after so many steps.

        Also makes room for the trials that may begin until the next look.
        """
        if num_steps % self.look_every != 0:
            return True
        # One transfer from the device instead of two.
        playing, latest = torch.stack((self.playing.any().long(), self.trial.amax())).tolist()
        if latest + 1 + self.look_every > self.returns.shape[1]:
            # The room at least doubles, so the number of copies is logarithmic.
            self.returns = F.pad(self.returns, (0, max(self.look_every, self.returns.shape[1])))
        return bool(playing)

    def add(self, reward: Tensor, flags: dict[str, Tensor]) -> None:
        """Add a step.

        Args:
            reward: ``[E]``.
            flags: ``[E]`` bool each: ``done``, and those of ``success``, ``aborted`` and
                ``trial_start`` that the environment emits.
        """
        # The first trial begins at step 0, whether it is marked or not.
        is_first_step = not self.happened
        if "trial_start" in flags and not is_first_step:
            self.trial = self.trial + (flags["trial_start"] & self.playing)

        counted = reward.double() * self.playing
        self.returns.scatter_add_(1, self.trial.unsqueeze(-1), counted.unsqueeze(-1))
        self.lengths = self.lengths + self.playing

        for name in flags.keys() - {"trial_start"}:
            happens = flags[name] & self.playing
            before = self.happened.get(name)
            self.happened[name] = happens if before is None else before | happens
        # The step that ends an episode still counts, so this comes last.
        self.playing = self.playing & ~flags["done"]

    def result(self, count: int, goal_counts: Tensor | None) -> EvaluationResult:
        """Return the result of the first ``count`` envs."""
        trial = self.trial[:count].cpu()
        happened = {name: flag[:count].cpu() for name, flag in self.happened.items()}
        finished = happened["done"]
        if "aborted" in happened:
            finished = finished & ~happened["aborted"]

        returns = self.returns[:count, : int(trial.max()) + 1].cpu()
        # NaN for trials that an episode did not reach: a sum of 0 would look like a failure.
        is_absent = torch.arange(returns.shape[1]) > trial.unsqueeze(-1)
        return EvaluationResult(
            returns=returns.sum(-1),
            lengths=self.lengths[:count].cpu(),
            finished=finished,
            trial_returns=returns.masked_fill(is_absent, torch.nan),
            success=happened.get("success"),
            num_goals=goal_counts,
        )


def act(
    policy: Policy, timestep: TensorDictBase, action_key: NestedKey, memory_wiped: Wiped = False
) -> TensorDictBase:
    """Return the timestep with the policy's action.

    Args:
        policy: As for `evaluate`; always called with ``[N]``.
        timestep: ``[N]`` or ``[]``.
        action_key: Key of the environment's action.
        memory_wiped: As for `evaluate`.

    Raises:
        SystemExit: The process has received a signal to end.
    """
    exit_if_received()
    is_batched = timestep.batch_dims > 0
    seen = timestep if is_batched else timestep.unsqueeze(0)
    if memory_wiped:
        starts = seen.get("is_init")
        if memory_wiped == "trials":
            starts = starts | seen.get("trial_start")
        else:
            starts = torch.ones_like(starts)
        # A shallow copy, because the timestep itself must keep its ``is_init``.
        seen = seen.copy().set("is_init", starts)

    acted = policy(seen)
    if not is_batched:
        acted = acted.squeeze(0)
    if memory_wiped is True:
        # The policy's own entries, its memory among them, do not travel on to the next step.
        return timestep.set(action_key, acted.get(action_key))
    return acted
