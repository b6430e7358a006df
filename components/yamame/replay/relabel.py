"""Hindsight instruction relabelling: what the agent did achieve becomes part of what it was asked
for.

A replay transform over whole trajectories in the format of `yamame.replay.hindsight`, which applies
the instructions that are drawn here. It reads ``goal`` ``[B, L, K, d]`` (at timestep 0 the whole
instruction), ``achieved`` ``[B, L, M, d]``, ``achieved_mask`` ``[B, L, M]`` and ``mask``
``[B, L, 1]``. Trajectories without a new instruction leave bit for bit as they came.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from yamame.checks import require, require_choice
from yamame.goals import GOAL_PAD, completion_times, num_goals, view
from yamame.replay.frequencies import GoalFrequencies
from yamame.replay.gather import BatchTransform
from yamame.replay.hindsight import RelabelKeys, eligible, merge, rewrite

REMEDY = " (other names are told by keys={'goal': ..., 'achieved': ...}; what has no goals cannot be relabelled)"
Strategy = Literal["some", "all", "all_or_nothing", "none"]
HeldOut = Callable[[Tensor, TensorDictBase], Tensor]
"""Tells which instructions ``[B, K, d]`` of trajectories ``[B, L]`` are held out: ``[B]`` bool."""
_REDRAWS = (
    8  # with a quarter of all instructions held out, one trajectory in 65,000 runs out of them
)


class Relabel(BatchTransform):
    """Gives trajectories instructions that they have (partly) carried out (AMAGO, arXiv 2310.09971,
    section 4).

    Of an instruction of k goals, n were really completed. Synthetic goals are drawn from what was
    achieved at h other timesteps (without replacement, one goal from each), merged chronologically
    with the n completed ones into the first slots, and the trajectory is replayed: rewards,
    previous rewards, goals, ends. Replay is greedy: goals may complete earlier than where they were
    taken from, never later. A trajectory that now completes its whole instruction ends there
    (``terminated``), and what follows becomes zero padding; the batch is trimmed to its longest
    mask. With h = 0, which includes whoever completed everything already, nothing changes.

    With ``held_out``, no trajectory is given an instruction that is held out for evaluation: it is
    drawn again, up to 8 times, and then the trajectory keeps its own, also where it was to be
    reduced by ``single_goal``. What counts is the whole instruction, whatever ``hide_future_goals``
    shows of it.

    The new rewards replace those of the environment. Put it before any transform that cuts windows.
    Draws come from ``generator``, or else from torch's global one. In a `TransformedEnv` it does
    nothing.

    Args:
        strategy: How h is drawn. ``some``: uniformly from 0..k-n. ``all``: k-n. ``all_or_nothing``:
            k-n with probability ``all_probability``, else 0. ``none``: 0. Never more than the
            timesteps that offer a goal.
        single_goal: Every instruction is first reduced to its first goal (the other slots become
            unused), so k = 1: the goal is either kept, and the trajectory ends where it was
            completed, or replaced by one synthetic goal, as the strategy has it. This is hindsight
            experience replay without instructions.
        hide_future_goals: The ``goal`` entries that leave show no goal after the active one.
        rarity: Draws rare goals more often, by these counts. None draws timesteps and goals
            uniformly. A replay buffer counts what is appended, a `yamame.data.TrajectoryDataset`
            what it holds; other sources must call `count_goals`. The table is part of this
            transform's state.
        all_probability: In [0, 1], for ``all_or_nothing`` only.
        radius: Largest Euclidean distance at which a goal counts as achieved, for goals in a
            continuous space; None: all coordinates must be the same.
        held_out: Tells which instructions evaluation holds out. It is called with new instructions
            ``[B, K, d]`` and the trajectories ``[B, L]`` that they are for, before these are
            rewritten, and returns ``[B]`` bool. None rejects no instruction.
        keys: Names of the entries, of those that have others:
            ``{"goal": "desired_goal", "achieved": "achieved_goal"}``. Goals may be without slots,
            ``[B, L, d]`` both, and then stay so; ``achieved_mask`` and ``mask`` may be missing:
            everything then is achieved, and real.
        generator: Source of all draws.

    Raises:
        ValueError: On an unknown strategy or key, a negative radius, a probability outside [0, 1];
            in use, when the batch lacks an entry or does not hold whole trajectories.

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
        radius: float | None = None,
        held_out: HeldOut | None = None,
        keys: RelabelKeys | Mapping[str, NestedKey] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        require_choice("Relabel", "strategy", strategy, get_args(Strategy))
        require(
            "Relabel",
            "all_probability",
            all_probability,
            0.0 <= all_probability <= 1.0,
            "be in [0, 1]",
        )
        require(
            "Relabel",
            "radius",
            radius,
            radius is None or 0.0 <= radius < torch.inf,
            "not be negative",
        )
        if not isinstance(keys, RelabelKeys):
            keys, known = dict(keys or {}), [field.name for field in fields(RelabelKeys)]
            require(
                "Relabel", "keys", sorted(keys), keys.keys() <= set(known), f"name some of {known}"
            )
            keys = RelabelKeys(**keys)
        super().__init__(
            in_keys=keys.needed(), out_keys=[keys.goal, keys.mask, keys.reward, keys.terminated]
        )
        self.keys, self.strategy = keys, strategy
        self.single_goal, self.hide_future_goals = single_goal, hide_future_goals
        self.rarity = rarity
        self.all_probability, self.radius = all_probability, radius
        self.held_out = held_out
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the relabelled batch ``[B, L']`` (L' <= L); the one given is left as it is."""
        chooses = self.strategy != "none" or self.single_goal
        if not (chooses or self.hide_future_goals):
            return tensordict.copy()
        shape = list(tensordict.batch_size)
        require("Relabel", "batch_size", shape, len(shape) == 2, "be [B, L], of whole trajectories")
        tensordict, in_slots = self._in_slots(tensordict)
        out = tensordict.copy()
        if chooses:
            instruction, changed = self._choose(tensordict)
            if changed.any():
                out = rewrite(tensordict, instruction, changed, self.keys, radius=self.radius)
        if self.hide_future_goals:
            goal, mask = self.entries(out, [self.keys.goal, self.keys.mask], REMEDY)
            real = mask.reshape(*goal.shape[:2], 1, 1)
            out.set(self.keys.goal, torch.where(real, view(goal, hide_future_goals=True), goal))
        for key in in_slots:
            out.set(key, out.get(key).squeeze(-2))
        return out

    def _in_slots(self, batch: TensorDictBase) -> tuple[TensorDictBase, list[NestedKey]]:
        """The batch ``[B, L]`` with goals ``[B, L, 1, d]`` and masks, and the keys of goals that
        had no slots.
        """
        keys, batch = self.keys, batch.copy()
        bare = []
        for key in (keys.goal, keys.achieved):
            value = batch.get(key, None)
            if value is not None and value.ndim == batch.ndim + 1:
                bare.append(key)
                is_unused = (value == GOAL_PAD).all(-1, keepdim=True)  # it would be, in a slot
                moved = torch.where(
                    is_unused, torch.nextafter(value, torch.zeros_like(value)), value
                )
                batch.set(key, moved.unsqueeze(-2))
        reward = batch.get(self.keys.reward, None)
        if (
            bare and reward is not None
        ):  # of another environment: those that are rewritten have 0 and 1
            strange = reward[(reward != 0) & (reward != 1)][:3].tolist()
            remedy = (
                "be 1 where the goal is reached and 0 elsewhere; shift them before they are stored"
            )
            require("Relabel", "rewards", strange, not strange, remedy)
        achieved = batch.get(keys.achieved, None)
        if achieved is not None and batch.get(keys.achieved_mask, None) is None:
            batch.set(keys.achieved_mask, torch.ones_like(achieved[..., 0], dtype=torch.bool))
        if batch.get(keys.mask, None) is None:
            real = torch.ones(*batch.shape, 1, dtype=torch.bool, device=batch.device)
            batch.set(keys.mask, real)
        return batch, bare

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Counts the goals of what enters a replay buffer."""
        self.count_goals(tensordict)
        return tensordict

    def count_goals(self, trajectories: TensorDictBase) -> None:
        """Counts the goals of whole trajectories ``[B, L]`` for ``rarity``, once for each that may
        be drawn.
        """
        if self.rarity is not None:
            needed = [self.keys.achieved, self.keys.achieved_mask, self.keys.mask]
            self.rarity.update(*self.entries(self._in_slots(trajectories)[0], needed, REMEDY))

    def _choose(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The new instructions ``[B, K, d]`` and which trajectories ``[B]`` have one; none of them
        is held out.
        """
        goal, achieved, achieved_mask, mask, *_ = self.entries(
            tensordict, self.keys.needed(), REMEDY
        )
        mask = mask.reshape(goal.shape[:2])
        is_init = tensordict.get(self.keys.is_init, None)
        whole = is_init is None or not bool((mask[:, 0] & ~is_init[:, 0].flatten()).any())
        remedy = "relabel whole trajectories, before any transform that cuts windows"
        require(
            "Relabel",
            repr(self.keys.is_init),
            False,
            whole,
            f"be True at the first timestep ({remedy})",
        )

        valid = achieved_mask & mask.unsqueeze(-1)
        instruction, changed = self._propose(goal[:, 0], achieved, valid)
        if self.held_out is None:
            return instruction, changed

        rows = self._rejected(changed.nonzero().squeeze(-1), instruction, tensordict)
        for _ in range(_REDRAWS):
            if not len(rows):
                break
            instruction[rows], changed[rows] = self._propose(
                goal[rows, 0], achieved[rows], valid[rows]
            )
            rows = self._rejected(rows[changed[rows]], instruction, tensordict)
        instruction[rows], changed[rows] = goal[rows, 0], False
        return instruction, changed

    def _rejected(self, rows: Tensor, instruction: Tensor, tensordict: TensorDictBase) -> Tensor:
        """Those of the trajectories at some indices whose new instruction is held out."""
        assert self.held_out is not None
        if not len(rows):
            return rows
        held_out = self.held_out(instruction[rows], tensordict[rows])
        good = (
            isinstance(held_out, Tensor)
            and held_out.dtype == torch.bool
            and held_out.shape == rows.shape
        )
        got = f"{getattr(held_out, 'dtype', type(held_out).__name__)} {list(getattr(held_out, 'shape', ()))}"
        require("Relabel", "what held_out returns", got, good, f"be bool {list(rows.shape)}")
        return rows[held_out]

    def _propose(
        self, instruction: Tensor, achieved: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draws instructions ``[B, K, d]`` for trajectories, given their own; and which of them are
        new ones.
        """
        mask = valid.any(-1)
        num_steps = valid.shape[1]
        changed = torch.zeros_like(mask[:, 0])
        if self.single_goal:
            changed = num_goals(instruction) > 1
            instruction = instruction.clone()
            instruction[:, 1:] = GOAL_PAD
        times = completion_times(instruction, achieved, valid, mask, radius=self.radius)
        options = eligible(times, valid)
        missing = num_goals(instruction) - (times < num_steps).sum(-1)
        count = torch.minimum(self._count(missing), options.sum(-1))
        drawn_times, drawn_goals = self._draw(options, achieved, valid, count, times.shape[1])
        return merge(instruction, times, drawn_times, drawn_goals, num_steps), changed | (count > 0)

    def _count(self, missing: Tensor) -> Tensor:
        """h for each trajectory ``[B]``, given k - n."""
        if self.strategy == "none":
            return torch.zeros_like(missing)
        if self.strategy == "all":
            return missing
        uniform = self._uniform(missing)
        if self.strategy == "some":
            return (uniform * (missing + 1)).long()
        return torch.where(uniform < self.all_probability, missing, 0)

    def _draw(
        self, options: Tensor, achieved: Tensor, valid: Tensor, count: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """Draws ``count`` ``[B]`` of the ``options`` ``[B, L]`` of each trajectory, and one goal
        achieved at each.

        Returns timesteps ``[B, H]`` in order of drawing (L beyond ``count``; H is ``most``) and
        goals ``[B, H, d]``.
        """
        num_steps = options.shape[1]
        most = min(most, num_steps)
        if self.rarity is None:
            steps = self._race(options).topk(most).indices
            slot_weights = valid.float()
        else:
            weights = self.rarity.weights(achieved) * valid
            step_weights, left, drawn = weights.sum(-1), options.clone(), []
            for _ in range(most):
                chances = self.rarity.probabilities(step_weights, left)
                drawn.append(self._race(chances).argmax(-1, keepdim=True))
                left.scatter_(1, drawn[-1], False)
            steps = torch.cat(drawn, 1)
            slot_weights = self.rarity.probabilities(weights, valid)
        slots = self._race(slot_weights.take_along_dim(steps.unsqueeze(-1), 1)).argmax(-1)
        trajectory = torch.arange(len(options), device=options.device).unsqueeze(-1)
        counted = torch.arange(most, device=options.device) < count.unsqueeze(-1)
        return torch.where(counted, steps, num_steps), achieved[trajectory, steps, slots]

    def _race(self, weights: Tensor) -> Tensor:
        """Inverses of exponential times of arrival ``[*, N]``: in descending order, draws without
        replacement.
        """
        return weights / -self._uniform(weights).clamp(min=1e-300).log()

    def _uniform(self, like: Tensor) -> Tensor:
        """Numbers in [0, 1) of a tensor's shape, in double precision, which tells the longest
        trajectories' steps.
        """
        device = "cpu" if self.generator is None else self.generator.device
        drawn = torch.rand(like.shape, dtype=torch.float64, generator=self.generator, device=device)
        return drawn.to(like.device)
