"""What a training loop needs of a collector, and what a collector asks of a policy, a replay and an
environment.

A policy is any TensorDict module that writes ``action`` into a tensordict ``[N]``. Where it, or a
module in it, keeps to `Remembers`, `PreparesToAct` or `Records`, the collector uses that; none of
them has to be there. Where policy, exploration and environment all keep to `Carries`, whole steps
can be recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.execution.recorder import Recorder
from yamame.keys import RELABELLING


@dataclass(frozen=True)
class Episodes:
    """What one call of `Collector.collect` brought.

    Attributes:
        num_steps: Environment steps taken, over all envs.
        returns: ``[E]`` sum of raw rewards of every trajectory that ended.
        lengths: ``[E]`` int64, their transitions.
        success: ``[E]`` bool, or None for an environment that does not tell.
        num_aborted: Episodes that ended because the environment failed; they were dropped.
    """

    num_steps: int
    returns: Tensor
    lengths: Tensor
    success: Tensor | None
    num_aborted: int = 0

    @classmethod
    def none(cls) -> "Episodes":
        """No steps, and no episodes."""
        return cls(0, torch.zeros(0), torch.zeros(0, dtype=torch.int64), None)

    @classmethod
    def merged(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """The episodes of several parts, in order."""
        success = [part.success for part in parts if part.success is not None]
        return cls(
            num_steps=sum(part.num_steps for part in parts),
            returns=torch.cat([part.returns for part in parts]),
            lengths=torch.cat([part.lengths for part in parts]),
            success=torch.cat(success) if success else None,
            num_aborted=sum(part.num_aborted for part in parts),
        )


class Replay(Protocol):
    """Where finished trajectories go."""

    def extend(self, data: TensorDictBase) -> Any:
        """Takes trajectories ``[E, L]``, right padded, with ``mask``."""


@runtime_checkable
class Collector(Protocol):
    """Acts and appends every finished trajectory to its replay.

    Acting uses the collector's own copy of the policy: it changes only by `update_policy_weights_`,
    so the learner may run beside it, in this process or another. The ``exploration`` of one that
    has any is told, through its ``step``, of environment steps that were taken elsewhere.
    """

    def collect(self, num_steps: int) -> Episodes:
        """Takes at least ``num_steps`` environment steps, over all envs, and appends the episodes
        that ended.
        """

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy. Its memory
        survives.
        """

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on acting."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, in a collector built from the same settings."""

    def metrics(self) -> dict[str, float]:
        """How collecting stands now, to be logged."""

    def shutdown(self) -> None:
        """Closes environments and ends workers; a second call does nothing."""


@runtime_checkable
class Remembers(Protocol):
    """A module that keeps its memory of acting inside itself, not in the tensordict."""

    def memory_state_dict(self) -> Mapping[str, Any]:
        """A snapshot of the memory."""

    def load_memory_state_dict(self, state: Any) -> None:
        """Goes on from a snapshot."""

    def reset_memory(self) -> None:
        """Forgets everything."""


@runtime_checkable
class PreparesToAct(Protocol):
    """A module that does once per change of its weights what every step would do again."""

    def prepare_to_act(self) -> None:
        """Called when weights have changed and stay until the next call."""


@runtime_checkable
class Compiles(Protocol):
    """A policy whose decisions can be compiled."""

    def compile_decisions(self) -> None:
        """Compiles decisions from now on; those that are recorded, if this is called before."""


@runtime_checkable
class Records(Protocol):
    """A policy whose decisions can be recorded as CUDA graphs."""

    def record(self, recorder: Recorder) -> None:
        """Records decisions from now on."""


class Carries(Protocol):
    """A policy, an exploration or an environment whose part of a step can be recorded, with that of
    the others.

    It decides nothing by the data, and what it remembers from one step to the next is in tensors
    that can be exchanged. Work of the host is not done while
    `yamame.execution.capturing.capturing`. What can never be recorded says why in an attribute
    ``capture_obstacle``.
    """

    def reserve(self, num_steps: int) -> bool:
        """Does ahead what the host has to do for so many steps; whether they can be recorded
        now.
        """

    def carried(self) -> Mapping[str, Tensor]:
        """The tensors that a step reads and changes. It puts new ones in their place, which are no
        views of others.
        """

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on with these tensors, which are like those of `carried`; they are not copied."""


def carries(part: Any) -> bool:
    """Whether a part keeps to `Carries`. Its class is asked, for wrappers hand on what they are
    asked for.
    """
    able = all(hasattr(type(part), name) for name in ("reserve", "carried", "carry"))
    return able and getattr(part, "capture_obstacle", None) is None


def lacking(replay: Any) -> list[str]:
    """Entries for relabelling that the trajectories in replay do not have.

    An earlier version may have begun the run, whose environment did not write an entry yet; it goes
    on without.
    """
    fields = getattr(replay, "fields", None)
    return [key for key in RELABELLING if key not in fields] if fields else []


def outermost(module: nn.Module, protocol: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The modules in ``module`` (itself included) that keep to a protocol, by name; none inside
    another of them.

    >>> class Remembering(nn.Sequential):
    ...     def prepare_to_act(self) -> None: ...
    >>> policy = nn.Sequential(nn.Linear(1, 1), Remembering(Remembering()))
    >>> [name for name, _ in outermost(policy, PreparesToAct)]
    ['1']
    """
    if isinstance(module, protocol):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from outermost(child, protocol, f"{name}.{child_name}" if name else child_name)
