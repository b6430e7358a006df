"""One decision as a function of tensors, from an observation and a state to the next state.

The state of N streams is a TensorDict ``[N]``:

===============  ============  =======  ================================================
key              shape         dtype    meaning
===============  ============  =======  ================================================
``memory``       ``[N]``                of the trajectory encoder, see `yamame.trajectory`
``prev_action``  ``[N, A]``    float32  encoded action that was executed last
``step_index``   ``[N, 1]``    int64    timestep of the last decision
===============  ============  =======  ================================================

Where ``is_init`` is set, the state of a stream is ignored, so that zeros will do. A step may write
into the memory that is passed to it.
"""

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from yamame.agent import InContextPolicy
from yamame.trajectory.base import Device
from yamame.transforms import context_values


class ActingStep(nn.Module):
    """Decision of a policy at one timestep, with all state in arguments.

    It decides as `yamame.evaluation.evaluate` does, and computes the context entries
    (`yamame.keys.CONTEXT`) as the environments of training do.

    Args:
        policy: The policy.
        horizon: Steps after which ``time`` is 1; None if there is no ``time``, or it is one of the
            observations.
    """

    def __init__(self, policy: InContextPolicy, horizon: int | None) -> None:
        super().__init__()
        self.policy = policy
        self.horizon = horizon

    def init_state(
        self, num: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return the state of streams before their first timestep.

        Args:
            num: Number N of streams.
            capacity: Size of the memory, as for `TrajectoryEncoder.init_memory`.
            device: Device of all tensors.
        """
        memory = self.policy.trajectory_encoder.init_memory(num, capacity=capacity, device=device)
        encoded_size = self.policy.action_space.encoded_size
        entries = {
            "memory": memory,
            "prev_action": torch.zeros(num, encoded_size, device=memory.device),
            "step_index": torch.zeros(num, 1, dtype=torch.int64, device=memory.device),
        }
        return TensorDict(entries, [num])

    def forward(
        self,
        observation: TensorDictBase,
        reward: Tensor,
        is_init: Tensor,
        trial_start: Tensor,
        state: TensorDictBase,
    ) -> tuple[Tensor, TensorDict]:
        """Compute the distributions of the next actions.

        Args:
            observation: ``[N]``, without the context entries.
            reward: ``[N, 1]`` float32, reward of the last action; ignored where ``is_init`` is set.
            is_init: ``[N, 1]`` bool, marks the first timestep of an episode.
            trial_start: ``[N, 1]`` bool, marks the start of a further trial within an episode.
            state: ``[N]``, with room for one more timestep.

        Returns:
            Parameters of the distributions ``[N, P]``, and the next state. The caller replaces its
            ``prev_action`` by the executed action (`ActionEncoding.encode`).
        """
        step_index = (state["step_index"] + 1).masked_fill(is_init, 0)
        prev_action = state["prev_action"].masked_fill(is_init, 0.0)
        context = context_values(
            step_index,
            prev_action=prev_action,
            prev_reward=reward.masked_fill(is_init, 0.0),
            is_init=is_init,
            trial_start=trial_start | is_init,
            horizon=self.horizon,
        )
        # A copy, because the caller's observation must not get the context entries.
        timestep = observation.copy().update(context)
        params, memory = self.policy.decide(timestep, state["memory"])

        entries = {"memory": memory, "prev_action": prev_action, "step_index": step_index}
        return params, TensorDict(entries, observation.batch_size)
