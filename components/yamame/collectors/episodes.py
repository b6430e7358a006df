"""Whole episodes under one policy, for learning on-policy."""

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from yamame.checks import ArgumentError
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.sync import SyncCollector

_CHECK_INTERVAL = 16
"""Steps on a device between two checks of whether all envs have finished an episode."""
_UNLIMITED = 2**31
"""Steps from which the bound of a spec is that of its dtype."""
_PATIENCE = 10_000
"""Steps without an end of an episode after which a round counts as endless."""


class EpisodeCollector(SyncCollector):
    """Plays rounds of one complete episode per env and stores their trajectories ``[N, L]``.

    Every env plays the same number of episodes from the first to the last step before weights may
    change. So each trajectory comes from one policy, and short episodes are not over-represented.
    An env that finishes earlier than the others idles: it keeps playing, but its steps are not
    stored.

    Deterministic and exactly resumable between two calls of `collect`. Arguments and errors are
    those of `SyncCollector`. `collect` also raises an `ArgumentError` if no env ends an episode
    within 10,000 steps, unless the environment declares a longer limit.
    """

    def __init__(self, env: EnvBase, policy: TensorDictModuleBase, replay: Replay) -> None:
        super().__init__(env, policy, replay)
        self._patience = _PATIENCE
        bound = None
        if "step_index" in env.observation_spec.keys():
            bound = getattr(env.observation_spec["step_index"].space, "high", None)
        # Episodes with a limit end, however late. An unlimited spec has the bound of its dtype.
        if bound is not None and int(bound.max()) < _UNLIMITED:
            self._patience = max(_PATIENCE, int(bound.max()) + 1)

    @torch.no_grad()
    def collect(self, num_steps: int) -> Episodes:
        """Play rounds until all envs together took at least ``num_steps`` steps, idle ones too."""
        rounds: list[Episodes] = []
        steps_taken = 0
        while steps_taken < num_steps:
            episodes = self._play_round()
            rounds.append(episodes)
            steps_taken += episodes.num_steps
        return Episodes.merged(rounds)

    def _play_round(self) -> Episodes:
        timestep = self._all_at_start()
        steps: list[TensorDictBase] = []
        device = timestep.get("is_init").device
        is_playing = torch.ones(self.num_envs, dtype=torch.bool, device=device)
        # A check synchronizes with the device; a few steps that do not count are cheaper.
        while (self._is_async_device and len(steps) % _CHECK_INTERVAL) or is_playing.any():
            step, timestep = self._take_step(timestep)
            steps.append(step)
            is_playing &= ~step.get(("next", "done")).view(-1)
            if len(steps) == self._patience and bool(is_playing.all()):
                self._refuse_endless()
        self._current = timestep
        episodes = self._store(self._entries.stack(steps), first_only=True)
        # Steps of idle envs are dropped.
        self.assembler = TrajectoryAssembler()
        return episodes

    def _refuse_endless(self) -> None:
        condition = f"end an episode within {self._patience} steps, because whole ones are learned"
        remedy = "set env.time_limit=N"
        raise ArgumentError(type(self).__name__, "env", "no end", condition, remedy=remedy)

    def _all_at_start(self) -> TensorDictBase:
        """Return the first timestep of an episode in every env; reset envs within an episode."""
        if self._current is None:
            return self.env.reset()
        is_midway = ~self._current.get("is_init").reshape(-1, 1).bool()
        if not is_midway.any():
            return self._current
        # Envs that are not reset keep the timestep they are given.
        return self.env.reset(self._current.copy().set("_reset", is_midway))
