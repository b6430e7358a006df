"""Several Gymnasium environments as one: one policy for all of them, as in AMAGO-2's multi-task
POPGym.

AMAGO-2: arXiv 2411.11188; POPGym: arXiv 2303.01859.

=================  ==================  ====================================================================
``observation``    ``[N, F]`` float32  flattened observation, filled up with zeros to that of the largest
``valid_action``   ``[N, 1]`` bool     whether the domain had the action; where numbers of actions differ
``domain``         ``[N, D]`` float32  which domain is played, one-hot; only if asked for
=================  ==================  ====================================================================
"""

from collections.abc import Sequence
from functools import partial

import torch
from yamame.checks import require

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
"""The 27 domains of AMAGO-2: those of POPGym with at most 26 observed numbers and 27 discrete
actions.
"""
_POPGYM_LIMIT = 831  # RepeatFirstHard's; not all of them say how long they may take


class MultiDomain(HostedEnv):
    """Every episode plays a domain drawn uniformly.

    Discrete actions are counted through (row-major where a domain has several at a time); an action
    that the domain does not have does one of its own, drawn by chance. Continuous actions are in
    [-1, 1] and stretched to the domain's bounds; numbers that the domain does not have are ignored.
    A domain's own time limit terminates its episodes.

    Args:
        ids: Registered Gymnasium environments, each with the module that registers it before a
            colon where that must be imported ("popgym:popgym-AutoencodeEasy-v0",
            "yamame_envs:yamame/MazeRunner-v0"), or "popgym" for the 27 domains of AMAGO-2.
        show_domain: Whether the domain is shown; without it, it must be recognised from what
            happens.
        time_limit: Steps of an episode at most; None for the longest limit of a domain, and where
            one is unknown, none, and no ``time``.
        tells_success: Whether the domains' infos hold ``success``.
        num_envs: Episodes played at the same time.
        seed: Names the domains and tasks of all episodes.
        device: Where all tensors live.
        workers: Where the domains run.

    Raises:
        ValueError: If a domain is unknown, or discrete and continuous actions would be mixed.
    """

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
        )
