"""Hindsight instruction relabelling: what the agent did achieve becomes part of what it was asked for.

A replay transform over whole right-padded trajectories ``[B, L]``, packed so that row t holds what was seen
at t and the transition that leaves t. It reads ``goal`` ``[B, L, K, d]`` (row 0 is the whole instruction),
``achieved`` ``[B, L, M, d]``, ``achieved_mask`` ``[B, L, M]`` and ``mask`` ``[B, L, 1]``, and rewrites the
goals, rewards, ends and mask of the trajectories that get a new instruction; all others leave bit for bit as
they came. How an instruction is drawn is decided here; what it changes is in `yamame.replay.hindsight`.

Source: AMAGO, arXiv 2310.09971, section 4 and its algorithm for hindsight instruction relabelling.
"""

from typing import Literal, get_args

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.goals import GOAL_PAD, view
from yamame.goals.completion import completed, host, used
from yamame.replay.draws import distinct, weighted
from yamame.replay.frequencies import GoalFrequencies
from yamame.replay.hindsight import RelabelKeys, Trajectories, eligible, merge, replay

Strategy = Literal["some", "all", "all_or_nothing", "none"]


class Relabel(Transform):
    """Gives trajectories instructions that they have (partly) carried out (AMAGO, arXiv 2310.09971).

    Of an instruction of k goals, n were really completed. Synthetic goals are drawn from what was achieved at
    h other timesteps (without replacement, one goal from each), merged chronologically with the n completed
    ones into the first slots, and the trajectory is replayed: rewards, previous rewards, goals, ends. Replay
    is greedy: goals may complete earlier than where they were taken from, never later. A trajectory that now
    completes its whole instruction ends there (``terminated``), and what follows becomes zero padding; the
    batch is trimmed to its longest mask. With h = 0, which includes whoever completed everything already,
    nothing changes.

    The new rewards replace those of the environment. Put it before any transform that cuts windows. Draws
    come from ``generator``, or else from torch's global one. In a `TransformedEnv` it does nothing.

    Args:
        strategy: How h is drawn. ``some``: uniformly from 0..k-n. ``all``: k-n. ``all_or_nothing``: k-n with
            probability ``all_probability``, else 0. ``none``: 0. Never more than the timesteps that offer a
            goal.
        single_goal: Every instruction is first reduced to its first goal (the other slots become unused), so
            k = 1: the goal is either kept, and the trajectory ends where it was completed, or replaced by one
            synthetic goal, as the strategy has it. This is hindsight experience replay without instructions.
        hide_future_goals: The ``goal`` entries that leave show no goal after the active one.
        rarity: Draws rare goals more often, by these counts. None draws timesteps and goals uniformly. In a
            replay buffer the table counts what is appended; it is part of this transform's state.
        all_probability: In [0, 1], for ``all_or_nothing`` only.
        inplace: Entries of the batch given may be written into, which saves copies. For batches that nobody else
            holds, such as those that a `TrajectoryReplayBuffer` reads.
        keys: Names of the entries.
        generator: Source of all draws.

    Raises:
        ValueError: On an unknown strategy or a probability outside [0, 1]; in use, when the batch lacks an
            entry or does not hold whole trajectories.

    >>> from tensordict import TensorDict
    >>> flag = torch.zeros(1, 4, 1, dtype=torch.bool)
    >>> batch = TensorDict(
    ...     {
    ...         "goal": torch.full((1, 4, 1, 1), 9.0),
    ...         "achieved": torch.arange(4.0).reshape(1, 4, 1, 1),
    ...         "achieved_mask": torch.ones(1, 4, 1, dtype=torch.bool),
    ...         "mask": ~flag,
    ...         "next": {"reward": torch.zeros(1, 4, 1), "terminated": flag},
    ...     },
    ...     batch_size=[1, 4],
    ... )
    >>> relabelled = Relabel("all")(batch)
    >>> relabelled["next", "reward"].sum().item(), batch["next", "reward"].sum().item()
    (1.0, 0.0)
    """

    def __init__(
        self,
        strategy: Strategy = "some",
        *,
        single_goal: bool = False,
        hide_future_goals: bool = False,
        rarity: GoalFrequencies | None = None,
        all_probability: float = 0.8,
        inplace: bool = False,
        keys: RelabelKeys | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if strategy not in get_args(Strategy):
            raise ValueError(f"Relabel: strategy must be one of {get_args(Strategy)}, got {strategy!r}")
        if not 0.0 <= all_probability <= 1.0:
            raise ValueError(f"Relabel: all_probability must be in [0, 1], got {all_probability}")
        keys = RelabelKeys() if keys is None else keys
        written = [keys.goal, keys.mask, keys.reward, keys.terminated]
        super().__init__(in_keys=keys.needed(), out_keys=written)
        self.keys = keys
        self.strategy = strategy
        self.single_goal = single_goal
        self.hide_future_goals = hide_future_goals
        self.rarity = rarity
        self.all_probability = all_probability
        self.inplace = inplace
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the relabelled batch ``[B, L']`` (L' <= L); the one given is left as it is unless ``inplace``."""
        out = None
        if self.strategy != "none" or self.single_goal:
            given = self._read(tensordict)
            instruction, changed = self._relabelled(given)
            if changed.any():
                out = replay(tensordict, instruction, changed, self.keys, given, inplace=self.inplace)
        if out is None:
            out = tensordict if self.inplace else tensordict.copy()
        if self.hide_future_goals:
            goal, mask = _need(out, [self.keys.goal, self.keys.mask])
            real = mask.reshape(*goal.shape[:2], 1, 1)
            out.set(self.keys.goal, torch.where(real, view(goal, hide_future_goals=True), goal))
        return out

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Counts the goals of what enters a replay buffer."""
        if self.rarity is not None:
            needed = [self.keys.achieved, self.keys.achieved_mask, self.keys.mask]
            self.rarity.update(*_need(tensordict, needed))
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _read(self, tensordict: TensorDictBase) -> Trajectories:
        """What a batch holds, which must be whole trajectories."""
        goal, achieved, achieved_mask, mask, *_ = _need(tensordict, self.keys.needed())
        given = Trajectories.of(goal, achieved, achieved_mask, mask)
        is_init = tensordict.get(self.keys.is_init, None)
        if is_init is not None and (given.mask[:, 0] & ~host(is_init[:, 0]).reshape(-1)).any():
            raise ValueError(
                f"Relabel: {self.keys.is_init!r} must be True in the first row of every sequence, got False: "
                "relabel whole trajectories, before any transform that cuts windows"
            )
        return given

    def _relabelled(self, given: Trajectories) -> tuple[np.ndarray, np.ndarray]:
        """The new instructions ``[B, K, d]`` and which rows ``[B]`` have one."""
        instruction, achieved, valid, mask = given
        batch, num_steps = mask.shape
        changed = np.zeros(batch, np.bool_)
        if self.single_goal:
            changed = used(instruction).sum(-1) > 1
            instruction = instruction.copy()
            instruction[:, 1:] = GOAL_PAD
        times = completed(instruction, achieved, valid)
        missing = used(instruction).sum(-1) - (times < num_steps).sum(-1)
        draws = min(times.shape[1], num_steps)
        uniform = self._uniform(batch, 1 + 2 * draws)
        options = eligible(times, valid)
        count = np.minimum(self._counts(missing, uniform[:, 0]), options.sum(-1))
        drawn_times, drawn_goals = self._draw(options, achieved, valid, count, uniform[:, 1:])
        merged = merge(instruction, times, drawn_times, drawn_goals, num_steps)
        return merged, changed | (count > 0)

    def _uniform(self, *shape: int) -> np.ndarray:
        """Numbers in [0, 1) from the generator, in double precision, which tells the longest trajectories' steps."""
        device = "cpu" if self.generator is None else self.generator.device
        return host(torch.rand(shape, dtype=torch.float64, generator=self.generator, device=device))

    def _counts(self, missing: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """h for each trajectory ``[B]``, given k - n and a random number."""
        if self.strategy == "none":
            return np.zeros_like(missing)
        if self.strategy == "all":
            return missing
        if self.strategy == "some":
            return (uniform * (missing + 1)).astype(missing.dtype)
        return np.where(uniform < self.all_probability, missing, 0)

    def _draw(
        self,
        options: np.ndarray,
        achieved: np.ndarray,
        valid: np.ndarray,
        count: np.ndarray,
        uniform: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws ``count`` timesteps of each trajectory, and one goal achieved at each.

        Returns:
            The timesteps ``[B, H]`` in order of drawing, L beyond ``count``, and the goals ``[B, H, d]``.
        """
        num_steps, draws = options.shape[1], uniform.shape[1] // 2
        row = np.arange(len(options))[:, None]
        for_steps, for_slots = uniform[:, :draws], uniform[:, draws:]
        if self.rarity is None:
            steps = distinct(options, for_steps)
            weights = valid[row, steps]
        else:
            steps, weights = _rare(self.rarity, options, achieved, valid, for_steps)
        slot = weighted(weights, for_slots) if valid.shape[-1] > 1 else 0
        drawn = np.arange(draws) < count[:, None]
        return np.where(drawn, steps, num_steps), achieved[row, steps, slot]


def _rare(
    rarity: GoalFrequencies, options: np.ndarray, achieved: np.ndarray, valid: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct timesteps ``[B, H]``, rare ones more often, and probabilities ``[B, H, M]`` of what they offer."""
    weights = np.zeros(valid.shape, np.float32)
    goals = torch.from_numpy(achieved[options]).to(rarity.totals.device)
    weights[options] = host(rarity.weights(goals)) * valid[options]
    left, of_steps = torch.from_numpy(options.copy()), torch.from_numpy(weights.sum(-1))
    row = np.arange(len(options))
    steps = np.empty(uniform.shape, np.int64)
    for draw in range(uniform.shape[1]):
        steps[:, draw] = weighted(rarity.probabilities(of_steps, left).numpy(), uniform[:, draw])
        left.numpy()[row, steps[:, draw]] = False
    here = row[:, None], steps
    return steps, rarity.probabilities(torch.from_numpy(weights[here]), torch.from_numpy(valid[here])).numpy()


def _need(tensordict: TensorDictBase, keys: list[NestedKey]) -> list[Tensor]:
    """The entries of these names, all of which the batch must hold."""
    entries = [tensordict.get(key, None) for key in keys]
    for key, entry in zip(keys, entries, strict=True):
        if entry is None:
            raise ValueError(
                f"Relabel: the batch must hold {key!r}, got {list(tensordict.keys())}: "
                "an env without goals cannot be relabelled; set relabel=none"
            )
    return entries
