"""Acting: one decision per call from the whole history, which the trajectory encoder remembers.

Reads the timestep encoder's keys, ``step_index``, ``is_init`` and, where the environment has one,
``action_mask`` from a TensorDict ``[N]``; writes ``action`` and nothing else, so that neither
features nor memory reach a rollout. Envs whose ``is_init`` is set start with a fresh memory.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.actions import ActionSpace
from yamame.agent.recorded import RecordedDecisions
from yamame.checks import require
from yamame.execution.capturing import capturing
from yamame.execution.recorder import Compiled, Recorder
from yamame.trajectory import SigmaReparamLinear, TrajectoryEncoder


class InContextPolicy(TensorDictModuleBase):
    """Encodes the present timestep, updates the memory and picks an action of one of the trained
    policies.

    Samples under `ExplorationType.RANDOM` (and without a setting), takes the distribution's mode
    under `ExplorationType.DETERMINISTIC` and `ExplorationType.MODE`.

    Args:
        timestep_encoder: Writes the features of one timestep.
        trajectory_encoder: Turns them into the context; it keeps the memory between calls.
        actor: Any module ``[N, D] -> [N, G, P]`` from context to the parameters of one distribution
            per policy.
        action_space: Turns parameters into distributions and samples into actions; None for
            ``actor.action_space``.
        gamma_index: Which of the actor's G policies acts.
        action_key: Where the action is written.

    Raises:
        ValueError: If ``gamma_index`` is not an index into the actor's gammas, or
            ``trajectory_encoder`` keeps its memory in the TensorDict.
    """

    def __init__(
        self,
        timestep_encoder: TensorDictModuleBase,
        trajectory_encoder: TrajectoryEncoder,
        actor: nn.Module,
        *,
        action_space: ActionSpace | None = None,
        gamma_index: int = -1,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__()
        owner, num_gammas = "InContextPolicy", getattr(actor, "num_gammas", None)
        in_range = not isinstance(num_gammas, int) or -num_gammas <= gamma_index < num_gammas
        require(owner, "gamma_index", gamma_index, in_range, f"index one of {num_gammas} gammas")
        memory_key = trajectory_encoder.keys.memory
        require(owner, "trajectory_encoder.keys.memory", memory_key, memory_key is None, "be None")
        self.timestep_encoder = timestep_encoder
        self.trajectory_encoder = trajectory_encoder
        self.actor = actor
        self.action_space: Any = actor.action_space if action_space is None else action_space
        self.gamma_index = gamma_index
        self.action_key = action_key
        written = set(timestep_encoder.out_keys)
        needed = [*timestep_encoder.in_keys, *trajectory_encoder.in_keys]
        self.in_keys = [key for key in dict.fromkeys(needed) if key not in written]
        self.out_keys = [action_key]
        self._compiled: Compiled[tuple[Tensor, TensorDict]] | None = None
        self._recorded: RecordedDecisions | None = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action of every env of ``tensordict`` ``[N]`` and returns it.

        While it is captured, after `reserve`, it decides nothing by the data.
        """
        encoder = self.trajectory_encoder
        memory = (
            encoder.memory
            if capturing()
            else encoder.ready_memory(encoder.read_is_init(tensordict))
        )
        assert memory is not None
        decide = self._recorded or self._compiled or self.decide
        params, memory = decide(tensordict.select(*self.in_keys, strict=False), memory)
        encoder.keep_memory(memory)
        distribution = self.action_space.distribution(params, tensordict.get("action_mask", None))
        deterministic = exploration_type() in (ExplorationType.DETERMINISTIC, ExplorationType.MODE)
        encoded = distribution.mode if deterministic else distribution.sample()
        return tensordict.set(self.action_key, self.action_space.decode(encoded))

    def decide(self, observations: TensorDictBase, memory: TensorDict) -> tuple[Tensor, TensorDict]:
        """Parameters of the distributions ``[N, P]`` and the next memory: all but the draw of the
        action.
        """
        encoder = self.trajectory_encoder
        x, is_init, step_index = encoder.read_step(self.timestep_encoder(observations.copy()))
        context, memory = encoder.step(x, memory, is_init, step_index)
        with torch.autocast(context.device.type, enabled=False):
            params = self.actor(context.float())
        return params[:, self.gamma_index], memory

    def prepare_to_act(self) -> None:
        """Computes what acting needs of the weights, once: to be called when they have changed."""
        for module in self.modules():
            if isinstance(module, SigmaReparamLinear):
                module.prepare_to_act()

    def compile_decisions(self) -> None:
        """Compiles decisions from now on, all but the draw of the action; copies and pickles do
        not.

        Raises:
            ValueError: The trajectory encoder calls code that nobody has compiled.
        """
        self._refuse_obstacles("compile")
        self._compiled = Compiled(self.decide, name="InContextPolicy: a decision")

    def record(self, recorder: Recorder) -> None:
        """Records decisions from now on, all but the draw of the action; copies and pickles do not.

        Parameters and buffers may change in place, and the memory may be loaded and reset.

        Raises:
            ValueError: The trajectory encoder calls code that nobody has captured.
        """
        self._refuse_obstacles("cuda_graph")
        self._recorded = RecordedDecisions(self._compiled or self.decide, recorder, self)

    @property
    def capture_obstacle(self) -> str | None:
        """Reason why steps cannot be captured and compiled; None if they can."""
        kind = type(self.trajectory_encoder)  # that of an object is about whole sequences
        return None if getattr(kind, "capture_obstacle", None) is None else kind.__name__

    def _refuse_obstacles(self, setting: str) -> None:
        obstacle = self.capture_obstacle
        require("InContextPolicy", setting, True, obstacle is None, f"be false with {obstacle}")

    def reserve(self, num_steps: int) -> bool:
        """Makes room in the memory for so many steps, so that none waits for the device; whether
        there is any.
        """
        return self.trajectory_encoder.reserve(num_steps)

    def carried(self) -> dict[str, Tensor]:
        """The tensors of the memory, by names."""
        memory = self.trajectory_encoder.memory
        return {} if memory is None else dict(memory.flatten_keys(".").items())

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on with tensors like those of `carried`; it does not copy them."""
        encoder = self.trajectory_encoder
        if encoder.memory is not None:
            entries = {tuple(name.split(".")): value for name, value in tensors.items()}
            encoder.memory = TensorDict(
                entries, encoder.memory.batch_size, device=encoder.memory.device
            )

    def reset_memory(self) -> None:
        """Forgets everything: the next step starts every env afresh."""
        self.trajectory_encoder.reset_memory()

    def memory_state_dict(self) -> dict[str, Any]:
        """A copy of the memory for a checkpoint; empty before the first step."""
        return self.trajectory_encoder.memory_state_dict()

    def load_memory_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `memory_state_dict` returned."""
        self.trajectory_encoder.load_memory_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None, "_recorded": None}
