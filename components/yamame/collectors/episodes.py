"""Whole episodes under one policy: what learning on-policy asks of a collector.

Every row plays the same number of episodes from its first to its last step before weights may change, so each
trajectory was acted out by one policy, and short episodes are not over-represented. A row that is done earlier than the
others idles: it goes on playing, but nothing of that is kept.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.agent import InContextPolicy
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.player import Player


class EpisodeCollector:
    """Plays rounds of one complete episode per row and appends their trajectories to replay.

    What is stored is told by `Player`. Deterministic and exactly resumable between two calls of `collect`.

    Args:
        env: Environment with one batch dimension ``[N]``, which emits ``is_init``.
        policy: The policy to act with; copied.
        replay: Receives the trajectories ``[N, L]`` of every round through its ``extend``.

    Raises:
        ValueError: If the environment has another number of batch dimensions, or no ``is_init``.
    """

    def __init__(self, env: EnvBase, policy: InContextPolicy, replay: Replay) -> None:
        self.player = _RoundPlayer(env, policy, exploration=None, owner="EpisodeCollector")
        self.replay = replay

    @property
    def policy(self) -> InContextPolicy:
        """The copy that acts."""
        return self.player.policy

    def collect(self, num_steps: int) -> Episodes:
        """Plays rounds until they took at least ``num_steps`` environment steps, over all rows, idle ones included."""
        rounds: list[Episodes] = []
        while sum(episodes.num_steps for episodes in rounds) < num_steps:
            episodes, finished = self.player.play_round()
            if finished is not None:
                self.replay.extend(finished)
            rounds.append(episodes)
        success = [episodes.success for episodes in rounds if episodes.success is not None]
        return Episodes(
            num_steps=sum(episodes.num_steps for episodes in rounds),
            returns=torch.cat([episodes.returns for episodes in rounds]),
            lengths=torch.cat([episodes.lengths for episodes in rounds]),
            success=torch.cat(success) if success else None,
            num_aborted=sum(episodes.num_aborted for episodes in rounds),
        )

    def max_appended(self, num_steps: int) -> int:
        """The most timesteps that `collect` may append: unknown before the episodes are played, so without a bound."""
        raise RuntimeError("EpisodeCollector: max_appended cannot be told before episodes are played")

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy."""
        self.player.update_policy_weights_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Environment, current observation and the policy."""
        return self.player.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, in a collector built from the same settings."""
        self.player.load_state_dict(state)

    def shutdown(self) -> None:
        """Closes the environment."""
        self.player.close()


class _RoundPlayer(Player):
    """A `Player` that plays one episode of every row."""

    @torch.no_grad()
    def play_round(self) -> tuple[Episodes, TensorDictBase | None]:
        """Every row from the start of an episode to its end; what ended and its trajectories, if not all failed."""
        current = self._all_at_start()
        kept: dict[NestedKey, list[Tensor]] = {}
        dones, terminals = [], []
        playing = torch.ones(self.num_rows, dtype=torch.bool, device=current.get("is_init").device)
        while playing.any():
            stepped, current = self.env.step_and_maybe_reset(self.policy(current))
            for key, value in self._record(stepped):
                kept.setdefault(key, []).append(value)
            arrived = stepped.get("next")
            ends = arrived.get("done").view(-1) & playing
            dones.append(ends)
            if ends.any():
                terminals.append(arrived.select(*self._keys)[ends])
            playing = playing & ~ends
        self._current = current
        steps = TensorDict({}, [len(dones), self.num_rows], device=self.env.device)
        for key, values in kept.items():
            steps.set(key, torch.stack(values))
        finished = self.assembler.add(steps, torch.stack(dones), torch.cat(terminals))
        self.assembler = type(self.assembler)()  # what idle rows played is not kept
        finished, num_aborted = self._without_aborted(finished)
        return self._episodes(len(dones) * self.num_rows, finished, num_aborted), finished

    def _all_at_start(self) -> TensorDictBase:
        """The first timestep of an episode in every row; rows in the middle of one begin another."""
        current = self._current
        if current is None:
            return self.env.reset()
        idle = ~current.get("is_init").reshape(-1, 1).bool()
        if not idle.any():
            return current
        # Rows that are not reset keep what they are given.
        return self.env.reset(current.copy().set("_reset", idle))
