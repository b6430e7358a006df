"""Evaluation on held-out tasks: one complete episode of every env of an environment, in one round
or several.

Which episodes count is fixed before anything is played, so short episodes are not over-represented
and every policy meets the same tasks: each env plays until its own first episode has ended,
whatever it does after that is ignored, and every round is seeded anew. Nothing is trained and
nothing is left behind: a copy of the policy plays (empty memory, frozen statistics, exploration
off), so the memory of a policy in mid-episode stays as it is; the global random state is put back;
no step is stored.
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

from yamame.checks import require, require_at_least
from yamame.evaluation.result import EvaluationResult, concatenate
from yamame.exploration import disable_exploration
from yamame.goals import num_goals
from yamame.system.signals import exit_if_received

Policy = Callable[[TensorDictBase], TensorDictBase]
Wiped = Literal["trials"] | bool
"""When memory is wiped: at every step, as every trial begins, or never."""


def evaluate(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: int | None = None,
    greedy: bool = False,
    max_steps: int | None = None,
    memory_wiped: Wiped = False,
    seed: int = 0,
    task_seeds: Sequence[int] | None = None,
) -> EvaluationResult:
    """Plays complete episodes and reports each.

    Args:
        policy: Writes the environment's action into a tensordict ``[N]``: any TensorDict module, or
            a function. A module is evaluated as a copy in evaluation mode, with every
            `yamame.exploration.Exploration` in it off (TorchRL's own exploration modules are not
            known and sample on unless ``greedy``).
        env: Environment with at most one batch dimension; without one, the policy still sees
            ``[1]``. It is seeded, so the same tasks are played at every call, and it is left in
            mid-episode: use an environment of its own.
        num_episodes: Episodes to play, in rounds of one per env; of the last round the first envs
            count. None for one round.
        greedy: Act by the mode of the policy instead of sampling.
        max_steps: Steps after which an episode is cut and reported as not finished; None for no
            limit.
        memory_wiped: The control that shows what memory is worth: the policy sees ``is_init`` set
            at every step, so that only the current timestep (with its previous action and reward)
            informs it. *trials*: it is set where a trial begins, so that nothing is carried from
            one attempt to the next.
        seed: Of the environment and of the policy's samples, in the first round; those of others
            follow from it.
        task_seeds: Names of the tasks, one episode each, of an environment whose reset takes
            ``task_seed``; then ``num_episodes`` is their number.

    Raises:
        ValueError: If the environment has several batch dimensions, a number is not positive, or
            memory is to be wiped and the environment emits no ``is_init``, or of trials no
            ``trial_start``.
    """
    require(
        "evaluate",
        "env",
        tuple(env.batch_size),
        env.batch_dims <= 1,
        "have at most one batch dimension",
    )
    num_envs = env.batch_size.numel()
    wanted = num_envs if num_episodes is None else num_episodes
    if task_seeds is not None:
        wanted = len(task_seeds)
    require_at_least(
        "evaluate", 1, num_episodes=wanted, max_steps=1 if max_steps is None else max_steps
    )
    with acting(seed, greedy=greedy):
        rounds = []
        for number, start in enumerate(range(0, wanted, num_envs)):
            following = int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) >> 1
            env.set_seed(following if number else seed)
            count = min(num_envs, wanted - start)
            tasks = None if task_seeds is None else task_seeds[start : start + count]
            rounds.append(
                _play_round(fresh_copy(policy), env, count, max_steps, memory_wiped, tasks)
            )
    return concatenate(rounds)


def fresh_copy(policy: Policy) -> Policy:
    """A copy of a policy at its beginning: evaluation mode, no exploration, an empty memory,
    prepared to act.
    """
    copied = copy.deepcopy(policy)
    if isinstance(copied, nn.Module):
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
    """Policies act without gradients, by their mode or by samples.

    PyTorch's generators are seeded and put back afterwards; CUDA is left alone while nobody uses
    it.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
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
    """The first episode of each of the first ``count`` envs, of these tasks if they are given."""
    timestep = env.reset() if tasks is None else env.reset(_named(tasks, env))
    if memory_wiped:
        keys = sorted(map(str, timestep.keys()))
        needed = ("is_init", "trial_start") if memory_wiped == "trials" else ("is_init",)
        for key in needed:
            require(
                "evaluate", "env", keys, key in keys, f"emit {key} for memory_wiped={memory_wiped}"
            )
    num_envs, goal, hashes = env.batch_size.numel(), timestep.get("goal", None), task_hashes(env)
    tally, num_steps = _Tally(num_envs, timestep.get("done").device), 0
    while (max_steps is None or num_steps < max_steps) and tally.goes_on(num_steps):
        timestep = act(policy, timestep, env.action_key, memory_wiped)
        step, timestep = env.step_and_maybe_reset(timestep)
        following = step.get("next")
        flags = {name: following.get(name, None) for name in ("done", "success", "aborted")}
        flags["trial_start"] = step.get("trial_start", None)
        tally.add(
            following.get(env.reward_key).reshape(num_envs),
            {
                name: flag.reshape(num_envs).bool()
                for name, flag in flags.items()
                if flag is not None
            },
        )
        num_steps += 1
    goals = (
        None if goal is None else num_goals(goal.reshape(num_envs, *goal.shape[-2:]))[:count].cpu()
    )
    return dataclasses.replace(
        tally.result(count, goals),
        tasks=None if hashes is None else hashes[:count],
        plays_all_tasks=_read(env, "plays_all_tasks") is True,
    )


def task_hashes(env: EnvBase) -> Tensor | None:
    """Hashes ``[N]`` int64 of the tasks that the envs of a reset environment play, on the CPU.

    Equal tasks have equal hashes. The method ``task_hashes()`` of the environment returns them; a
    batch that TorchRL makes of single environments returns a list of theirs. None where there is no
    such method, or it returns None.

    Raises:
        ValueError: There is not one hash per env.
    """
    method = _read(env, "task_hashes")
    found = method() if callable(method) else None
    parts = found if isinstance(found, list) else [found]
    if any(part is None for part in parts):
        return None
    hashes = torch.cat(
        [torch.as_tensor(part, dtype=torch.int64).reshape(-1).cpu() for part in parts]
    )
    num_envs = env.batch_size.numel()
    require(
        "evaluate",
        "env.task_hashes()",
        len(hashes),
        len(hashes) == num_envs,
        f"hold one hash for each of {num_envs} envs",
    )
    return hashes


def _read(env: EnvBase, name: str) -> Any:
    """An attribute of an environment; None where it has none."""
    try:
        return getattr(env, name, None)
    except RecursionError:  # so TorchRL's batched environments look for what none of theirs has
        return None


def _named(tasks: Sequence[int], env: EnvBase) -> TensorDict:
    """What a reset is given for its first envs to play these tasks; the others play the last of
    them.
    """
    num_envs = env.batch_size.numel()
    seeds = torch.tensor([*tasks, *[tasks[-1]] * (num_envs - len(tasks))], device=env.device)
    return TensorDict(
        {"task_seed": seeds.view(*env.batch_size, 1)}, env.batch_size, device=env.device
    )


class _Tally:
    """What the first episodes of E envs have brought so far; it grows with their trials, not with
    their steps.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.playing = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.trial = torch.zeros_like(self.lengths)
        # A look waits for a device: there, some steps after the last that count are cheaper.
        self.look_every = 1 if device.type == "cpu" else 16
        self.returns = torch.zeros(
            num_envs, 1 + self.look_every, dtype=torch.float64, device=device
        )
        self.happened: dict[str, Tensor] = {}

    def goes_on(self, num_steps: int) -> bool:
        """Whether anyone plays on after so many steps; makes room for trials that begin until the
        next look.
        """
        if num_steps % self.look_every:
            return True
        playing, latest = torch.stack((self.playing.any().long(), self.trial.amax())).tolist()
        if latest + 1 + self.look_every > self.returns.shape[1]:
            self.returns = F.pad(self.returns, (0, max(self.look_every, self.returns.shape[1])))
        return bool(playing)

    def add(self, reward: Tensor, flags: dict[str, Tensor]) -> None:
        """Adds a step: ``reward`` ``[E]``, ``flags`` ``[E]`` by name."""
        # The first trial begins at step 0, whether it is marked or not.
        if "trial_start" in flags and self.happened:
            self.trial = self.trial + (flags["trial_start"] & self.playing)
        reward = (reward.double() * self.playing).unsqueeze(-1)
        self.returns.scatter_add_(1, self.trial.unsqueeze(-1), reward)
        self.lengths = self.lengths + self.playing
        for name in flags.keys() - {"trial_start"}:
            happens = flags[name] & self.playing
            self.happened[name] = self.happened.get(name, torch.zeros_like(happens)) | happens
        self.playing = self.playing & ~flags["done"]

    def result(self, count: int, goals: Tensor | None) -> EvaluationResult:
        """That of the first ``count`` envs."""
        trial = self.trial[:count].cpu()
        happened = {key: flag[:count].cpu() for key, flag in self.happened.items()}
        returns = self.returns[:count, : int(trial.max()) + 1].cpu()
        absent = torch.arange(returns.shape[1]) > trial.unsqueeze(-1)
        aborted = happened.get("aborted", torch.zeros_like(happened["done"]))
        return EvaluationResult(
            returns=returns.sum(-1),
            lengths=self.lengths[:count].cpu(),
            finished=happened["done"] & ~aborted,
            trial_returns=returns.masked_fill(absent, torch.nan),
            success=happened.get("success"),
            num_goals=goals,
        )


def act(
    policy: Policy, timestep: TensorDictBase, action_key: NestedKey, memory_wiped: Wiped = False
) -> TensorDictBase:
    """The timestep with the policy's action; the policy always sees ``[N]``. A process that is
    asked to end does so.
    """
    exit_if_received()
    seen = timestep if timestep.batch_dims else timestep.unsqueeze(0)
    if memory_wiped:
        starts = seen.get("is_init")
        starts = (
            starts | seen.get("trial_start")
            if memory_wiped == "trials"
            else torch.ones_like(starts)
        )
        seen = seen.copy().set("is_init", starts)
    acted = policy(seen)
    if not timestep.batch_dims:
        acted = acted.squeeze(0)
    # What the policy keeps in the tensordict travels on with it, unless its memory is wiped at
    # every step.
    return timestep.set(action_key, acted.get(action_key)) if memory_wiped is True else acted
