"""Acting and learning in turn, in one process: deterministic, and exactly resumable."""

from collections.abc import Mapping
from typing import Any, Literal

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from yamame.agent import InContextPolicy
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.player import Player


class SyncCollector:
    """Steps a batched environment with its own copy of a policy and appends finished trajectories to replay.

    What is stored is told by `Player`.

    Args:
        env: Environment with one batch dimension ``[N]``, which emits ``is_init``.
        policy: The policy to act with; copied.
        replay: Receives finished trajectories ``[E, L]`` through its ``extend``.
        exploration: Changes the policy's action before it is executed; the executed action is what is stored. Its
            ``step(num_env_steps)`` is called after every `collect`.
        greedy: Act by the most probable action; exploration still changes it.
        autocast: Precision in which the acting policy encodes timesteps and history and remembers it, where a processor
            is faster so; None for that of the weights. Weights and what is stored keep theirs.
        compile_policy: Compile what of the acting policy's step is faster so: attention over memory, the gates of a
            GRU, products of few rows in bfloat16; on a CPU. Changes the last bits.
        cuda_graph: Record the acting policy's decisions, all but the draw, as CUDA graphs, and replay them.

    Raises:
        ValueError: If the environment has another number of batch dimensions, or no ``is_init``, or ``autocast`` is
            unknown, or something is to be compiled or recorded and cannot be.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: InContextPolicy,
        replay: Replay,
        *,
        exploration: TensorDictModuleBase | None = None,
        greedy: bool = False,
        autocast: Literal["bfloat16"] | None = None,
        compile_policy: bool = False,
        cuda_graph: bool = False,
    ) -> None:
        self.player = Player(
            env,
            policy,
            exploration=exploration,
            owner="SyncCollector",
            greedy=greedy,
            autocast=autocast,
            compile_policy=compile_policy,
            cuda_graph=cuda_graph,
        )
        self.replay = replay

    @property
    def policy(self) -> InContextPolicy:
        """The copy that acts."""
        return self.player.policy

    def collect(self, num_steps: int) -> Episodes:
        """Takes at least ``num_steps`` environment steps, over all rows, and appends the episodes that ended."""
        episodes, finished = self.player.play(num_steps)
        if self.player.exploration is not None:
            self.player.exploration.step(episodes.num_steps)
        if finished is not None:
            self.replay.extend(finished)
        return episodes

    def max_appended(self, num_steps: int) -> int:
        """The most timesteps that `collect` of ``num_steps`` may append: every step an episode with two of them."""
        num_rows = self.player.num_rows
        return self.player.assembler.num_open + 2 * (-(-num_steps // num_rows) * num_rows)

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy. Its memory survives."""
        self.player.update_policy_weights_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Environment, current observation, open episodes, weights and memory of the policy, exploration."""
        return self.player.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, in a collector built from the same settings."""
        self.player.load_state_dict(state)

    def shutdown(self) -> None:
        """Closes the environment."""
        self.player.close()
