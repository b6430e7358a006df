"""Whole episodes under one policy: what learning on-policy asks of a collector.

Every env plays the same number of episodes from its first to its last step before weights may
change, so each trajectory was acted out by one policy, and short episodes are not over-represented.
An env that is done earlier than the others idles: it goes on playing, but nothing of that is kept.
"""

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import set_exploration_type

from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.sync import SyncCollector

_LOOK_EVERY = 16


class EpisodeCollector(SyncCollector):
    """Plays rounds of one complete episode per env and appends their trajectories ``[N, L]`` to
    replay.

    Deterministic and exactly resumable between two calls of `collect`. Arguments and errors are
    those of `SyncCollector`.
    """

    def __init__(self, env: EnvBase, policy: TensorDictModuleBase, replay: Replay) -> None:
        super().__init__(env, policy, replay)

    @torch.no_grad()
    def collect(self, num_steps: int) -> Episodes:
        """Plays rounds until they took at least ``num_steps`` environment steps, over all envs,
        idle ones included.
        """
        rounds: list[Episodes] = []
        while sum(episodes.num_steps for episodes in rounds) < num_steps:
            timestep = self._all_at_start()
            steps: list[TensorDictBase] = []
            playing = torch.ones(
                self.num_envs, dtype=torch.bool, device=timestep.get("is_init").device
            )
            # A look waits for the device: some steps after the last that count are cheaper.
            while (self._waits and len(steps) % _LOOK_EVERY) or playing.any():
                with set_exploration_type(self._mode):
                    timestep = self.policy(timestep)
                step, timestep = self.env.step_and_maybe_reset(timestep)
                steps.append(step)
                playing &= ~step.get(("next", "done")).view(-1)
            self._current = timestep
            rounds.append(self._store(self._stack(steps), first_only=True))
            self.assembler = TrajectoryAssembler()  # what idle envs played is not kept
        return Episodes.merged(rounds)

    def _all_at_start(self) -> TensorDictBase:
        """The first timestep of an episode in every env; those in the middle of one begin
        another.
        """
        if self._current is None:
            return self.env.reset()
        idle = ~self._current.get("is_init").reshape(-1, 1).bool()
        if not idle.any():
            return self._current
        # Envs that are not reset keep the timestep they are given.
        return self.env.reset(self._current.copy().set("_reset", idle))
