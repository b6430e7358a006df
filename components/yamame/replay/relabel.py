"""Hindsight instruction relabelling: achieved goals become part of the instruction.

A replay transform of whole trajectories in the format of `yamame.replay.hindsight`, which applies
the instructions that are drawn here. It reads ``goal`` ``[B, L, K, d]`` (at timestep 0 the whole
instruction), ``achieved`` ``[B, L, M, d]``, ``achieved_mask`` ``[B, L, M]`` and ``mask``
``[B, L, 1]``. Trajectories without a new instruction are returned bit for bit as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Literal, get_args

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from yamame.checks import Bounds, UnitInterval, check_bounds, require, require_choice
from yamame.goals import GOAL_PAD, completion_times, num_goals, view
from yamame.replay.frequencies import GoalFrequencies
from yamame.replay.gather import BatchTransform, gather_timesteps, scatter_timesteps
from yamame.replay.hindsight import RelabelKeys, eligible, merge, rewrite
from yamame.replay.packing import find_pieces, gather_steps, pack, pack_pieces, unpack_pieces
from yamame.replay.pieces import Pieces, packed_pieces
from yamame.rollouts import is_rollout

REMEDY = (
    "set other names with keys={'goal': ..., 'achieved': ...}; trajectories without goals cannot "
    "be relabelled"
)
Strategy = Literal["some", "all", "all_or_nothing", "none"]
Radius = Annotated[float, Bounds(least=0, below=torch.inf)]
HeldOut = Callable[[Tensor, TensorDictBase], Tensor]
"""Function of instructions ``[B, K, d]`` and trajectories ``[B, L]`` that returns which
instructions are held out ``[B]`` bool.
"""
_REDRAWS = 8
"""Redraws of held-out instructions. With a quarter of all instructions held out, one trajectory in
65,000 still has a held-out one afterwards.
"""


class Relabel(BatchTransform):
    """Gives trajectories instructions that they have (partly) completed (AMAGO, arXiv 2310.09971).

    Let n of k goals be completed. The strategy replaces h of the k - n missed ones. If h is 0, as
    for a completed instruction, nothing changes. Synthetic goals are drawn from the goals achieved
    at h other timesteps (without replacement, one goal from each), merged chronologically with the
    n completed ones into the first slots, and the trajectory is replayed: rewards, previous
    rewards, goals, ends. Replay is greedy: goals may complete before the timestep from which they
    were drawn, never after it. A trajectory that completes its new instruction ends there
    (``terminated``), and later timesteps become zero padding; the batch is trimmed to its longest
    trajectory.

    Trajectories are relabelled one by one, also where a row holds several. Each receives goals that
    it has achieved itself, an unfinished one those achieved so far. A batch in TorchRL's layout
    ``[*, T]``, with the observations after each step under ``"next"``, is split as by
    `yamame.replay.pack`, and returned in its own shape: steps after a new end become zero, and
    ``mask`` is False there. In such a batch, and in rows of several trajectories, those whose
    beginning is missing keep their instructions.

    With ``held_out``, no trajectory receives an instruction that is held out for evaluation: it is
    drawn again, up to 8 times, then the trajectory keeps its own instruction, also with
    ``single_goal``. The whole instruction counts, whatever ``hide_future_goals`` shows of it.

    The new rewards replace those of the environment. The transform belongs before any transform
    that cuts windows, and has no effect in a `TransformedEnv`.

    Args:
        strategy: Number of missed goals that are replaced by achieved ones. ``some``: a random
            number, from none to all. ``all``: every missed goal. ``all_or_nothing``: every missed
            goal with probability ``all_probability``, else none. ``none``: none, trajectories stay
            as they are.
        single_goal: Reduce every instruction to its first goal: the goal is either retained, and
            the trajectory ends where it is reached, or replaced by one achieved goal. This is
            hindsight experience replay without instructions.
        hide_future_goals: Whether the agent sees no goal after the one that it is to reach next.
        rarity: Counts of achieved goals, by which rare goals are drawn more often
            (`GoalFrequencies`). None: all goals are drawn equally often.
        all_probability: Probability for ``all_or_nothing``.
        radius: Largest Euclidean distance at which a goal counts as achieved, for goals in a
            continuous space; None: all coordinates must be equal.
        held_out: Function that returns which instructions evaluation holds out. It is called with
            new instructions ``[B, K, d]`` and the trajectories ``[B, L]`` that they are for, before
            these are rewritten, and returns ``[B]`` bool. None: no instruction is held out.
        keys: Keys of entries with other names:
            ``{"goal": "desired_goal", "achieved": "achieved_goal"}``. Goals may be without slots,
            ``[B, L, d]``, and then stay so. ``achieved_mask`` and ``mask`` may be missing: all
            achieved goals are then valid, and all timesteps real.
        generator: Generator of all draws; None: torch's global one.

    Raises:
        ArgumentError: The strategy or a key is unknown, or a number is out of range; in use, the
            batch lacks an entry, no batch so far has held a whole trajectory, or this one marks the
            end of an episode where its layout does not show what follows.

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

    needs_goals = True
    """Whether the transform needs trajectories with goals; a class without it works on any."""

    @check_bounds
    def __init__(
        self,
        strategy: Strategy = "some",
        *,
        single_goal: bool = False,
        hide_future_goals: bool = False,
        rarity: GoalFrequencies | None = None,
        all_probability: UnitInterval = 0.8,
        radius: Radius | None = None,
        held_out: HeldOut | None = None,
        keys: RelabelKeys | Mapping[str, NestedKey] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        require_choice("Relabel", "strategy", strategy, get_args(Strategy))
        if not isinstance(keys, RelabelKeys):
            keys = dict(keys or {})
            known = [field.name for field in fields(RelabelKeys)]
            is_known = keys.keys() <= set(known)
            require("Relabel", "keys", sorted(keys), is_known, f"name some of {known}")
            keys = RelabelKeys(**keys)
        # Keys of TorchRL's protocol; other entries are rewritten where a batch holds them.
        out_keys = [keys.goal, keys.mask, keys.reward, keys.terminated]
        super().__init__(in_keys=keys.needed(), out_keys=out_keys)
        self.keys = keys
        self.strategy = strategy
        self.single_goal = single_goal
        self.hide_future_goals = hide_future_goals
        self.rarity = rarity
        self.all_probability = all_probability
        self.radius = radius
        self.held_out = held_out
        self.generator = generator
        self._has_seen_start = False

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the relabelled trajectories in a new batch.

        A batch ``[B, L]`` of one trajectory in each row is trimmed to its longest trajectory; other
        batches keep their shape.
        """
        may_change = self.strategy != "none" or self.single_goal
        if not (may_change or self.hide_future_goals):
            return tensordict.copy()
        if is_rollout(tensordict):
            return self._relabel_rollout(tensordict)
        shape = list(tensordict.batch_size)
        require("Relabel", "batch_size", shape, len(shape) == 2, "be [B, L], of whole trajectories")
        batch = self._with_mask(tensordict)
        pieces = self._pieces(batch)
        if pieces is None:
            return self._relabel(batch)

        parts = gather_timesteps(batch, pieces.source, pieces.real)
        relabelled = self._relabel(parts, is_whole=self._is_whole(parts))
        return scatter_timesteps(relabelled, batch, pieces)

    def _relabel_rollout(self, rollout: TensorDictBase) -> TensorDictBase:
        """Relabel trajectories in TorchRL's layout ``[*, T]``."""
        keys = self.keys
        mask = rollout.get(keys.mask, None)
        if mask is not None and keys.mask != "mask":
            rollout = rollout.copy().set("mask", mask)
        pieces = find_pieces(rollout, ends=keys.ends(), owner="Relabel")
        packed = pack_pieces(rollout, pieces)
        done = rollout.get(keys.done, None)
        if done is not None:
            packed.set(keys.done, gather_steps(done, rollout, pieces))
        if keys.mask != "mask":
            packed.rename_key_("mask", keys.mask)
        relabelled = self._relabel(packed, is_whole=self._is_whole(packed))
        return unpack_pieces(relabelled, rollout, pieces, keys.mask)

    def _relabel(
        self, tensordict: TensorDictBase, is_whole: Tensor | None = None
    ) -> TensorDictBase:
        """Relabel a batch ``[B, L]`` of one right-padded trajectory in each row.

        Args:
            tensordict: Packed trajectories, with ``mask``.
            is_whole: ``[B]`` bool, trajectories that may receive another instruction; None if all
                must be whole.
        """
        batch, without_slots = self._add_slots(tensordict)
        # A shallow copy: entries that change are replaced, not written to.
        out = batch.copy()
        if self.strategy != "none" or self.single_goal:
            instruction, changed = self._choose(batch, is_whole)
            if changed.any():
                out = rewrite(batch, instruction, changed, self.keys, radius=self.radius)
        if self.hide_future_goals:
            goal, mask = self.entries(out, [self.keys.goal, self.keys.mask], remedy=REMEDY)
            real = mask.reshape(*goal.shape[:2], 1, 1)
            shown = view(goal, hide_future_goals=True)
            out.set(self.keys.goal, torch.where(real, shown, goal))
        # Goals leave in the shape in which they came.
        for key in without_slots:
            out.set(key, out.get(key).squeeze(-2))
        return out

    def _pieces(self, batch: TensorDictBase) -> Pieces | None:
        """Find the trajectories of a packed batch; None if each row holds one."""
        real = batch.get(self.keys.mask).reshape(batch.shape).bool()
        return packed_pieces(
            batch, real, owner="Relabel", is_init=self.keys.is_init, ends=self.keys.ends()
        )

    def _is_whole(self, trajectories: TensorDictBase) -> Tensor:
        """Return the trajectories ``[B]`` bool that begin with the start of their episode.

        Raises:
            ArgumentError: There is none, nor was there one before, and instructions may change.
        """
        is_whole = torch.ones(len(trajectories), dtype=torch.bool, device=trajectories.device)
        is_init = trajectories.get(self.keys.is_init, None)
        if is_init is not None:
            is_whole = is_whole & is_init[:, 0].flatten().bool()
        # Samplers may set `is_init` at the beginning of each slice.
        step_index = trajectories.get("step_index", None)
        if step_index is not None:
            is_whole = is_whole & (step_index[:, 0].flatten() == 0)
        may_change = self.strategy != "none" or self.single_goal
        # A sampler of slices may draw a batch without a beginning now and then.
        self._has_seen_start = self._has_seen_start or bool(is_whole.any())
        self._require_starts(self._has_seen_start or not may_change)
        return is_whole

    def _with_mask(self, batch: TensorDictBase) -> TensorDictBase:
        """Complete a batch by a mask if it has none: all timesteps are real."""
        if batch.get(self.keys.mask, None) is not None:
            return batch
        real = torch.ones(*batch.shape, 1, dtype=torch.bool, device=batch.device)
        return batch.copy().set(self.keys.mask, real)

    def _add_slots(self, batch: TensorDictBase) -> tuple[TensorDictBase, list[NestedKey]]:
        """Complete a batch: add slots to goals without slots, and a missing mask of goals.

        Returns:
            New batch, and the keys of goals that had no slots.
        """
        keys = self.keys
        batch = batch.copy()
        without_slots = []
        for key in (keys.goal, keys.achieved):
            value = batch.get(key, None)
            if value is None or value.ndim != batch.ndim + 1:
                continue
            without_slots.append(key)
            # In a slot, a goal of these coordinates would mean an unused slot: move it a little.
            is_unused = (value == GOAL_PAD).all(-1, keepdim=True)
            moved = torch.nextafter(value, torch.zeros_like(value))
            batch.set(key, torch.where(is_unused, moved, value).unsqueeze(-2))

        reward = batch.get(keys.reward, None)
        if without_slots and reward is not None:
            # Environments without slots may have other rewards, e.g. -1 and 0. Rewritten
            # trajectories have 0 and 1, which must not be mixed with them.
            other = reward[(reward != 0) & (reward != 1)][:3].tolist()
            condition = "be 1 where the goal is reached and 0 elsewhere"
            remedy = "shift rewards before they are stored"
            require("Relabel", "rewards", other, not other, condition, remedy=remedy)

        achieved = batch.get(keys.achieved, None)
        if achieved is not None and batch.get(keys.achieved_mask, None) is None:
            batch.set(keys.achieved_mask, torch.ones_like(achieved[..., 0], dtype=torch.bool))
        return batch, without_slots

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Count the goals of trajectories that enter a replay buffer."""
        self.count_goals(tensordict)
        return tensordict

    def count_goals(self, trajectories: TensorDictBase) -> None:
        """Count the goals of whole trajectories for ``rarity``.

        To be called once for each trajectory that may be sampled.
        """
        if self.rarity is None:
            return
        if is_rollout(trajectories):
            packed = pack(trajectories)
            if self.keys.mask != "mask":
                packed.rename_key_("mask", self.keys.mask)
        else:
            packed = self._with_mask(trajectories)
            pieces = self._pieces(packed)
            if pieces is not None:
                packed = gather_timesteps(packed, pieces.source, pieces.real)
        batch, _ = self._add_slots(packed)
        needed = [self.keys.achieved, self.keys.achieved_mask, self.keys.mask]
        achieved, achieved_mask, mask = self.entries(batch, needed, remedy=REMEDY)
        self.rarity.update(achieved, achieved_mask, mask)

    def _choose(
        self, batch: TensorDictBase, is_whole: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose instructions, none of which is held out.

        Args:
            batch: ``[B, L]``.
            is_whole: As for `_relabel`.

        Returns:
            New instructions ``[B, K, d]``, and which trajectories ``[B]`` have one.
        """
        goal, achieved, achieved_mask, mask, *_ = self.entries(
            batch, self.keys.needed(), remedy=REMEDY
        )
        mask = mask.reshape(goal.shape[:2])
        if is_whole is None:
            self._check_starts(batch, mask)

        valid = achieved_mask & mask.unsqueeze(-1)
        instruction, changed = self._propose(goal[:, 0], achieved, valid)
        if is_whole is not None:
            changed = changed & is_whole
        if self.held_out is None:
            return instruction, changed

        rows = self._rejected(changed.nonzero().squeeze(-1), instruction, batch)
        for _ in range(_REDRAWS):
            if not len(rows):
                break
            proposal = self._propose(goal[rows, 0], achieved[rows], valid[rows])
            instruction[rows], changed[rows] = proposal
            rows = self._rejected(rows[changed[rows]], instruction, batch)
        instruction[rows] = goal[rows, 0]
        changed[rows] = False
        return instruction, changed

    def _check_starts(self, batch: TensorDictBase, mask: Tensor) -> None:
        """Raise unless every trajectory begins with the start of its rollout."""
        is_init = batch.get(self.keys.is_init, None)
        if is_init is None:
            return
        self._require_starts(not bool((mask[:, 0] & ~is_init[:, 0].flatten()).any()))

    def _require_starts(self, is_whole: bool) -> None:
        remedy = "relabel whole trajectories, before any transform that cuts windows"
        condition = "be True at the first timestep"
        require("Relabel", repr(self.keys.is_init), False, is_whole, condition, remedy=remedy)

    def _rejected(self, rows: Tensor, instruction: Tensor, batch: TensorDictBase) -> Tensor:
        """Return those of the trajectories ``rows`` whose new instruction is held out."""
        assert self.held_out is not None
        if not len(rows):
            return rows
        held_out = self.held_out(instruction[rows], batch[rows])
        if isinstance(held_out, Tensor):
            fits = held_out.dtype == torch.bool and held_out.shape == rows.shape
            returned = f"{held_out.dtype} {list(held_out.shape)}"
        else:
            fits = False
            returned = type(held_out).__name__
        name = "result of held_out"
        require("Relabel", name, returned, fits, f"be bool {list(rows.shape)}")
        return rows[held_out]

    def _propose(
        self, instruction: Tensor, achieved: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw instructions for trajectories.

        Args:
            instruction: ``[B, K, d]``, their own.
            achieved: ``[B, L, M, d]``.
            valid: ``[B, L, M]`` bool, goals that are achieved at real timesteps.

        Returns:
            Instructions ``[B, K, d]``, and which of them are new ``[B]``.
        """
        # Timesteps without an achieved goal cannot complete one, so they need not be told from
        # padding.
        mask = valid.any(-1)
        num_steps = valid.shape[1]
        changed = torch.zeros_like(mask[:, 0])
        if self.single_goal:
            changed = num_goals(instruction) > 1
            instruction = instruction.clone()
            instruction[:, 1:] = GOAL_PAD

        times = completion_times(instruction, achieved, valid, mask, radius=self.radius)
        options = eligible(times, valid)
        num_missing = num_goals(instruction) - (times < num_steps).sum(-1)
        count = torch.minimum(self._count(num_missing), options.sum(-1))
        drawn_times, drawn_goals = self._draw(options, achieved, valid, count, times.shape[1])
        merged = merge(instruction, times, drawn_times, drawn_goals, num_steps)
        return merged, changed | (count > 0)

    def _count(self, num_missing: Tensor) -> Tensor:
        """Draw h for each trajectory ``[B]``, given k - n."""
        if self.strategy == "none":
            return torch.zeros_like(num_missing)
        if self.strategy == "all":
            return num_missing
        uniform = self._uniform(num_missing)
        if self.strategy == "some":
            return (uniform * (num_missing + 1)).long()
        return torch.where(uniform < self.all_probability, num_missing, 0)

    def _draw(
        self, options: Tensor, achieved: Tensor, valid: Tensor, count: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """Draw timesteps, and one goal achieved at each of them.

        Args:
            options: ``[B, L]`` bool, timesteps that may be drawn.
            achieved: ``[B, L, M, d]``.
            valid: ``[B, L, M]`` bool, goals that may be drawn.
            count: ``[B]``, number of draws for each trajectory.
            most: H, largest number of draws.

        Returns:
            Timesteps ``[B, H]`` in the order of drawing, L beyond ``count``, and goals
            ``[B, H, d]``.
        """
        num_steps = options.shape[1]
        most = min(most, num_steps)
        # A fixed number of draws, of which `count` are used, needs no loop over trajectories.
        if self.rarity is None:
            steps = self._race(options).topk(most).indices
            slot_weights = valid.float()
        else:
            weights = self.rarity.weights(achieved) * valid
            step_weights = weights.sum(-1)
            left = options.clone()
            drawn = []
            for _ in range(most):
                # The uniform share depends on the timesteps that are left.
                chances = self.rarity.probabilities(step_weights, left)
                step = self._race(chances).argmax(-1, keepdim=True)
                drawn.append(step)
                left.scatter_(1, step, False)
            steps = torch.cat(drawn, 1)
            slot_weights = self.rarity.probabilities(weights, valid)

        slots = self._race(slot_weights.take_along_dim(steps.unsqueeze(-1), 1)).argmax(-1)
        trajectory = torch.arange(len(options), device=options.device).unsqueeze(-1)
        is_counted = torch.arange(most, device=options.device) < count.unsqueeze(-1)
        return torch.where(is_counted, steps, num_steps), achieved[trajectory, steps, slots]

    def _race(self, weights: Tensor) -> Tensor:
        """Return inverse exponential arrival times ``[*, N]`` with these rates.

        In descending order, they are a draw without replacement (Efraimidis and Spirakis, 2006).
        """
        # log(0) would give a priority of 0, as of weights that must not be drawn.
        return weights / -self._uniform(weights).clamp(min=1e-300).log()

    def _uniform(self, like: Tensor) -> Tensor:
        """Draw numbers in [0, 1) of a tensor's shape.

        Double precision makes ties between the timesteps of long trajectories improbable.
        """
        device = "cpu" if self.generator is None else self.generator.device
        drawn = torch.rand(like.shape, dtype=torch.float64, generator=self.generator, device=device)
        return drawn.to(like.device)
