"""Several Gymnasium environments as one, as in AMAGO-2's multi-task POPGym.

AMAGO-2: arXiv 2411.11188; POPGym: arXiv 2303.01859.

* ``observation`` ``[N, F]`` float32: flattened observation, padded with zeros to the largest one.
* ``valid_action`` ``[N, 1]`` bool: the domain has the previous action; only if numbers of actions
  differ.
* ``domain`` ``[N, D]`` float32: current domain, one-hot; only with ``show_domain``.
"""

from collections.abc import Sequence
from functools import partial

import torch
from yamame.checks import check_bounds, require
from yamame.spaces.arrays import Outside

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.domains import Domains, survey

_LEVELS = ("Easy", "Medium", "Hard")
_POPGYM = (
    *("Autoencode", "RepeatPrevious", "RepeatFirst", "CountRecall", "HigherLower"),
    *("PositionOnlyCartPole", "VelocityOnlyCartpole", "NoisyPositionOnlyCartPole"),
)
POPGYM_SUITE = tuple(
    f"popgym:popgym-{name}-v0"
    for name in (
        *(game + level for game in _POPGYM for level in _LEVELS),
        *("MultiarmedBanditEasy", "MultiarmedBanditMedium", "MineSweeperEasy"),
    )
)
"""Domains of AMAGO-2: those of POPGym with up to 26 observed numbers and 27 discrete actions."""
# Limit of RepeatFirstHard. Not all of them have a known limit.
_POPGYM_LIMIT = 831


class MultiDomain(HostedEnv):
    """Environment whose every episode plays a domain drawn uniformly.

    Discrete actions are enumerated (row-major if a domain has several at a time). An action that
    the domain does not have is replaced by a random one. Continuous actions are in [-1, 1] and
    scaled to the bounds of the domain; superfluous numbers are ignored. The time limit of a domain
    terminates its episodes.

    Args:
        ids: Registered Gymnasium environments, each with the module that registers it before a
            colon where that must be imported ("popgym:popgym-AutoencodeEasy-v0",
            "yamame_envs:yamame/MazeRunner-v0"), or "popgym" for the 27 domains of AMAGO-2.
        show_domain: Observe the domain. Without it, it must be inferred.
        time_limit: Largest number of steps of an episode. None: the longest limit of a domain; if
            one is unknown, there is no limit, and no ``time``.
        tells_success: True if the infos of the domains hold ``success``.
        num_envs: Number of episodes, played at the same time.
        seed: Seed of the domains and tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.
        bounds: Numbers outside of the bounds of their space, ``warn``, ``clip`` or ``raise``, see
            `yamame_envs.HostedEnv`.

    Raises:
        ValueError: A domain is unknown, or discrete and continuous actions would be mixed.
    """

    @check_bounds
    def __init__(
        self,
        *,
        ids: str | Sequence[str] = ("CartPole-v1", "Acrobot-v1"),
        show_domain: bool = False,
        time_limit: int | None = None,
        tells_success: bool = False,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
        bounds: Outside = "warn",
    ) -> None:
        names = (
            (POPGYM_SUITE if ids == "popgym" else (ids,)) if isinstance(ids, str) else tuple(ids)
        )
        require(self.label, "ids", names, len(names) > 0, "name at least one environment")
        common = survey(names)
        longest = _POPGYM_LIMIT if names == POPGYM_SUITE else common.limit
        super().__init__(
            partial(Domains, common=common, show_domain=show_domain),
            num_envs=num_envs,
            time_limit=longest if time_limit is None else time_limit,
            success="success" if tells_success else None,
            seed=seed,
            device=device,
            workers=workers,
            bounds=bounds,
        )
