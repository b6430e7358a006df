"""MiniGrid and BabyAI: small worlds of rooms, doors and objects, with a mission in words.

Levels: Chevalier-Boisvert et al., arXiv 2306.13831 and 1810.08272. One policy for a whole family of
levels, each episode on one of them, is the setting of AMAGO-2, arXiv 2411.11188.

* ``image`` ``[N, h, w, 3]`` int64: objects, colours and states of cells, with one vocabulary for
  the three: 0..10 objects, 11..16 colours, 17..20 states (of a door, or the agent's direction).
  With pixels, uint8 ``[N, 3, 63, 63]``.
* ``mission`` ``[N, W]`` int64: words of the mission, then blanks (0); 1 is an unknown word.
* ``direction`` ``[N, 4]`` float32: direction of the agent, one-hot: east, south, west, north.
* ``clock`` ``[N, 1]`` float32: steps taken / step limit of this episode; only if the limits of
  levels differ, in place of ``time``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
from yamame.checks import require, require_choice

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.minigrid_agent import GridLevels, View
from yamame_envs.suites.minigrid_levels import Level, find_levels, inspect

Split = Literal["train", "test"]

_BABYAI_SIDE = 22
_SEEDS = 2**31


class MiniGrid(HostedEnv):
    """Level of MiniGrid or BabyAI, or several of which every episode draws one.

    Every episode has its own layout.

    Actions: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done. Reward as in
    the level: 1 - 0.9 * steps / limit for the mission (success), else 0. A level's own limit
    terminates its episodes. Where the limit is the same in all episodes it is the time limit and
    shown as ``time``.

    Args:
        id: A registered level, several, or "babyai": all levels of BabyAI except those with several
            objects and most of those with sequences, as in AMAGO-2.
        view: Content of ``image``: the cells in sight, the whole map, or either as pixels. The map
            is as large as the largest of the levels, and 22 x 22 at least where BabyAI's are among
            them.
        mission_length: Largest number W of words of ``mission``. Sequences need more than others.
        layouts: Number of seeds from which layouts of a level are generated in training. None: all
            seeds. Different seeds may generate the same layout: of ``MiniGrid-MemoryS7-v0``
            there are 16.
        split: Seeds of layouts: those of training (``train``), or all others (``test``).
            Training may meet the same layouts, so `novelty` is None.
        num_envs: Number of agents, played at the same time.
        seed: Seed of the levels and layouts of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ValueError: A number is out of its range or a level unknown.
        MissingExtra: Minigrid is not installed.
    """

    def __init__(
        self,
        *,
        id: str | Sequence[str] = "MiniGrid-MemoryS7-v0",
        view: View = "partial",
        mission_length: int = 17,
        layouts: int | None = None,
        split: Split = "train",
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        names = find_levels(id)
        require_choice(self.label, "view", view, get_args(View))
        require_choice(self.label, "split", split, get_args(Split))
        known = [inspect(name) for name in names]
        words = max(each.num_words for each in known)
        require(
            self.label,
            "mission_length",
            mission_length,
            mission_length >= words,
            f"be at least {words}",
        )
        limits = {each.limit for each in known}
        same = limits.pop() if len(limits) == 1 else None
        make = partial(
            GridLevels,
            levels=names,
            view=view,
            cells=self._cells(names, known, view),
            mission_length=mission_length,
            layouts=self._layout_seeds(layouts, split),
            show_clock=same is None,
        )
        super().__init__(
            make,
            num_envs=num_envs,
            time_limit=same,
            success="success",
            seed=seed,
            device=device,
            workers=workers,
        )

    @classmethod
    def _layout_seeds(cls, layouts: int | None, split: Split) -> tuple[int, int]:
        if layouts is None:
            require(
                cls.__name__,
                "split",
                split,
                split == "train",
                "be 'train' without a number of layouts",
            )
            return 0, _SEEDS
        require(cls.__name__, "layouts", layouts, 1 <= layouts < _SEEDS, f"be in 1..{_SEEDS - 1}")
        return (0, layouts) if split == "train" else (layouts, _SEEDS)

    @classmethod
    def _cells(cls, names: tuple[str, ...], known: list[Level], view: View) -> int:
        if view == "full":
            least = _BABYAI_SIDE if any(name.startswith("BabyAI-") for name in names) else 0
            return max(least, *(each.side for each in known))
        views = {each.view for each in known}
        require(cls.__name__, "id", sorted(views), len(views) == 1, "have views of one size")
        return views.pop()
