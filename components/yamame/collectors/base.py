"""Protocols of collectors, and of the replay and the policies that they work with.

A policy is any TensorDict module that writes ``action`` into a TensorDict ``[N]``. If the policy,
or a module in it, follows `Remembers` or `PreparesToAct`, the collector uses that; neither is
required.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn


@dataclass(frozen=True)
class Episodes:
    """Episodes that finished during one call of `Collector.collect`.

    Attributes:
        num_steps: Environment steps taken, over all envs.
        returns: ``[E]`` sum of raw rewards of every trajectory that ended.
        lengths: ``[E]`` int64, their transitions.
        success: ``[E]`` bool, or None for an environment that does not report success.
        num_aborted: Episodes that ended because the environment failed; they were dropped.
    """

    num_steps: int
    returns: Tensor
    lengths: Tensor
    success: Tensor | None
    num_aborted: int = 0

    @classmethod
    def none(cls) -> "Episodes":
        """Return an object for no steps and no episodes."""
        return cls(0, torch.zeros(0), torch.zeros(0, dtype=torch.int64), None)

    @classmethod
    def merged(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """Return the episodes of several parts, in order."""
        success = [part.success for part in parts if part.success is not None]
        return cls(
            num_steps=sum(part.num_steps for part in parts),
            returns=torch.cat([part.returns for part in parts]),
            lengths=torch.cat([part.lengths for part in parts]),
            success=torch.cat(success) if success else None,
            num_aborted=sum(part.num_aborted for part in parts),
        )


class Replay(Protocol):
    """Storage of finished trajectories."""

    def extend(self, data: TensorDictBase) -> Any:
        """Store trajectories ``[E, L]``, right padded, with ``mask``."""


@runtime_checkable
class Collector(Protocol):
    """Acts and appends every finished trajectory to its replay.

    Acting uses the collector's own copy of the policy, which changes only by
    `update_policy_weights_`. So the learner may run at the same time, in this process or a
    different one. If the collector has an ``exploration``, the method ``step`` of that is called
    with environment steps that were taken elsewhere, and its ``set_spent``, if it has one, with the
    spent share of the budget.
    """

    def collect(self, num_steps: int) -> Episodes:
        """Take at least ``num_steps`` steps, over all envs, and store the episodes that ended."""

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copy ``TensorDict.from_module(policy).data`` into the acting policy; keep its memory."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs to continue acting."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`, in a collector built from the same settings."""

    def metrics(self) -> dict[str, float]:
        """Return figures of the present state of collecting, to be logged."""

    def shutdown(self) -> None:
        """Close environments and end workers; a second call does nothing."""


@runtime_checkable
class Remembers(Protocol):
    """A module that keeps its memory of acting inside itself, not in the TensorDict."""

    def memory_state_dict(self) -> Mapping[str, Any]:
        """Return a snapshot of the memory."""

    def load_memory_state_dict(self, state: Any) -> None:
        """Restore a snapshot."""

    def reset_memory(self) -> None:
        """Empty the memory."""


@runtime_checkable
class PreparesToAct(Protocol):
    """A module that computes something once per change of its weights, instead of at every step."""

    def prepare_to_act(self) -> None:
        """Called when weights have changed; they stay until the next call."""


def outermost(module: nn.Module, protocol: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the modules that follow a protocol, with their paths.

    Modules inside of one that is yielded are left out.

    Args:
        module: Module to search, itself included.
        protocol: A protocol that is checkable at run time.
        name: Path of ``module``.

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
        path = f"{name}.{child_name}" if name else child_name
        yield from outermost(child, protocol, path)
