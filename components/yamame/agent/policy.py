"""Acting policy: one decision per call, from the history in the trajectory encoder's memory."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from yamame.actions import ActionSpace
from yamame.checks import ArgumentError, require, require_tensordict
from yamame.execution.capturing import capturing
from yamame.execution.recorded_function import RecordedFunction
from yamame.execution.recorder import Compiled, Recorder
from yamame.trajectory import SigmaReparamLinear, TrajectoryEncoder


class InContextPolicy(TensorDictModuleBase):
    """Encodes the present timestep, updates the memory and picks an action of one trained policy.

    Reads the timestep encoder's keys, ``step_index``, ``is_init`` and, if the environment has one,
    ``action_mask`` from a TensorDict ``[N]``. Writes ``action`` and nothing else, so neither
    features nor memory reach a rollout. Envs whose ``is_init`` is set start with an empty memory.

    Samples under `ExplorationType.RANDOM` and if no type is set; takes the distribution's mode
    under `ExplorationType.DETERMINISTIC` and `ExplorationType.MODE`.

    Args:
        timestep_encoder: Writes the features of one timestep.
        trajectory_encoder: Maps features to the context; it keeps the memory between calls.
        actor: Any module ``[N, D] -> [N, G, P]`` from context to the parameters of one distribution
            per policy.
        action_space: Maps parameters to distributions and samples to actions; None for
            ``actor.action_space``.
        gamma_index: Index of the policy that acts, among the actor's G policies.
        action_key: Key under which the action is written.

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
        owner = "InContextPolicy"
        num_gammas = getattr(actor, "num_gammas", None)
        # An actor of another package may not have this attribute.
        if isinstance(num_gammas, int):
            in_range = -num_gammas <= gamma_index < num_gammas
            require(owner, "gamma_index", gamma_index, in_range, f"index {num_gammas} gammas")
        memory_key = trajectory_encoder.keys.memory
        require(owner, "trajectory_encoder.keys.memory", memory_key, memory_key is None, "be None")
        self.timestep_encoder = timestep_encoder
        self.trajectory_encoder = trajectory_encoder
        self.actor = actor
        self.action_space: Any = actor.action_space if action_space is None else action_space
        self.gamma_index = gamma_index
        self.action_key = action_key
        self.in_keys: list[NestedKey] = []
        for key in (*timestep_encoder.in_keys, *trajectory_encoder.in_keys):
            if key not in timestep_encoder.out_keys and key not in self.in_keys:
                self.in_keys.append(key)
        self.out_keys = [action_key]
        self._compiled: Compiled[tuple[Tensor, TensorDict]] | None = None
        self._recorded: RecordedFunction | None = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the action of every env of ``tensordict`` ``[N]`` and return it.

        While it is captured, after `reserve`, no branch depends on the data.
        """
        require_tensordict(type(self).__name__, tensordict)
        encoder = self.trajectory_encoder
        memory = encoder.memory
        if not capturing():
            memory = encoder.memory_for(tensordict)
        assert memory is not None
        # The recorded graph includes the compiled function.
        decide = self._recorded or self._compiled
        if decide is None:
            params, memory = self.decide(tensordict, memory)
        else:
            observations = tensordict.select(*self.in_keys, strict=False)
            params, memory = decide(observations, memory)
        encoder.keep_memory(memory)

        distribution = self.action_space.distribution(params, tensordict.get("action_mask", None))
        if exploration_type() in (ExplorationType.DETERMINISTIC, ExplorationType.MODE):
            encoded = distribution.mode
        else:
            encoded = distribution.sample()
        return tensordict.set(self.action_key, self.action_space.decode(encoded))

    def decide(self, observations: TensorDictBase, memory: TensorDict) -> tuple[Tensor, TensorDict]:
        """Compute everything but the draw of the action.

        Args:
            observations: Has entries ``in_keys`` ``[N]``; not changed.
            memory: Memory of the envs ``[N]``.

        Returns:
            Parameters of the distributions ``[N, P]`` and the next memory.
        """
        encoder = self.trajectory_encoder
        step = observations.select(*self.in_keys, strict=False)
        features = self.timestep_encoder(step)
        x, is_init, step_index = encoder.read_step(features)
        context, memory = encoder.step(x, memory, is_init, step_index)
        # Heads compute in float32, as they do in the loss.
        with torch.autocast(context.device.type, enabled=False):
            params = self.actor(context.float())
        return params[:, self.gamma_index], memory

    def prepare_to_act(self) -> None:
        """Compute once what acting needs of the weights; call this when they have changed."""
        for module in self.modules():
            if isinstance(module, SigmaReparamLinear):
                module.prepare_to_act()

    def compile_decisions(self) -> None:
        """Compile decisions from now on, all but the draw of the action; copies do not.

        Raises:
            ValueError: The trajectory encoder cannot be compiled.
        """
        self._refuse_obstacles("compile")
        self._compiled = Compiled(self.decide, name="InContextPolicy: a decision")

    def record(self, recorder: Recorder) -> None:
        """Record decisions from now on, all but the draw of the action; copies do not.

        Call this after `compile_decisions` to record what was compiled. Parameters and buffers may
        change in place, and the memory may be loaded and reset.

        Args:
            recorder: Records decisions.

        Raises:
            ValueError: The trajectory encoder cannot be captured.
        """
        self._refuse_obstacles("cuda_graph")
        self._recorded = RecordedFunction(self._compiled or self.decide, recorder, self)

    @property
    def capture_obstacle(self) -> str | None:
        """Reason why steps cannot be captured and compiled; None if they can."""
        # An obstacle of the object concerns whole sequences alone, one of its class also steps.
        kind = type(self.trajectory_encoder)
        if getattr(kind, "capture_obstacle", None) is None:
            return None
        return kind.__name__

    def _refuse_obstacles(self, setting: str) -> None:
        obstacle = self.capture_obstacle
        if obstacle is not None:
            raise ArgumentError("InContextPolicy", setting, True, f"be false with {obstacle}")

    def reserve(self, num_steps: int) -> bool:
        """Make room in the memory for a number of steps; return whether there is room."""
        return self.trajectory_encoder.reserve(num_steps)

    def static_buffers(self) -> dict[str, Tensor]:
        """Return the tensors of the memory, by name; see `Capturable`."""
        memory = self.trajectory_encoder.memory
        return {} if memory is None else dict(memory.flatten_keys(".").items())

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use tensors like those of `static_buffers` as the memory, without a copy."""
        memory = self.trajectory_encoder.memory
        if memory is None:
            return
        entries = {tuple(name.split(".")): value for name, value in tensors.items()}
        self.trajectory_encoder.memory = TensorDict(
            entries, memory.batch_size, device=memory.device
        )

    def reset_memory(self) -> None:
        """Empty the memory: the next step starts every env anew."""
        self.trajectory_encoder.reset_memory()

    def memory_state_dict(self) -> dict[str, Any]:
        """Return a copy of the memory for a checkpoint; empty before the first step."""
        return self.trajectory_encoder.memory_state_dict()

    def load_memory_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the memory that `memory_state_dict` returned."""
        self.trajectory_encoder.load_memory_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        # A graph belongs to the tensors of this object, and neither it nor compiled code pickles.
        return {**self.__dict__, "_compiled": None, "_recorded": None}
