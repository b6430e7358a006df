"""Memory of an acting policy when its weights change.

* ``keep``: the memory that the old weights made stays, and the new ones continue from it;
* ``reset``: it is emptied; every open episode continues as if it began now;
* ``rebuild``: it is computed anew by the new weights, from the timesteps of the open episodes.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.checks import require, require_choice
from yamame.collectors.assembly import TrajectoryAssembler
from yamame.collectors.base import Remembers, outermost

MemoryAfterUpdate = Literal["keep", "rebuild", "reset"]


def check_memory(
    owner: str, policy: nn.Module, choice: MemoryAfterUpdate, *, cuda_graph: bool
) -> None:
    """Check the treatment of the memory of a policy.

    Args:
        owner: Class that is configured, for messages.
        policy: Policy that acts.
        choice: Treatment of its memory.
        cuda_graph: Steps or decisions are recorded.

    Raises:
        ArgumentError: The treatment is unknown, or impossible: the policy has no memory inside or
            keeps a state outside, or its steps are recorded.
    """
    require_choice(owner, "memory_after_update", choice, ("keep", "rebuild", "reset"))
    if choice == "keep":
        return
    has_memory = False
    for _ in outermost(policy, Remembers):
        has_memory = True
    for key in getattr(policy, "out_keys", ()):
        # A state in the TensorDict, which cannot be reset from here.
        if isinstance(key, tuple) and key[0] == "next":
            has_memory = False
    name = type(policy).__name__
    condition = f"be keep for {name}, which has no reset_memory() of all that it remembers"
    require(owner, "memory_after_update", choice, has_memory, condition)
    require(owner, "memory_after_update", choice, not cuda_graph, "be keep with cuda_graph")


@torch.no_grad()
def renew_memory(
    policy: nn.Module,
    choice: MemoryAfterUpdate,
    episodes: TrajectoryAssembler,
    device: torch.device | None,
) -> None:
    """Treat the memory of a policy whose weights have changed.

    Args:
        policy: Policy that acts.
        choice: Treatment of its memory.
        episodes: Open episodes.
        device: Device of the policy; None: that of the episodes.
    """
    if choice == "keep":
        return
    for _, module in outermost(policy, Remembers):
        module.reset_memory()
    if choice == "reset":
        return
    devices: list[int] = []
    if torch.cuda.is_initialized():
        devices = list(range(torch.cuda.device_count()))
    # Generators are restored, so that later samples are those of a run without rebuilding.
    with (
        torch.random.fork_rng(devices=devices),
        set_exploration_type(ExplorationType.DETERMINISTIC),
    ):
        for timestep in replayed(episodes):
            policy(timestep if device is None else timestep.to(device))


def replayed(episodes: TrajectoryAssembler) -> Iterator[TensorDictBase]:
    """Yield the timesteps ``[N]`` of the open episodes, aligned at their last one.

    A shorter episode repeats its first timestep, with ``is_init``, until it begins. So its memory
    begins at the start of the episode.
    """
    state = episodes.state_dict()
    steps = state["steps"]
    length = state["length"]
    if steps is None:
        return
    longest = steps.shape[1]
    first = longest - length  # time at which each episode begins
    envs = torch.arange(len(length), device=length.device)
    for t in range(longest):
        column = (t - first).clamp(min=0)
        timestep = steps[envs, column].exclude("action", "next")
        is_init = timestep["is_init"]
        starts = (t <= first).view(-1, *[1] * (is_init.ndim - 1))
        timestep["is_init"] = is_init | starts
        yield timestep
