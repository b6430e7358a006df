"""One decision as a function of tensors: what is seen now and a state go in, what to do and the
next state come out.

The state of N streams is a TensorDict ``[N]``:

===============  ============  =======  ================================================
key              shape         dtype    meaning
===============  ============  =======  ================================================
``memory``       ``[N]``                of the trajectory encoder, see `yamame.trajectory`
``prev_action``  ``[N, A]``    float32  the encoded action that was executed last
``step_index``   ``[N, 1]``    int64    timestep of the last decision
===============  ============  =======  ================================================

Where ``is_init`` is set, whatever the state of a stream holds is forgotten: one of zeros will do. A
step may write into the memory it is given.
"""

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from yamame.agent import InContextPolicy
from yamame.trajectory.base import Device
from yamame.transforms import context_values


class ActingStep(nn.Module):
    """What `evaluate` does with a policy at one timestep, without a memory in the module.

    It makes the context entries (`yamame.keys.CONTEXT`) as the environments of training make them.

    Args:
        policy: The policy.
        horizon: Steps after which ``time`` is 1; None: there is no ``time``, or it is among the
            observations.
    """

    def __init__(self, policy: InContextPolicy, horizon: int | None) -> None:
        super().__init__()
        self.policy, self.horizon = policy, horizon

    def init_state(
        self, num: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """The state of ``num`` streams that have seen nothing; ``capacity`` as for
        `TrajectoryEncoder.init_memory`.
        """
        memory = self.policy.trajectory_encoder.init_memory(num, capacity=capacity, device=device)
        sizes = num, self.policy.action_space.encoded_size
        entries = {
            "memory": memory,
            "prev_action": torch.zeros(*sizes, device=memory.device),
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
        """Decides.

        Args:
            observation: ``[N]``, what the environment shows beside the context.
            reward: ``[N, 1]`` float32, received on arrival; of no meaning where ``is_init`` is set.
            is_init: ``[N, 1]`` bool, an episode starts.
            trial_start: ``[N, 1]`` bool, another trial starts within an episode.
            state: ``[N]``, with room for a timestep.

        Returns:
            Parameters of the distributions ``[N, P]``, and the next state, in which the caller
            replaces ``prev_action`` by what is executed (`ActionEncoding.encode`).
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
        params, memory = self.policy.decide(observation.copy().update(context), state["memory"])
        entries = {"memory": memory, "prev_action": prev_action, "step_index": step_index}
        return params, TensorDict(entries, observation.batch_size)
