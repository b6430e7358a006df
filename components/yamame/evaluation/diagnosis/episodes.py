"""Episodes as an agent's trajectory encoder met them: what every diagnosis of memory reads.

===============  ================  ========  ===============================================================
key              shape             dtype     meaning
===============  ================  ========  ===============================================================
``features``     ``[E, T, F]``     float     what the timestep encoder made of each timestep
``step_index``   ``[E, T, 1]``     int64     timestep inside the episode
``is_init``      ``[E, T, 1]``     bool      the episode begins here
``mask``         ``[E, T, 1]``     bool      the timestep belongs to the episode
``action``       ``[E, T, A]``     float     what the agent did, encoded
``action_mask``  ``[E, T, A]``     bool      allowed actions, where the environment tells
``hidden``       ``[E, T, H]``     float     what the agent does not see, where the environment shows it
===============  ================  ========  ===============================================================
"""

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.modules import set_recurrent_mode

from yamame.agent import InContextAgent
from yamame.checks import require, require_at_least
from yamame.evaluation.held_out import act, acting, fresh_copy

_KEPT = ("step_index", "is_init", "action_mask", "hidden")


def record_episodes(
    agent: InContextAgent,
    env: EnvBase,
    *,
    gamma_index: int = -1,
    max_steps: int | None = None,
    greedy: bool = False,
    seed: int = 0,
) -> TensorDict:
    """Plays the first episode of every env, as `yamame.evaluation.evaluate` does, and keeps its
    encodings.

    Args:
        agent: Who plays; a copy of it acts. What it does not read, as ``hidden``, is recorded and
            not seen.
        env: Environment ``[E]``; seeded, and left in mid-episode.
        gamma_index: Which of the agent's policies acts.
        max_steps, greedy, seed: As for `yamame.evaluation.evaluate`.

    Returns:
        ``[E, T]``, see the module; the longest episode comes first.

    Raises:
        ValueError: If ``env`` has not one batch dimension, or ``max_steps`` is not positive.
    """
    require(
        "record_episodes",
        "env",
        tuple(env.batch_size),
        env.batch_dims == 1,
        "have one batch dimension",
    )
    require_at_least("record_episodes", 1, max_steps=1 if max_steps is None else max_steps)
    policy: Any = fresh_copy(agent.policy(gamma_index=gamma_index))
    steps: list[TensorDict] = []
    with acting(seed, greedy=greedy):
        env.set_seed(seed)
        timestep = env.reset()
        playing = torch.ones_like(timestep.get("done"))
        while (max_steps is None or len(steps) < max_steps) and bool(playing.any()):
            features = policy.timestep_encoder(timestep.select(*policy.in_keys, strict=False))
            kept = {name: timestep.get(name).clone() for name in _KEPT if name in timestep.keys()}
            kept |= {
                "features": features.get(agent.trajectory_encoder.keys.features),
                "mask": playing,
            }
            step, timestep = env.step_and_maybe_reset(act(policy, timestep, env.action_key))
            kept["action"] = agent.action_space.encode(step.get(env.action_key))
            steps.append(TensorDict(kept, env.batch_size))
            playing = playing & ~step.get("next").get("done")
    episodes: Any = torch.stack(steps, 1)
    longest_first = episodes["mask"].sum((1, 2)).argsort(descending=True, stable=True)
    played: TensorDict = episodes[longest_first]
    return played


@torch.no_grad()
def contexts_of(agent: InContextAgent, episodes: TensorDict, features: Tensor) -> Tensor:
    """The contexts ``[E, T, D]`` of recorded episodes in which the encodings are these
    ``[E, T, F]``.
    """
    encoder, keys = agent.trajectory_encoder, agent.trajectory_encoder.keys
    names = {keys.step_index: "step_index", keys.is_init: "is_init", keys.mask: "mask"}
    sequence = TensorDict({key: episodes[name] for key, name in names.items()}, episodes.batch_size)
    with set_recurrent_mode(True):
        context: Tensor = encoder(sequence.set(keys.features, features)).get(keys.context)
    return context
