"""Measure scripted players, whose returns anchor the scores of `conf/suite`.

    python tools/reference_players.py                 # all players, as a Markdown table
    python tools/reference_players.py lake_4x4 pendulum --episodes 512

Players see what an agent sees and remember it, so their results are known to be reachable. Tasks of
this package are held-out tasks with the evaluation's seed; POPGym's have the seeds 0, 1, 2, ...
Pendulum is played in NumPy by value iteration: two positions in a row give the velocity, so the
player without velocities earns the same from the second step on.
"""

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
import yamame
from yamame.evaluation import evaluate
from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame.runs.build import build_env

Cell = tuple[int, int]


class Seen(NamedTuple):
    """Entries of a timestep of one environment."""

    observation: list[float]
    reward: float
    trial_start: bool
    goals: list[list[float]]


class Player(Protocol):
    """Player of one episode."""

    def __call__(self, seen: Seen) -> int:
        """Return the action of a timestep."""


def shortest_way(
    is_open: Callable[[Cell], bool], moves: Sequence[Cell], start: Cell, end: Cell
) -> int:
    """Return the first action of a shortest way between two cells; -1 if there is none."""
    first = {start: -1}
    waiting = deque([start])
    while waiting:
        cell = waiting.popleft()
        if cell == end:
            return first[cell]
        for action, (down, right) in enumerate(moves):
            place = cell[0] + down, cell[1] + right
            if place not in first and is_open(place):
                first[place] = action if cell == start else first[cell]
                waiting.append(place)
    return -1


class LakePlayer:
    """Takes the shortest way around the holes that it remembers."""

    moves = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))

    def __init__(self, size: int) -> None:
        self.size = size
        self.holes: set[Cell] = set()
        self.target: Cell | None = None

    def __call__(self, seen: Seen) -> int:
        """Return the action of a timestep."""
        row, column, *_ = (round(value * self.size) for value in seen.observation)
        if seen.trial_start and seen.reward == 0 and self.target is not None:
            self.holes.add(self.target)
        end = self.size - 1, self.size - 1
        action = max(0, shortest_way(self._is_open, self.moves, (row, column), end))
        self.target = row + self.moves[action][0], column + self.moves[action][1]
        return action

    def _is_open(self, cell: Cell) -> bool:
        return min(cell) >= 0 and max(cell) < self.size and cell not in self.holes


class RoomPlayer:
    """Visits the nearest cell that may have the key, then the door, and remembers both."""

    moves = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))

    def __init__(self, size: int) -> None:
        cells = {(row, column) for row in range(size) for column in range(size)}
        self.size = size
        self.candidates = {False: set(cells), True: set(cells)}
        self.had_key = False
        self.target: Cell | None = None

    def __call__(self, seen: Seen) -> int:
        """Return the action of a timestep."""
        row, column = (round(value * self.size) for value in seen.observation[:2])
        if self.target is not None:
            places = self.candidates[self.had_key]
            if seen.reward > 0:
                self.candidates[self.had_key] = {self.target}
            elif len(places) > 1:
                places.discard(self.target)
        self.had_key = seen.observation[2] > 0.5

        def distance(cell: Cell) -> tuple[int, Cell]:
            return abs(cell[0] - row) + abs(cell[1] - column), cell

        goal = min(self.candidates[self.had_key], key=distance)
        action = 4
        for index, (down, right) in enumerate(self.moves[:4]):
            if distance(goal)[0] > abs(goal[0] - row - down) + abs(goal[1] - column - right):
                action = index
        self.target = row + self.moves[action][0], column + self.moves[action][1]
        return action


class RoadPlayer:
    """Tries branches and buttons in order, and remembers them."""

    def __init__(self) -> None:
        self.branches: dict[int, int] = {}
        self.buttons = [3, 4, 5, 6]
        self.last: tuple[int, int] | None = None

    def __call__(self, seen: Seen) -> int:
        """Return the action of a timestep."""
        position, _, at_fork = (round(value) for value in seen.observation)
        if self.last is not None and position == 0:
            self._learn(*self.last)
        goals = [goal[0] for goal in seen.goals if goal[0] not in (GOAL_COMPLETED, GOAL_PAD)]
        if at_fork:
            action = self.branches.setdefault(position, 1)
        else:
            action = self.buttons[0] if goals and position == goals[0] else 0
        self.last = position, action
        return action

    def _learn(self, position: int, action: int) -> None:
        # The action led back to the start.
        if action == 1:
            self.branches[position] = 2
        elif action >= 3:
            self.buttons.remove(action)


class MazePlayer:
    """Takes the shortest way to the next goal through all cells that it does not know as walls."""

    moves = ((0, -1), (-1, 0), (0, 1), (1, 0))

    def __init__(self, size: int) -> None:
        self.size = size
        self.walls: set[Cell] = set()

    def __call__(self, seen: Seen) -> int:
        """Return the action of a timestep."""
        row, column, *sights = (round(value * self.size) for value in seen.observation)
        for (down, right), length in zip(self.moves, sights, strict=True):
            self.walls.add((row + down * (length + 1), column + right * (length + 1)))
        for goal in seen.goals:
            if goal[0] not in (GOAL_COMPLETED, GOAL_PAD):
                end = round(goal[0]), round(goal[1])
                return max(0, shortest_way(self._is_open, self.moves, (row, column), end))
        return 4

    def _is_open(self, cell: Cell) -> bool:
        return min(cell) > 0 and max(cell) < self.size - 1 and cell not in self.walls


def play_held_out(settings: str, make: Callable[[], Player], num_episodes: int) -> np.ndarray:
    """Play held-out tasks of the evaluation's seed.

    Returns:
        ``[2]``: the mean return and the mean success.
    """
    cfg = yamame.compose(*settings.split())
    seed = cfg.evaluation.seed
    env = build_env(cfg, num_envs=num_episodes, seed=seed, held_out=True)
    players: list[Player] = [make() for _ in range(num_episodes)]

    def act(timestep: Any) -> Any:
        goals = timestep.get("goal", None)
        actions = []
        for row, player in enumerate(players):
            if timestep["is_init"][row]:
                players[row] = player = make()
            seen = Seen(
                timestep["observation"][row].tolist(),
                timestep["prev_reward"][row].item(),
                bool(timestep["trial_start"][row]),
                [] if goals is None else goals[row].tolist(),
            )
            actions.append(player(seen))
        return timestep.set("action", torch.tensor(actions))

    summary = evaluate(act, env, seed=seed).summary()
    return np.array([summary["return_mean"], summary.get("success_mean", np.nan)])


def play_bandit(env: Any, rng: np.random.Generator) -> float:
    """Play POPGym's bandit by Thompson sampling with uniform priors."""
    paid, failed = np.ones(env.action_space.n), np.ones(env.action_space.n)
    total, over = 0.0, False
    while not over:
        arm = int(rng.beta(paid, failed).argmax())
        seen, reward, terminated, truncated, _ = env.step(arm)
        paid[arm] += seen
        failed[arm] += 1 - seen
        total += reward
        over = terminated or truncated
    return total


def play_higher_lower(env: Any, first: int) -> float:
    """Guess by counting the cards that are left, which is optimal: guesses change no card."""
    left = np.full(13, 4)
    left[first] -= 1
    card, total, over = first, 0.0, False
    while not over:
        is_lower = left[:card].sum() > left[card + 1 :].sum()
        card, reward, over, _, _ = env.step(int(is_lower))
        left[card] -= 1
        total += reward
    return total


def play_concentration(env: Any, observation: np.ndarray) -> float:
    """Match cards that were seen; turn over the first unknown card otherwise."""
    hidden = env.unwrapped.facedown_card
    colors: dict[int, int] = {}
    matched: set[int] = set()
    total, over = 0.0, False
    while not over:
        known = [card for card in colors if card not in matched]
        unknown = [card for card in range(len(observation)) if card not in colors]
        pairs = [(a, b) for a, b in combinations(known, 2) if colors[a] == colors[b]]
        first = pairs[0][0] if pairs else unknown[0]
        second = pairs[0][1] if pairs else None
        for turn in range(2):
            if turn == 1 and second is None:
                alike = [c for c in known if colors[c] == colors[first] and c != first]
                second = alike[0] if alike else next(c for c in unknown if c != first)
            card = first if turn == 0 else second
            observation, reward, terminated, truncated, _ = env.step(card)
            total += reward
            if observation[card] != hidden:
                colors[card] = int(observation[card])
            over = terminated or truncated
            if over:
                return total
        if colors[first] == colors[second]:
            matched |= {first, second}
    return total


def play_minesweeper(env: Any, _: Any) -> float:
    """Uncover the field with the fewest mines among all layouts that agree with what was seen."""
    rows, columns = env.action_space.nvec
    fields = [(row, column) for row in range(rows) for column in range(columns)]
    layouts = [set(mines) for mines in combinations(fields, env.unwrapped.num_mines)]
    uncovered: set[Cell] = set()
    total, over = 0.0, False
    while not over:
        closed = [field for field in fields if field not in uncovered]
        field = min(closed, key=lambda field: sum(field in mines for mines in layouts))
        count, reward, terminated, truncated, _ = env.step(field)
        total += reward
        uncovered.add(field)
        over = terminated or truncated
        if not terminated:
            layouts = [m for m in layouts if field not in m and _num_around(field, m) == count]
    return total


def _num_around(field: Cell, mines: set[Cell]) -> int:
    return sum(abs(field[0] - r) <= 1 and abs(field[1] - c) <= 1 for r, c in mines)


def play_battleship(env: Any, _: Any) -> float:
    """Shoot where most placements of ships are possible; those over hits count 20 times each."""
    size, ships = env.unwrapped.board_size, env.unwrapped.ship_sizes
    shots: dict[Cell, bool] = {}
    total, over = 0.0, False
    while not over:
        weights = np.zeros((size, size))
        for length in ships:
            for row in range(size):
                for column in range(size - length + 1):
                    for cells in (
                        [(row, column + i) for i in range(length)],
                        [(column + i, row) for i in range(length)],
                    ):
                        if all(shots.get(cell, True) for cell in cells):
                            weight = 20.0 ** sum(cell in shots for cell in cells)
                            for cell in cells:
                                weights[cell] += weight
        for cell in shots:
            weights[cell] = -1.0
        target = np.unravel_index(weights.argmax(), weights.shape)
        target = int(target[0]), int(target[1])
        seen, reward, terminated, truncated, _ = env.step(target)
        shots[target] = bool(seen)
        total += reward
        over = terminated or truncated
    return total


def play_popgym(name: str, play: Callable[..., float], num_episodes: int) -> np.ndarray:
    """Play episodes of a POPGym environment and return their mean return, ``[1]``."""
    import popgym.envs

    env = getattr(popgym.envs, name)()
    returns = []
    for seed in range(num_episodes):
        observation, _ = env.reset(seed=seed)
        returns.append(play(env, observation))
    return np.array([np.mean(returns)])


def best_pendulum(num_episodes: int) -> float:
    """Compute the mean return of 200 steps of Gymnasium's Pendulum-v1 by value iteration.

    A grid of 241 angles, 161 velocities and 17 torques; the last 200 greedy steps are simulated.
    """
    angles = np.linspace(-np.pi, np.pi, 241)
    speeds = np.linspace(-8.0, 8.0, 161)
    torques = np.linspace(-2.0, 2.0, 17)
    grid = np.meshgrid(angles, speeds, indexing="ij")
    steps = [_pendulum_step(*grid, torque) for torque in torques]
    plans = []
    value = np.zeros_like(grid[0])
    for _ in range(200):
        plans.append(value)
        choices = [
            reward + _interpolate(value, angles, speeds, angle, speed)
            for angle, speed, reward in steps
        ]
        value = np.max(choices, 0)

    rng = np.random.default_rng(0)
    angle = rng.uniform(-np.pi, np.pi, num_episodes)
    speed = rng.uniform(-1.0, 1.0, num_episodes)
    total = np.zeros(num_episodes)
    for plan in reversed(plans):
        outcomes = [_pendulum_step(angle, speed, torque) for torque in torques]
        worth = [r + _interpolate(plan, angles, speeds, a, s) for a, s, r in outcomes]
        best = np.argmax(worth, 0), np.arange(num_episodes)
        angle, speed, reward = (np.array(part)[best] for part in zip(*outcomes, strict=True))
        total += reward
    return float(total.mean())


def _pendulum_step(angle: np.ndarray, speed: np.ndarray, torque: float) -> tuple[np.ndarray, ...]:
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
    angle = (angle + speed * 0.05 + np.pi) % (2 * np.pi) - np.pi
    return angle, speed, reward


def _interpolate(
    value: np.ndarray, angles: np.ndarray, speeds: np.ndarray, angle: np.ndarray, speed: np.ndarray
) -> np.ndarray:
    """Interpolate linearly between the points of the grid."""
    x = (angle - angles[0]) / (angles[1] - angles[0])
    y = (speed - speeds[0]) / (speeds[1] - speeds[0])
    i = np.clip(x.astype(int), 0, len(angles) - 2)
    j = np.clip(y.astype(int), 0, len(speeds) - 2)
    right, above = x - i, y - j
    lower = value[i, j] * (1 - right) + value[i + 1, j] * right
    upper = value[i, j + 1] * (1 - right) + value[i + 1, j + 1] * right
    return lower * (1 - above) + upper * above


def play_fetch_reach(num_episodes: int) -> np.ndarray:
    """Move the gripper straight to the goal; returns the share of episodes that reach it."""
    env = gymnasium.make("gymnasium_robotics:FetchReach-v4")
    wins = []
    for seed in range(num_episodes):
        observation, _ = env.reset(seed=seed)
        has_won, over = False, False
        while not over:
            way = 10 * (observation["desired_goal"] - observation["achieved_goal"])
            action = np.append(way, 0.0).clip(-1, 1).astype(np.float32)
            observation, _, terminated, truncated, info = env.step(action)
            has_won = has_won or bool(info["is_success"])
            over = terminated or truncated
        wins.append(has_won)
    return np.array([np.nan, np.mean(wins)])


def pendulum(num_episodes: int) -> np.ndarray:
    """Return the best return of Pendulum-v1, ``[1]``."""
    return np.array([best_pendulum(8 * num_episodes)])


def scaled_pendulum(num_episodes: int) -> np.ndarray:
    """Return the best return of Pendulum-v1 on the scale of PositionOnlyPendulumEasy, ``[1]``."""
    scale = 16.2736044 / 2
    return 1 + pendulum(num_episodes) / scale / 200


def bandits(num_episodes: int) -> np.ndarray:
    """Return the mean return of Thompson sampling in POPGym's bandit, ``[1]``."""
    rng = np.random.default_rng(0)
    play = lambda env, _: play_bandit(env, rng)  # noqa: E731
    return play_popgym("MultiarmedBanditEasy", play, num_episodes)


def held_out(settings: str, make: Callable[[], Player]) -> Callable[[int], np.ndarray]:
    """Return a function of the number of episodes that plays held-out tasks."""
    return lambda num_episodes: play_held_out(settings, make, num_episodes)


def popgym_player(name: str, play: Callable[..., float]) -> Callable[[int], np.ndarray]:
    """Return a function of the number of episodes that plays a POPGym environment."""
    return lambda num_episodes: play_popgym(name, play, num_episodes)


PLAYERS: dict[str, Callable[[int], np.ndarray]] = {
    "maze_9x9_two_goals": held_out(
        "env=mazerunner env.size=9 env.num_goals=2 env.time_limit=100", lambda: MazePlayer(9)
    ),
    "maze_11x11_three_goals": held_out(
        "env=mazerunner env.size=11 env.num_goals=3 env.time_limit=150", lambda: MazePlayer(11)
    ),
    "lake_4x4": held_out("env=frozenlake env.size=4 env.num_trials=5", lambda: LakePlayer(4)),
    "lake_5x5": held_out("env=frozenlake env.size=5 env.num_trials=3", lambda: LakePlayer(5)),
    "dark_room_5x5": held_out(
        "env=dark_key_to_door env.size=5 env.trial_limit=15 env.time_limit=200",
        lambda: RoomPlayer(5),
    ),
    "short_road": held_out(
        "env=package_delivery env.length=6 env.min_packages=3 env.max_packages=3 env.time_limit=30",
        RoadPlayer,
    ),
    "road_10": held_out(
        "env=package_delivery env.length=10 env.min_packages=1 env.max_packages=2 "
        "env.time_limit=50",
        RoadPlayer,
    ),
    "MultiarmedBanditEasy": bandits,
    "HigherLowerEasy": popgym_player("HigherLowerEasy", play_higher_lower),
    "ConcentrationEasy": popgym_player("ConcentrationEasy", play_concentration),
    "MineSweeperEasy": popgym_player("MineSweeperEasy", play_minesweeper),
    "BattleshipEasy": popgym_player("BattleshipEasy", play_battleship),
    "pendulum": pendulum,
    "PositionOnlyPendulumEasy": scaled_pendulum,
    "FetchReach": play_fetch_reach,
}


def main() -> None:
    """Print one line per player."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(PLAYERS), help="names of tasks")
    parser.add_argument("--episodes", type=int, default=512)
    options = parser.parse_args()
    print("| task | return | success |\n|---|---|---|")
    for task in options.tasks:
        mean, success = [*PLAYERS[task](options.episodes), np.nan][:2]
        print(f"| {task} | {mean:.3f} | {success:.3f} |", flush=True)


if __name__ == "__main__":
    main()
