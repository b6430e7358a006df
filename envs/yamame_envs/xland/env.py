"""XLand-MiniGrid: find out a hidden goal and hidden rules in several trials.

Source: Nikulin et al., "XLand-MiniGrid: Scalable Meta-Reinforcement Learning Environments in JAX",
arXiv 2312.12044; xminigrid 0.9.3.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Binary, Categorical
from torchrl.data.tensor_specs import TensorSpec
from yamame.checks import ArgumentError, Bounds, PositiveInt, check_bounds, require, require_choice
from yamame.execution.capturing import capturing

from yamame_envs.base import BatchedEnv
from yamame_envs.split import Identity, Split, entry_hash, is_held_out
from yamame_envs.streams import fold
from yamame_envs.tasks import Tensors, one_hots
from yamame_envs.xland.achieved import NUM_GOALS, NUM_PLACES, achieved_goals, encoded_goals
from yamame_envs.xland.cells import EMPTY, FLOOR, WALL, Colour, Tile, pack, unpack
from yamame_envs.xland.pictures import draw_grid
from yamame_envs.xland.rooms import (
    RoomsName,
    describe_size,
    draw_layouts,
    make_rooms,
    smallest_size,
)
from yamame_envs.xland.rules import NUM_ACTIONS, Game, compile_rules
from yamame_envs.xland.rulesets import LEVELS, Distribution, canonical, draw_rulesets

Level = Literal["trivial", "small", "medium", "high"]
Reward = Literal["timed", "success"]
TrialEnd = Literal["soft_reset", "reset_step"]

_LARGEST_SIZE = 64
_NUM_GOAL_KINDS = 15
_NUM_RULE_KINDS = 12
_ONE_PAIR = len(Tile) + len(Colour)


class XLand(BatchedEnv):
    """Grid of rooms with objects, a hidden goal and hidden rules, played in several trials.

    An episode has one ruleset and ``num_trials`` trials, each with a new layout: places of objects,
    doors and agent. A trial ends at its goal or after ``trial_limit`` steps. The last trial shows
    its own last timestep, and the others by ``trial_end``; ``success`` is to reach the goal in the
    last one.

    Actions: 0 forward, 1 turn right, 2 turn left, 3 pick up, 4 put down, 5 open or close a door.
    Goals are to hold a tile, to be next to one, or to put two next to each other, in any or in one
    absolute direction. Rules replace tiles under the same conditions
    (`yamame_envs.xland.rulesets`).

    ``observation`` ``[N, V, V, 2]`` uint8: tile and colour of the cells in front of the agent,
    which is in the middle of the last row; the agent sees through walls and does not see what it
    holds. ``direction`` ``[N, 4]`` bool: up, right, down or left, one-hot.

    Episodes are those of xminigrid 0.9.3 under ``DirectionObservationWrapper`` and
    ``GymAutoResetWrapper``, but for the time limit, which terminates. Rulesets have the
    distribution of its benchmarks, but are drawn from seeds.

    Args:
        num_envs: Number of grids, played at the same time.
        rooms: Layout of walls: ``R1``, ``R2``, ``R4``, ``R6`` or ``R9``, by the number of rooms.
        size: Cells along a side with the border. ``R4`` needs an odd number, ``R9`` a multiple of
            3 plus 1.
        level: Distribution of rulesets: ``trivial``, without rules, ``small``, ``medium`` or
            ``high``; or the arguments of a `yamame_envs.xland.rulesets.Distribution`.
        view_size: Cells V along a side of the view; odd, 3 to 31.
        num_trials: Number of trials of an episode.
        trial_limit: Largest number of steps of a trial. None: ``3 * size * size``, as in the
            original.
        reward: Reward of the step that reaches the goal: ``timed``, 1 - 0.9 * steps of the trial /
            ``trial_limit``, as in the original; ``success``, 1, so that the return of a trial is
            its success.
        direction: Observe the direction of the agent.
        trial_end: Transition between trials. ``soft_reset``, as in the original: the step that ends
            a trial shows the first timestep of the next one. ``reset_step``: it shows the last
            timestep of its own trial, and the step after it leads to the next trial, whatever its
            action, and pays nothing.
        split: Rulesets that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share (`yamame_envs.split`).
        split_by: Held-out entries: ``rulesets``, a goal and the set of rules, whatever the objects;
            ``goals``, goals, whatever the rules.
        achieved: Write ``achieved`` ``[N, 12]`` int32 for `yamame.replay.RelabelTasks`: numbers of
            the goals that the last step has reached, whichever the hidden one is, but for those on
            the other side of the split; 0 in places without a goal. Needs ``reward="success"``, a
            hidden goal (``observable=False``) and, with several trials, ``trial_end="reset_step"``.
        observable: Write goal and rules to ``hidden``: kinds, tiles and colours as one-hots,
            ``[N, 65 + 87 * K]`` for at most K rules.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ArgumentError: A setting is out of its range, or the rooms are too small for the objects.

    >>> env = XLand(num_envs=2, level="small", num_trials=2)
    >>> env.rollout(3)["observation"].shape
    torch.Size([2, 3, 5, 5, 2])
    """

    identities: ClassVar = {
        "rulesets": Identity(("goal", "rules"), "new rulesets"),
        "goals": Identity(("goal",), "new goals"),
    }
    num_trials: int
    _bare_grid: Tensor
    _rewards: Tensor
    _directions: Tensor
    _goal_hashes: Tensor

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        rooms: RoomsName = "R1",
        size: Annotated[int, Bounds(least=3, most=_LARGEST_SIZE)] = 9,
        level: Level | Mapping[str, Any] = "trivial",
        view_size: Annotated[int, Bounds(least=3, most=31)] = 5,
        num_trials: PositiveInt = 4,
        trial_limit: PositiveInt | None = None,
        reward: Reward = "timed",
        direction: bool = True,
        trial_end: TrialEnd = "soft_reset",
        split: Split = "all",
        split_by: Literal["rulesets", "goals"] = "rulesets",
        achieved: bool = False,
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        require_choice(self.label, "reward", reward, get_args(Reward))
        require_choice(self.label, "trial_end", trial_end, get_args(TrialEnd))
        require(self.label, "view_size", view_size, view_size % 2 == 1, "be odd")
        self.hold_out(split, split_by)
        self._distribution = self._distribution_of(level)
        if self._distribution.num_rules == 0:
            # There are no rules, so both identities are the same.
            self.split_novelty = self.identities["goals"].novelty
        self._size = size
        self._check_size(rooms, size)
        self._rooms = make_rooms(rooms, size, owner=self.label)
        self.num_trials = num_trials
        self._trial_limit = 3 * size * size if trial_limit is None else trial_limit
        self._reward = reward
        self._has_reset_steps = trial_end == "reset_step" and num_trials > 1
        num_reset_steps = num_trials - 1 if self._has_reset_steps else 0
        self._shows_direction = direction
        self._shows_achieved = achieved
        if achieved:
            self._check_relabelling(reward, trial_end, observable)
        num_hidden = _NUM_GOAL_KINDS + 2 * _ONE_PAIR
        num_hidden += self._distribution.num_rules * (_NUM_RULE_KINDS + 3 * _ONE_PAIR)
        super().__init__(
            num_envs=num_envs,
            time_limit=num_trials * self._trial_limit + num_reset_steps,
            action=Categorical(NUM_ACTIONS),
            observations=self._observations(view_size, device),
            hidden=num_hidden if observable else 0,
            seed=seed,
            device=device,
        )
        self._add_tables(view_size)
        self.check_split()

    def _observations(self, view_size: int, device: str | torch.device) -> dict[str, TensorSpec]:
        shape = (view_size, view_size, 2)
        observations: dict[str, TensorSpec] = {
            "observation": Categorical(len(Tile), shape=shape, dtype=torch.uint8, device=device)
        }
        if self._shows_direction:
            observations["direction"] = Binary(4, dtype=torch.bool, device=device)
        if self._shows_achieved:
            observations["achieved"] = Categorical(
                NUM_GOALS + 1, shape=(NUM_PLACES,), dtype=torch.int32, device=device
            )
        return observations

    @classmethod
    def _distribution_of(cls, level: Level | Mapping[str, Any]) -> Distribution:
        if isinstance(level, Mapping):
            names = tuple(signature(Distribution).parameters)
            is_known = set(level) <= set(names)
            condition = f"have no other keys than {', '.join(names)}"
            require(cls.__name__, "level", sorted(map(str, level)), is_known, condition)
            try:
                return Distribution(**level)
            except ArgumentError as error:
                name = f"level.{error.name}"
                raise ArgumentError(cls.__name__, name, error.value, error.condition) from error
        require_choice(cls.__name__, "level", level, tuple(LEVELS))
        return LEVELS[level]

    def _check_relabelling(self, reward: Reward, trial_end: TrialEnd, observable: bool) -> None:
        """Raise unless trajectories of another goal follow from those of the hidden one."""
        remedy = "set env.achieved=false relabel=none"
        condition = "be false with achieved, as another goal would be shown"
        require(self.label, "observable", observable, not observable, condition, remedy=remedy)
        require(self.label, "reward", reward, reward == "success", "be success with achieved")
        shows_ends = trial_end == "reset_step" or self.num_trials == 1
        require(self.label, "trial_end", trial_end, shows_ends, "be reset_step with achieved")

    def _check_size(self, rooms: RoomsName, size: int) -> None:
        """Raise if there are too few cells for objects and agent."""
        require_choice(self.label, "rooms", rooms, get_args(RoomsName))
        num_objects = self._distribution.num_objects
        smallest = smallest_size(rooms, num_objects + 1, _LARGEST_SIZE)
        if smallest is None:
            condition = f"have fewer objects, as no size with rooms={rooms} has room for them"
            raise ArgumentError(self.label, "level", f"{num_objects} objects", condition)
        condition = f"be {describe_size(rooms, smallest)}, so that {num_objects} objects fit"
        require(self.label, "size", size, size >= smallest, condition)

    def _add_tables(self, view_size: int) -> None:
        game = Game(self._size, view_size, self.device)
        self._game = game
        walls = torch.where(self._rooms.walls, WALL, FLOOR).flatten()
        bare = torch.cat([walls, torch.tensor([EMPTY])]).to(torch.int16)
        steps = torch.arange(self._trial_limit + 1, dtype=torch.float32)
        rewards = 1.0 - 0.9 * (steps / self._trial_limit)
        if self._reward == "success":
            rewards = torch.ones_like(rewards)
        tables = {"_bare_grid": bare, "_rewards": rewards, "_directions": torch.eye(4).bool()}
        if self._shows_achieved:
            goals = canonical({"goal": encoded_goals()})["goal"]
            tables["_goal_hashes"] = entry_hash(goals, 0)
        for name, table in tables.items():
            self.register_buffer(name, table.to(self.device), persistent=False)

    def task_hash(self, task: Tensors) -> Tensor:
        """See `BatchedEnv.task_hash`.

        Goals and rules that are the same have equal hashes, also where they are written in another
        way, such as ``a above b`` and ``b below a``.
        """
        return super().task_hash({**task, **canonical(task)})

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        ruleset = draw_rulesets(fold(task_seed, 0), self._distribution)
        trials = torch.arange(self.num_trials)
        keys = fold(task_seed.unsqueeze(-1), 1, trials)
        cells, doors, pose = draw_layouts(keys, self._rooms, self._distribution.num_objects)
        objects = pack(ruleset["objects"])
        # Places without an object stay free.
        objects = objects.masked_fill(objects == EMPTY, FLOOR)
        task = {
            "goal": ruleset["goal"],
            "objects": objects,
            "layouts": torch.cat([cells, doors, pose.unsqueeze(-1)], -1),
            "program": compile_rules(ruleset["goal"], ruleset["rules"]),
        }
        if self._distribution.num_rules > 0:
            task["rules"] = ruleset["rules"]
        if self._shows_achieved:
            # What the rules add to the hash of a ruleset: its goal is its first entry.
            task["rules_hash"] = self.task_hash(task) - entry_hash(canonical(task)["goal"], 0)
        return task

    def begin(self, task: Tensors) -> Tensors:
        trial = torch.zeros_like(task["task_seed"])
        grid, pose = self._lay_out(task, trial)
        no = torch.zeros_like(trial, dtype=torch.bool)
        state = {
            "grid": grid,
            "pose": pose,
            "pocket": torch.zeros_like(pose, dtype=torch.int16),
            "trial": trial,
            "trial_step": trial.clone(),
            "trial_start": ~no.unsqueeze(-1),
            "ended": no.clone().unsqueeze(-1),
        }
        if self._has_reset_steps:
            # The next step begins a trial.
            state["over"] = no.clone()
        if self._shows_achieved:
            state["achieved"] = torch.zeros(
                len(trial), NUM_PLACES, dtype=torch.int32, device=trial.device
            )
        return state

    def _lay_out(self, task: Tensors, trial: Tensor) -> tuple[Tensor, Tensor]:
        """Return grid and pose at the start of trials ``[N]``."""
        layouts = task["layouts"]
        if self.num_trials == 1:
            layout = layouts[:, 0].to(torch.int64)
        else:
            index = trial.view(-1, 1, 1).expand(-1, 1, layouts.shape[2])
            layout = layouts.gather(1, index)[:, 0].to(torch.int64)
        num_doors = len(self._rooms.doors)
        num_cells = task["objects"].shape[1] + num_doors
        codes = task["objects"]
        if num_doors > 0:
            codes = torch.cat([codes, layout[:, num_cells:-1].to(torch.int16)], 1)
        bare = self._bare_grid.expand(len(trial), -1)
        return bare.scatter(1, layout[:, :num_cells], codes), layout[:, -1].clone()

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        former = state["grid"], state["pose"], state["pocket"]
        grid, pose, pocket = self._game.act(*former, action)
        grid, pocket, is_reached = self._test(task["program"], grid, pose, pocket, action)
        step = state["trial_step"] + 1
        extra: Tensors = {}
        if self._has_reset_steps:
            # The step after the end of a trial only leads to the next one.
            again = state["over"]
            is_reached = is_reached & ~again
            is_over = (is_reached | (step >= self._trial_limit)) & ~again
            trial = state["trial"] + again
            ended = is_over & (trial == self.num_trials - 1)
            extra["over"] = is_over & ~ended
        else:
            is_over = is_reached | (step >= self._trial_limit)
            trial = state["trial"] + is_over
            ended = trial >= self.num_trials
            # The last trial does not begin again: its last timestep is still shown.
            again = is_over & ~ended
        if self._shows_achieved:
            achieved = self._achieved(task, grid, pose, pocket, action)
            extra["achieved"] = achieved.masked_fill(again.unsqueeze(-1), 0)
        if self.num_trials > 1 and self._may_be_any(again):
            new_grid, new_pose = self._lay_out(task, trial.clamp(max=self.num_trials - 1))
            grid = torch.where(again.unsqueeze(-1), new_grid, grid)
            pose = torch.where(again, new_pose, pose)
            pocket = pocket.masked_fill(again, EMPTY)
        reward = self._rewards.index_select(0, step.clamp(max=self._trial_limit)) * is_reached
        changed = {
            "grid": grid,
            "pose": pose,
            "pocket": pocket,
            "trial": trial,
            "trial_step": step.masked_fill(again | ended, 0),
            "trial_start": again.unsqueeze(-1),
            "ended": ended.unsqueeze(-1),
        }
        return {**changed, **extra}, reward.unsqueeze(-1), (ended & is_reached).unsqueeze(-1)

    def _achieved(
        self, task: Tensors, grid: Tensor, pose: Tensor, pocket: Tensor, action: Tensor
    ) -> Tensor:
        """Return the numbers ``[N, 12]`` of the goals on this side that a step has reached."""
        numbers = achieved_goals(self._game.nearby(grid, pose), pocket, action)
        if self.split == "all":
            return numbers
        hashed = self._goal_hashes.take(numbers.long()) + task["rules_hash"].unsqueeze(-1)
        return numbers.masked_fill(is_held_out(hashed) != (self.split == "test"), 0)

    def _test(
        self, program: Tensor, grid: Tensor, pose: Tensor, pocket: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply rules and test goals: return grid, pocket and a mask ``[N]`` of goals reached."""
        if action.is_cpu and not capturing():
            return self._game.test_some(program, grid, pose, pocket, action)
        return self._game.test_all(program, grid, pose, pocket, action)

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        pose = state["pose"]
        seen = {"observation": unpack(self._game.view(state["grid"], pose))}
        if self._shows_achieved:
            seen["achieved"] = state["achieved"]
        if self._shows_direction:
            seen["direction"] = self._directions.index_select(0, pose & 3)
        return seen

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        parts = _one_hot_parts(task["goal"].unsqueeze(1), _NUM_GOAL_KINDS)
        if "rules" in task:
            parts += _one_hot_parts(task["rules"], _NUM_RULE_KINDS)
        return torch.cat(parts, 1)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        The agent is an arrow, with a disc of the colour of what it holds. Cells that it sees are
        brighter.
        """
        state = self.env_state.state
        size = self._size
        pose = int(state["pose"][env_id])
        cells = unpack(state["grid"][env_id, :-1].cpu().contiguous()).view(size, size, 2).numpy()
        pocket = unpack(state["pocket"][env_id].cpu().view(1))[0].tolist()
        seen = np.zeros(size * size + 1, bool)
        seen[self._game.seen_cells(pose).cpu().numpy()] = True
        return draw_grid(cells, pose // 4, pose % 4, pocket, seen[:-1].reshape(size, size))


def _one_hot_parts(encoded: Tensor, num_kinds: int) -> list[Tensor]:
    """Return one-hots of the columns of encodings ``[N, K, 1 + 2 * tiles]``."""
    columns = encoded.to(torch.int64)
    parts = [one_hots(columns[..., 0], num_kinds)]
    parts.append(one_hots(columns[..., 1::2].flatten(1), len(Tile)))
    parts.append(one_hots(columns[..., 2::2].flatten(1), len(Colour)))
    return parts
