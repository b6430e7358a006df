"""Evaluation on a roster: one complete episode of every row of an environment, in one round or several.

Which episodes count is fixed before anything is played, so short episodes are not over-represented and every policy
meets the same tasks: each row plays until its own first episode has ended, whatever it does after that is ignored, and
every round is seeded anew. Nothing is trained and
nothing is left behind: the policy is copied (fresh memory, frozen statistics, exploration off), the global
random state is put back, no step is stored.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.evaluation.result import EvaluationResult, concatenate
from yamame.exploration import disable_exploration
from yamame.goals import num_goals
from yamame.preparable import Preparable

Policy = Callable[[TensorDictBase], TensorDictBase]


def evaluate(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: int | None = None,
    greedy: bool = False,
    max_steps: int | None = None,
    memory_wiped: bool = False,
    seed: int = 0,
) -> EvaluationResult:
    """Plays complete episodes and reports each.

    Args:
        policy: Writes the environment's action into a tensordict ``[N]``. A module is evaluated as a copy in
            evaluation mode, with every `yamame.exploration.Exploration` in it off (TorchRL's own exploration
            modules are not known and sample on unless ``greedy``).
        env: Environment with at most one batch dimension; without one, the policy still sees ``[1]``. It is
            seeded, so the same roster of tasks is played at every call, and it is left in mid-episode: use an
            environment of its own.
        num_episodes: Episodes to play, in rounds of one per row, of the last of which the first rows count.
            None for one round.
        greedy: Act by the mode of the policy instead of sampling.
        max_steps: Steps after which an episode is cut and reported as not finished; None for no limit.
        memory_wiped: The control that shows what memory is worth: the policy sees ``is_init`` set at every
            step, so that only the current timestep (with its previous action and reward) informs it.
        seed: Of the environment and of the policy's samples, in the first round; those of others follow from it.

    Raises:
        ValueError: If the environment has several batch dimensions, a number is not positive, or memory is to
            be wiped and the environment emits no ``is_init``.
    """
    if env.batch_dims > 1:
        raise ValueError(f"evaluate: env must have at most one batch dimension, got {tuple(env.batch_size)}")
    for name, value in (("num_episodes", num_episodes), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise ValueError(f"evaluate: {name} must be positive, got {value}")
    rows = env.batch_size.numel()
    wanted = rows if num_episodes is None else num_episodes
    mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
    player = copy.deepcopy(policy)
    with seeded(seed), torch.no_grad(), set_exploration_type(mode):
        rounds = []
        for number, start in enumerate(range(0, wanted, rows)):
            env.set_seed(_round_seed(seed, number))
            make_fresh(player)
            tally = _play_round(player, env, max_steps, memory_wiped)
            rounds.append(tally.result(min(rows, wanted - start)))
    return concatenate(rounds)


def make_fresh(player: Policy) -> None:
    """Puts a copied policy at its beginning: evaluation mode, no exploration, an empty memory, prepared."""
    if not isinstance(player, nn.Module):
        return
    player.eval()
    disable_exploration(player)
    for module in player.modules():
        reset_memory = getattr(module, "reset_memory", None)
        if callable(reset_memory):
            reset_memory()
        if isinstance(module, Preparable):
            module.prepare()


def _round_seed(seed: int, number: int) -> int:
    return seed if number == 0 else int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds PyTorch's generators and puts them back; CUDA is left alone while nobody uses it."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def _play_round(player: Policy, env: EnvBase, max_steps: int | None, memory_wiped: bool) -> "_Tally":
    current = env.reset()
    if memory_wiped and current.get("is_init", None) is None:
        raise ValueError(
            f"evaluate: env must emit is_init for memory_wiped, got {sorted(map(str, current.keys()))}"
        )
    tally = _Tally(current, env.batch_size.numel(), env.reward_key)
    while tally.running() and (max_steps is None or tally.num_steps < max_steps):
        current = act(player, current, env.action_key, memory_wiped)
        stepped, current = env.step_and_maybe_reset(current)
        tally.add(stepped)
    return tally


def act(
    player: Policy, current: TensorDictBase, action_key: NestedKey, memory_wiped: bool = False
) -> TensorDictBase:
    """The timestep with the policy's action; the policy always sees ``[N]``."""
    seen = current if current.batch_dims else current.unsqueeze(0)
    if memory_wiped:
        seen = seen.copy().set("is_init", torch.ones_like(seen.get("is_init")))
    acted = player(seen)
    if not current.batch_dims:
        acted = acted.squeeze(0)
    # What the policy keeps in the tensordict travels on with it, unless its memory is to be wiped.
    return current.set(action_key, acted.get(action_key)) if memory_wiped else acted


class _Tally:
    """Running sums of the first episode of every row."""

    def __init__(self, first: TensorDictBase, rows: int, reward_key: NestedKey) -> None:
        device = first.get("done").device
        self.rows = rows
        self.reward_key = reward_key
        self.num_steps = 0
        self.alive = torch.ones(rows, dtype=torch.bool, device=device)
        self.aborted = torch.zeros_like(self.alive)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.trial = torch.zeros(rows, dtype=torch.int64, device=device)
        self.trial_returns = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        self.success: Tensor | None = None
        goal = first.get("goal", None)
        self.num_goals = None if goal is None else num_goals(goal.reshape(rows, *goal.shape[-2:]))

    def running(self) -> bool:
        return bool(self.alive.any())

    def add(self, stepped: TensorDictBase) -> None:
        """Counts one step of the rows whose episode is still on."""
        following = stepped.get("next")
        starts = stepped.get("trial_start", None)
        if starts is not None and self.num_steps > 0:
            self._next_trial(starts.reshape(self.rows))
        reward = following.get(self.reward_key).reshape(self.rows, 1).double() * self.alive.unsqueeze(-1)
        self.trial_returns.scatter_add_(1, self.trial.unsqueeze(-1), reward)
        self.lengths += self.alive
        success = following.get("success", None)
        if success is not None:
            before = torch.zeros_like(self.alive) if self.success is None else self.success
            self.success = before | (success.reshape(self.rows).bool() & self.alive)
        aborted = following.get("aborted", None)
        if aborted is not None:
            self.aborted = self.aborted | (aborted.reshape(self.rows) & self.alive)
        self.alive = self.alive & ~following.get("done").reshape(self.rows)
        self.num_steps += 1

    def _next_trial(self, starts: Tensor) -> None:
        self.trial = self.trial + (starts & self.alive)
        missing = int(self.trial.max()) + 1 - self.trial_returns.shape[1]
        if missing > 0:
            self.trial_returns = nn.functional.pad(self.trial_returns, (0, missing))

    def result(self, count: int) -> EvaluationResult:
        """Result of the first ``count`` rows."""
        index = torch.arange(self.trial_returns.shape[1], device=self.trial.device)
        absent = index > self.trial.unsqueeze(-1)
        trial_returns = self.trial_returns.masked_fill(absent, torch.nan)[:count]
        trial_returns = trial_returns[:, : int(self.trial[:count].max()) + 1]
        return EvaluationResult(
            returns=self.trial_returns.sum(-1)[:count].cpu(),
            lengths=self.lengths[:count].cpu(),
            finished=~(self.alive | self.aborted)[:count].cpu(),
            trial_returns=trial_returns.cpu(),
            success=None if self.success is None else self.success[:count].cpu(),
            num_goals=None if self.num_goals is None else self.num_goals[:count].cpu(),
        )
