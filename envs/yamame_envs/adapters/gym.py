"""Any environment that is registered with Gymnasium."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import gymnasium
import torch

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.adapters.in_process import EnvSpaces
from yamame_envs.adapters.registered import find, make_registered
from yamame_envs.adapters.workers import Workers


class Gym(HostedEnv):
    """Environments of one Gymnasium id.

    What is observed stands below ``observation``: a tensor, or for ``Dict`` and ``Tuple`` spaces one per entry.

    Args:
        id: A registered id, such as ``"CartPole-v1"``; ``"module:id"`` imports a module first, which registers
            it.
        settings: Keyword arguments of ``gymnasium.make``.
        time_limit: Steps after which an episode is terminated, which the agent can see coming (``time``).
            ``"registered"``: the limit that the id was registered with, if it was. None: that limit is not
            shown and truncates episodes.
        num_envs: N, at least 1.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.
        workers: Where envs are played, and what becomes of their failures.

    Raises:
        ValueError: If there is no such environment, if it cannot be made with these settings or needs a package
            that is not installed, or if its spaces cannot be turned into tensors.

    >>> env = Gym(id="CartPole-v1", num_envs=2)
    >>> env.rollout(3)["observation"].shape
    torch.Size([2, 3, 4])
    """

    _generic = True

    def __init__(
        self,
        *,
        id: str = "CartPole-v1",
        settings: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | Literal["registered"] | None = "registered",
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
    ) -> None:
        self._id, self._settings = id, dict(settings)
        limit = self._registered_limit() if time_limit == "registered" else time_limit
        super().__init__(
            partial(make_registered, id, self._settings, limited=time_limit is None),
            num_envs=num_envs,
            time_limit=limit,
            seed=seed,
            device=device,
            workers=workers,
        )

    @property
    def label(self) -> str:
        """What errors call this environment."""
        return f"Gym({self._id!r})"

    def _registered_limit(self) -> int | None:
        try:
            limit: int | None = find(self._id).max_episode_steps
        except ImportError as error:
            raise MissingExtra(
                f"Gym: id must be of a package that is installed or in this directory, got {self._id!r}: {error}"
            ) from error
        except gymnasium.error.Error as error:
            raise ValueError(
                "Gym: id must be registered with Gymnasium ('module:id' imports the module that does it), got "
                f"{self._id!r}: {error}"
            ) from error
        return limit

    def _read(self, tells_success: bool) -> EnvSpaces:
        try:
            return super()._read(tells_success)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"{self.label}: its packages must be installed: {error}") from error
        except (TypeError, gymnasium.error.Error) as error:
            raise ValueError(f"{self.label}: settings must suit it, got {self._settings}: {error}") from error
