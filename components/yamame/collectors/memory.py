"""What the memory of an acting policy becomes when its weights change.

* ``keep``: it stays as the old weights made it, and the new ones go on from it;
* ``reset``: it is forgotten; every open episode goes on as if it began now;
* ``rebuild``: it is made anew by the new weights, from the timesteps of the open episodes.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.checks import require, require_choice
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Remembers, outermost

MemoryAfterUpdate = Literal["keep", "rebuild", "reset"]


def check_memory(
    owner: str, policy: nn.Module, choice: MemoryAfterUpdate, *, cuda_graph: bool
) -> None:
    """Refuses another choice, and one that cannot be followed: without a memory inside, or with
    states outside.
    """
    require_choice(owner, "memory_after_update", choice, ("keep", "rebuild", "reset"))
    if choice != "keep":
        remembers = any(True for _ in outermost(policy, Remembers))
        outside = any(
            isinstance(key, tuple) and key[0] == "next" for key in getattr(policy, "out_keys", ())
        )
        condition = f"be keep for {type(policy).__name__}, which has no reset_memory() of all that it remembers"
        require(owner, "memory_after_update", choice, remembers and not outside, condition)
        require(owner, "memory_after_update", choice, not cuda_graph, "be keep with cuda_graph")


@torch.no_grad()
def renew_memory(
    policy: nn.Module,
    choice: MemoryAfterUpdate,
    episodes: TrajectoryAssembler,
    device: torch.device | None,
) -> None:
    """Makes the memory of a policy on ``device`` what ``choice`` says; ``episodes`` holds the open
    ones.

    Rebuilt, the policy is shown their timesteps again. It draws from generators that are put back
    afterwards, so what it samples next is what it would have sampled.
    """
    if choice == "keep":
        return
    for _, module in outermost(policy, Remembers):
        module.reset_memory()
    if choice == "rebuild":
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        with (
            torch.random.fork_rng(devices=devices),
            set_exploration_type(ExplorationType.DETERMINISTIC),
        ):
            for timestep in replayed(episodes):
                policy(timestep if device is None else timestep.to(device))


def replayed(episodes: TrajectoryAssembler) -> Iterator[TensorDictBase]:
    """The timesteps of the open episodes ``[N]``, in time; all end together, at the last that was
    acted on.

    What comes before the first timestep of a shorter one is that timestep again, with ``is_init``:
    so its memory begins where the episode does.
    """
    state = episodes.state_dict()
    steps, length = state["steps"], state["length"]
    if steps is None:
        return
    longest = steps.shape[1]
    late = longest - length  # how many timesteps after the longest one each began
    envs = torch.arange(len(length), device=length.device)
    for t in range(longest):
        timestep = steps[envs, (t - late).clamp(min=0)].exclude("action", "next")
        starts: Tensor = t <= late
        timestep["is_init"] = timestep["is_init"] | starts.view(
            -1, *[1] * (timestep["is_init"].ndim - 1)
        )
        yield timestep
