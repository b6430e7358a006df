"""Hindsight task relabelling: a trajectory of one hidden goal becomes one of another.

Source: Packer, Abbeel and Gonzalez, "Hindsight Task Relabelling: Experience Replay for Sparse
Reward Meta-RL", arXiv 2112.00901.
"""

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import UnitInterval, check_bounds, require
from yamame.replay.gather import BatchTransform, clear_transitions, gather_timesteps

_NEEDED = (
    *("achieved", ("next", "reward"), "mask"),
    *("prev_action", "prev_reward", ("next", "terminated")),
)
_REMEDY = "yamame_envs.XLand writes it with env.achieved=true"
_BY_PLACE = ("time", "step_index", "is_init")
"""Entries that depend on the number of a timestep alone."""


@dataclass(frozen=True)
class _Trials:
    """Trials of a batch of trajectories, and a goal of each trajectory.

    Attributes:
        real: ``[B, L]`` bool, timesteps that are no padding.
        number: ``[B, L]`` int64, number of the trial.
        reached: ``[B, L]`` bool, timesteps at which the new goal is reached.
        kept: ``[B, L]`` bool, timesteps of the new trajectory.
        is_short: ``[B, 1]`` bool, trajectories that lose a trial.
    """

    real: Tensor
    number: Tensor
    reached: Tensor
    kept: Tensor
    is_short: Tensor


class RelabelTasks(BatchTransform):
    """Gives trajectories another hidden goal, which they have reached (arXiv 2112.00901).

    The hidden goal of an environment must decide nothing but when a trial ends, which pays 1; there
    may be one trial or several. At each timestep, ``achieved`` ``[B, L, M]`` holds the numbers of
    the goals that have just been reached, whichever the hidden one is, and 0 in other places.
    Trials must show their last timestep, and a further step leads to the next one
    (``trial_end="reset_step"`` of `yamame_envs.XLand`).

    A share of the trajectories receives a goal that they have reached, drawn uniformly from all
    timesteps and places, so frequent goals are drawn more often. Such a trajectory becomes what the
    environment would have emitted for the goal with the same actions: a trial ends where it first
    reaches the goal, and ``success`` is that of the last one. Only ends differ where the former
    goal hides them:

    * A trial that had ended at its former goal first does not show what comes next. It is left
      out, and the trajectory is truncated at its end.
    * A trajectory that was cut off before its last trial was over is truncated at its end.

    Trajectories keep their goals if they have reached none, or lack the beginning of their episode.
    The width of the batch does not change.

    The transform belongs before any transform that cuts windows.

    Args:
        probability: Share of the trajectories that receive a goal.
        generator: Generator of all draws; None: torch's global one.

    Raises:
        ArgumentError: In use: the batch lacks an entry, is not ``[B, L]`` of right-padded
            trajectories, shows goals to the agent, or has a reward that is neither 0 nor 1, or for
            a transition into another trial.

    >>> from tensordict import TensorDict
    >>> achieved = torch.tensor([0, 0, 5, 0]).view(1, 4, 1)
    >>> entries = {
    ...     "achieved": achieved,
    ...     "prev_action": torch.ones(1, 4, 2),
    ...     "prev_reward": torch.zeros(1, 4, 1),
    ...     "mask": torch.ones(1, 4, 1, dtype=torch.bool),
    ...     "next": {"reward": torch.zeros(1, 4, 1), "terminated": achieved > 9},
    ... }
    >>> relabelled = RelabelTasks(1.0)(TensorDict(entries, batch_size=[1, 4]))
    >>> relabelled["next", "reward"].flatten(), relabelled["mask"].flatten()
    (tensor([0., 1., 0., 0.]), tensor([ True,  True,  True, False]))
    """

    needs_entries = ("achieved",)
    """Observations without which an environment is refused before training."""

    @check_bounds
    def __init__(
        self, probability: UnitInterval = 0.5, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the relabelled trajectories ``[B, L]`` in a new batch."""
        self.check_shape(tensordict)
        shape = tensordict.shape
        achieved, reward, mask, *_ = self.entries(tensordict, _NEEDED, remedy=_REMEDY)
        self._check_goals(tensordict, achieved)
        reward, real = reward.reshape(shape), mask.reshape(shape).bool()
        self.check_packed(tensordict, real)
        starts = torch.zeros_like(real)
        starts[:, 0] = True
        if tensordict.get("trial_start", None) is not None:
            starts |= tensordict["trial_start"].reshape(shape).bool()
        self._check_rewards(reward, starts, real)
        goal = self._draw(achieved, real & ~starts)
        if tensordict.get("is_init", None) is not None:
            goal = goal.masked_fill(~tensordict["is_init"][:, 0].flatten().bool(), 0)
        trials = _trials(achieved, goal, real, starts & real, reward > 0)
        return _rewritten(tensordict, trials, (goal > 0).unsqueeze(1))

    @staticmethod
    def _check_goals(batch: TensorDictBase, achieved: Tensor) -> None:
        is_whole = not achieved.is_floating_point() and achieved.dtype != torch.bool
        are_numbers = is_whole and achieved.ndim == 3 and achieved.shape[-1] > 0
        got = f"{achieved.dtype} {list(achieved.shape)}"
        remedy = "goals with coordinates are relabelled by yamame.replay.Relabel"
        condition = "be numbers of goals [B, L, M]"
        require("RelabelTasks", "achieved", got, are_numbers, condition, remedy=remedy)
        shown = [key for key in ("goal", "hidden") if key in batch.keys()]
        condition = "hold no goal that the agent observes"
        require("RelabelTasks", "the batch", shown, not shown, condition)

    @staticmethod
    def _check_rewards(reward: Tensor, starts: Tensor, real: Tensor) -> None:
        # On other devices, reading the result would wait for the device.
        if not reward.is_cpu:
            return
        pays = real & (reward != 0)
        other = reward[pays & (reward != 1)][:3].tolist()
        condition = "be 1 where the goal is reached and 0 elsewhere"
        remedy = "set env.reward=success, if the environment is yamame_envs.XLand"
        require("RelabelTasks", "rewards", other, not other, condition, remedy=remedy)
        shows_ends = not bool((pays[:, :-1] & starts[:, 1:]).any())
        got = "a reward for a transition into another trial"
        condition = "show the timestep at which the goal is reached"
        remedy = "set env.trial_end=reset_step, if the environment is yamame_envs.XLand"
        require("RelabelTasks", "trials", got, shows_ends, condition, remedy=remedy)

    def _draw(self, achieved: Tensor, may_reach: Tensor) -> Tensor:
        """Draw goals ``[B]`` that trajectories have reached; 0 if one keeps its own."""
        options = ((achieved > 0) & may_reach.unsqueeze(-1)).flatten(1).cpu()
        drawn = torch.rand(options.shape, dtype=torch.float64, generator=self.generator)
        place = drawn.masked_fill(~options, -1.0).argmax(1, keepdim=True)
        keeps = torch.rand(len(options), generator=self.generator) >= self.probability
        keeps = (keeps | ~options.any(1)).to(achieved.device)
        goal = achieved.flatten(1).gather(1, place.to(achieved.device)).squeeze(1)
        return goal.masked_fill(keeps, 0)


def _trials(achieved: Tensor, goal: Tensor, real: Tensor, starts: Tensor, pays: Tensor) -> _Trials:
    """Find what trajectories keep with a goal.

    Args:
        achieved: ``[B, L, M]``.
        goal: ``[B]``; 0: the trajectory keeps everything.
        real: ``[B, L]`` bool.
        starts: ``[B, L]`` bool, first timesteps of trials.
        pays: ``[B, L]`` bool, transitions that pay for the former goal.
    """
    number = (starts.long().cumsum(1) - 1).clamp(min=0)
    reached = (achieved == goal.view(-1, 1, 1)).any(-1) & real & ~starts
    reached &= (goal > 0).unsqueeze(1)
    before = reached.long().cumsum(1) - reached.long()
    # Counts within the trial: of its timesteps, the first one has the smallest count.
    at_start = torch.where(starts, before, 0).cummax(1).values
    kept = real & (before == at_start)

    def in_trial(flags: Tensor) -> Tensor:
        """Return, at each timestep, whether a flag is set at any timestep of its trial."""
        counts = torch.zeros_like(number).scatter_add_(1, number, flags.long())
        return counts.gather(1, number) > 0

    is_unknown = in_trial(real & pays) & ~in_trial(reached) & (goal > 0).unsqueeze(1)
    is_short = (is_unknown & real).any(1, keepdim=True)
    return _Trials(real, number, reached, kept & ~is_unknown, is_short)


def _rewritten(batch: TensorDictBase, trials: _Trials, changed: Tensor) -> TensorDictBase:
    """Return the trajectories of new goals.

    Args:
        batch: ``[B, L]``.
        trials: Their trials.
        changed: ``[B, 1]`` bool, trajectories with a new goal.
    """
    shape = batch.shape
    place = torch.arange(shape[1], device=changed.device)
    row = shape[1] * torch.arange(shape[0], device=changed.device).unsqueeze(1)
    order = (~trials.kept).to(torch.uint8).argsort(dim=1, stable=True)
    length = trials.kept.sum(1, keepdim=True)
    is_real = place < length
    has_next = place < length - 1
    is_last = place == length - 2
    following = torch.cat([order[:, 1:], order[:, -1:]], 1)
    former = torch.cat([order[:, :1], order[:, :-1]], 1)
    out = gather_timesteps(batch, row + order, is_real)

    def replace(key: str | tuple[str, str], new: Tensor) -> None:
        """Set an entry of the trajectories with a new goal."""
        value = out.get(key)
        new = new.reshape(value.shape).to(value.dtype)
        out.set(key, torch.where(changed.view(-1, *[1] * (value.ndim - 1)), new, value))

    is_same_trial = trials.number.gather(1, following) == trials.number.gather(1, order)
    reward = (trials.reached.gather(1, following) & is_same_trial & has_next).float()
    replace(("next", "reward"), reward)
    replace("prev_reward", torch.cat([torch.zeros_like(reward[:, :1]), reward[:, :-1]], 1))
    # The action before a timestep was taken at the timestep that now comes before it.
    after_former = (former + 1).clamp(max=shape[1] - 1)
    is_later = is_real & (place > 0)
    taken = gather_timesteps(batch.select("prev_action"), row + after_former, is_later)
    replace("prev_action", taken["prev_action"])
    by_place = gather_timesteps(batch.select(*_BY_PLACE, strict=False), row + place, is_real)
    for key in by_place.keys():
        replace(key, by_place[key])

    ended = batch.get(("next", "terminated")).reshape(shape).bool() & trials.real
    is_over = is_last & ended.any(1, keepdim=True) & ~trials.is_short
    replace(("next", "terminated"), is_over)
    ends = {"truncated": is_last & ~is_over, "done": is_last, "success": is_over & (reward > 0)}
    for name, flags in ends.items():
        if batch.get(("next", name), None) is not None:
            replace(("next", name), flags)
    return clear_transitions(out, length.squeeze(1) - 1)
