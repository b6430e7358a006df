"""Recorded episodes, with the encodings that the agent's trajectory encoder read.

===============  ================  ========  ===================================================
key              shape             dtype     meaning
===============  ================  ========  ===================================================
``features``     ``[E, T, F]``     float     output of the timestep encoder
``step_index``   ``[E, T, 1]``     int64     timestep inside the episode
``is_init``      ``[E, T, 1]``     bool      the episode begins here
``mask``         ``[E, T, 1]``     bool      the timestep belongs to the episode
``action``       ``[E, T, A]``     float     action of the agent, encoded
``action_mask``  ``[E, T, A]``     bool      allowed actions, if the environment emits them
``hidden``       ``[E, T, H]``     float     hidden variables, if the environment emits them
===============  ================  ========  ===================================================
"""

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.modules import set_recurrent_mode

from yamame.agent import InContextAgent
from yamame.checks import PositiveInt, check_bounds, require
from yamame.evaluation.bound import StepLimit
from yamame.evaluation.held_out import act, evaluation_mode, fresh_copy
from yamame.system.signals import exit_if_received

_STORED = ("step_index", "is_init", "action_mask", "hidden")


@check_bounds
def record_episodes(
    agent: InContextAgent,
    env: EnvBase,
    *,
    gamma_index: int = -1,
    max_steps: PositiveInt | None = None,
    greedy: bool = False,
    seed: int = 0,
) -> TensorDict:
    """Play the first episode of every env, as `yamame.evaluation.evaluate` does, and record it.

    Args:
        agent: Agent, of which a copy acts. It does not see entries that its encoders do not read,
            such as ``hidden``.
        env: Environment ``[E]``; seeded, and left within an episode.
        gamma_index: Index of the agent's policy that acts.
        max_steps, greedy, seed: As for `yamame.evaluation.evaluate`.

    Returns:
        ``[E, T]``, see the module; the longest episode comes first.

    Raises:
        ArgumentError: ``env`` does not have one batch dimension, or ``max_steps`` is not positive.
    """
    shape = tuple(env.batch_size)
    require("record_episodes", "env", shape, len(shape) == 1, "have one batch dimension")
    policy: Any = fresh_copy(agent.policy(gamma_index=gamma_index))
    features_key = agent.trajectory_encoder.keys.features
    steps: list[TensorDict] = []
    with evaluation_mode(seed, greedy=greedy):
        env.set_seed(seed)
        timestep = env.reset()
        playing = torch.ones_like(timestep.get("done"))
        limit = StepLimit(env, max_steps)
        num_playing = len(playing)
        while num_playing > 0 and not limit.is_reached(len(steps)):
            seen = timestep.select(*policy.in_keys, strict=False)
            features = policy.timestep_encoder(seen).get(features_key)
            stored = {"features": features, "mask": playing}
            for name in _STORED:
                if name in timestep.keys():
                    # The environment may write the next step into the same tensor.
                    stored[name] = timestep.get(name).clone()

            exit_if_received()
            acted = act(policy, timestep, env.action_key)
            step, timestep = env.step_and_maybe_reset(acted)
            stored["action"] = agent.action_space.encode(step.get(env.action_key))
            steps.append(TensorDict(stored, env.batch_size))
            playing = playing & ~step.get("next").get("done")
            still_playing = int(playing.sum())
            if still_playing < num_playing:
                num_playing = still_playing
                limit.note_end(len(steps))

    episodes: Any = torch.stack(steps, 1)
    lengths = episodes["mask"].sum((1, 2))
    # Longest first, so that the episodes that reach a timestep are always the first rows.
    recorded: TensorDict = episodes[lengths.argsort(descending=True, stable=True)]
    return recorded


@torch.no_grad()
def contexts_of(agent: InContextAgent, episodes: TensorDict, features: Tensor) -> Tensor:
    """Compute the contexts of recorded episodes with other encodings of their timesteps.

    Args:
        agent: In evaluation mode.
        episodes: ``[E, T]``, from `record_episodes`.
        features: ``[E, T, F]``, in place of the recorded ones.

    Returns:
        ``[E, T, D]``.
    """
    encoder = agent.trajectory_encoder
    keys = encoder.keys
    entries = {
        keys.features: features,
        keys.step_index: episodes["step_index"],
        keys.is_init: episodes["is_init"],
        keys.mask: episodes["mask"],
    }
    with set_recurrent_mode(True):
        encoded = encoder(TensorDict(entries, episodes.batch_size))
    context: Tensor = encoded.get(keys.context)
    return context
