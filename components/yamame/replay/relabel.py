"""Hindsight instruction relabelling: what the agent did achieve becomes part of what it was asked for.

A replay transform over whole right-padded trajectories ``[B, L]``, packed so that row t holds what was seen
at t and the transition that leaves t. It reads ``goal`` ``[B, L, K, d]`` (row 0 is the whole instruction),
``achieved`` ``[B, L, M, d]``, ``achieved_mask`` ``[B, L, M]`` and ``mask`` ``[B, L, 1]``, and rewrites the
goals, rewards, ends and mask of the trajectories that get a new instruction; all others leave bit for bit as
they came. How an instruction is drawn is decided here; what it changes is in `yamame.replay.hindsight`.

Source: AMAGO, arXiv 2310.09971, section 4 and its algorithm for hindsight instruction relabelling.
"""

from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.goals import GOAL_PAD, completion_times, num_goals, view
from yamame.replay.frequencies import GoalFrequencies
from yamame.replay.hindsight import RelabelKeys, eligible, merge, replay

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
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the relabelled batch ``[B, L']`` (L' <= L); the one given is left as it is."""
        out = None
        if self.strategy != "none" or self.single_goal:
            self._check(tensordict)
            instruction, changed = self._relabelled(tensordict)
            if bool(changed.any()):
                out = replay(tensordict, instruction, changed, self.keys)
        out = tensordict.copy() if out is None else out
        if self.hide_future_goals:
            _need(out, [self.keys.goal, self.keys.mask])
            goal = out.get(self.keys.goal)
            real = out.get(self.keys.mask).reshape(*goal.shape[:2], 1, 1)
            out.set(self.keys.goal, torch.where(real, view(goal, hide_future_goals=True), goal))
        return out

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Counts the goals of what enters a replay buffer."""
        if self.rarity is not None:
            _need(tensordict, [self.keys.achieved, self.keys.achieved_mask, self.keys.mask])
            self.rarity.update(
                tensordict.get(self.keys.achieved),
                tensordict.get(self.keys.achieved_mask),
                tensordict.get(self.keys.mask),
            )
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _check(self, tensordict: TensorDictBase) -> None:
        _need(tensordict, self.keys.needed())
        is_init = tensordict.get(self.keys.is_init, None)
        if is_init is None:
            return
        mask = tensordict.get(self.keys.mask).reshape(is_init.shape)
        if bool((mask[:, 0] & ~is_init[:, 0]).any()):
            raise ValueError(
                f"Relabel: {self.keys.is_init!r} must be True in the first row of every sequence, got False: "
                "relabel whole trajectories, before any transform that cuts windows"
            )

    def _relabelled(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The new instructions ``[B, K, d]`` and which rows ``[B]`` have one."""
        achieved = tensordict.get(self.keys.achieved)
        achieved_mask = tensordict.get(self.keys.achieved_mask)
        mask = tensordict.get(self.keys.mask).reshape(achieved.shape[:2])
        instruction = tensordict.get(self.keys.goal)[:, 0]
        changed = torch.zeros_like(mask[:, 0])
        if self.single_goal:
            changed = num_goals(instruction) > 1
            instruction = torch.cat([instruction[:, :1], torch.full_like(instruction[:, 1:], GOAL_PAD)], 1)
        times = completion_times(instruction, achieved, achieved_mask, mask)
        missing = num_goals(instruction) - (times < mask.shape[1]).sum(-1)
        options = eligible(times, achieved_mask, mask)
        count = torch.minimum(self._draw_counts(missing), options.sum(-1))
        drawn_times, drawn_goals = self._draw(options, achieved, achieved_mask, count, times.shape[1])
        return merge(instruction, times, drawn_times, drawn_goals, mask.shape[1]), changed | (count > 0)

    def _draw_counts(self, missing: Tensor) -> Tensor:
        """h for each trajectory ``[B]``, given k - n."""
        if self.strategy == "none":
            return torch.zeros_like(missing)
        if self.strategy == "all":
            return missing
        share = torch.rand(missing.shape, generator=self.generator, device=missing.device)
        if self.strategy == "some":
            return torch.minimum((share * (missing + 1)).to(missing.dtype), missing)
        return torch.where(share < self.all_probability, missing, 0)

    def _draw(
        self, options: Tensor, achieved: Tensor, achieved_mask: Tensor, count: Tensor, slots: int
    ) -> tuple[Tensor, Tensor]:
        """Draws ``count`` timesteps of each trajectory, and one goal achieved at each.

        Returns:
            The timesteps ``[B, H]`` in order of drawing, L beyond ``count``, and the goals ``[B, H, d]``.
        """
        num_steps = options.shape[1]
        draws = min(slots, num_steps)
        weights = None if self.rarity is None else self.rarity.weights(achieved) * achieved_mask
        steps = self._choose(options, None if weights is None else weights.sum(-1), draws)
        row = torch.arange(len(steps), device=steps.device).unsqueeze(-1)
        here = None if weights is None else weights[row, steps]
        slot = self._choose(achieved_mask[row, steps], here, 1).squeeze(-1)
        drawn = torch.arange(draws, device=steps.device) < count.unsqueeze(-1)
        return torch.where(drawn, steps, num_steps), achieved[row, steps, slot]

    def _choose(self, options: Tensor, weights: Tensor | None, draws: int) -> Tensor:
        """Indices ``[*, draws]`` of distinct options ``[*, N]``; arbitrary once there are no options left."""
        if weights is None or self.rarity is None:
            score = torch.rand(options.shape, generator=self.generator, device=options.device)
            return score.masked_fill(~options, -1.0).topk(draws).indices
        chosen: list[Tensor] = []
        for _ in range(draws):
            probabilities = self.rarity.probabilities(weights, options)
            race = probabilities / torch.empty_like(probabilities).exponential_(generator=self.generator)
            chosen.append(race.argmax(-1, keepdim=True))
            options = options.scatter(-1, chosen[-1], False)
        return torch.cat(chosen, -1)


def _need(tensordict: TensorDictBase, keys: list[NestedKey]) -> None:
    for key in keys:
        if tensordict.get(key, None) is None:
            raise ValueError(
                f"Relabel: the batch must hold {key!r}, got {list(tensordict.keys())}: "
                "an env without goals cannot be relabelled; set relabel=none"
            )
