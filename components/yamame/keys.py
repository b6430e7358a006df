"""The data format, declared once: what every entry of a timestep means, and who may read, store or
write it.

Every problem (meta-RL, memory, generalisation, instructions) is brought to this format, and nothing
else in the agent knows which benchmark it is on. Shapes are those of one env: ``A`` size of the
encoded action, ``K`` goals of size ``d`` in an instruction, ``M`` goals that may hold at once. In a
trajectory ``[B, L]`` timestep t has what is seen at t and the action taken there; ``("next", ...)``
has what that action led to.

This module imports the standard library alone: worker processes of environments read it without
torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One entry of a timestep.

    Args:
        name: Its key at the root.
        shape: Of one env, in symbols.
        dtype: Name of the torch dtype; None where the environment decides.
        meaning: In a sentence.
        is_input: Whether the timestep encoder reads it as one of the observations.
        is_stored: Whether trajectories in replay hold it at the root.
        is_reserved: Whether the format writes it, so that an observation of an environment may not
            be called so.
    """

    name: str
    shape: str
    dtype: str | None
    meaning: str
    is_input: bool
    is_stored: bool
    is_reserved: bool


ENTRIES = (
    Entry("goal", "(K, d)", "float32", "the instruction as seen at t", False, True, False),
    Entry(
        "achieved",
        "(M, d)",
        "float32",
        "goals that hold at t, for relabelling only",
        False,
        True,
        False,
    ),
    Entry("achieved_mask", "(M)", "bool", "which of `achieved` there are", False, True, False),
    Entry(
        "world_hash",
        "(1)",
        "int64",
        "hash of the task without its instruction, for relabelling only",
        False,
        True,
        False,
    ),
    Entry("action_mask", "(*)", "bool", "actions that are allowed at t", False, True, False),
    Entry(
        "prev_action",
        "(A)",
        "float32",
        "the action executed at t-1, encoded; zeros at t=0",
        True,
        True,
        True,
    ),
    Entry(
        "prev_reward",
        "(1)",
        "float32",
        "the reward received on arrival at t; 0 at t=0",
        True,
        True,
        True,
    ),
    Entry("time", "(1)", "float32", "t / horizon; absent without a horizon", True, True, True),
    Entry(
        "trial_start",
        "(1)",
        "bool",
        "an inner episode of the same task starts at t",
        True,
        True,
        False,
    ),
    Entry("step_index", "(1)", "int64", "t", False, True, True),
    Entry(
        "is_init", "(1)", "bool", "an episode starts at t: memory must be fresh", False, True, True
    ),
    Entry(
        "mask",
        "(1)",
        "bool",
        "a real timestep, not padding; in stored batches only",
        False,
        True,
        False,
    ),
    Entry("task_seed", "(1)", "int64", "names the task that is played", False, False, True),
    Entry("success", "(1)", "bool", "the whole task is done", False, False, True),
    Entry(
        "aborted",
        "(1)",
        "bool",
        "the episode ended because the environment failed",
        False,
        False,
        True,
    ),
    Entry("action", "(*)", None, "the action executed at t", False, True, True),
    Entry("reward", "(1)", "float32", "stored under ``next``", False, False, True),
    Entry("done", "(1)", "bool", "terminated or truncated", False, False, True),
    Entry(
        "terminated",
        "(1)",
        "bool",
        "no value beyond it counts; stored under ``next``",
        False,
        False,
        True,
    ),
    Entry(
        "truncated",
        "(1)",
        "bool",
        "the value beyond it counts; stored under ``next``",
        False,
        False,
        True,
    ),
)
"""Everything at the root of a timestep that is no observation of the environment's own."""

CONTEXT = ("prev_action", "prev_reward", "time", "trial_start", "step_index", "is_init")
"""What is added to an environment's observations so that an agent can act from its history."""

ARRIVAL = ("prev_action", "prev_reward")
"""The part of the context that tells of the step that led here, not of the timestep itself."""

DONE = ("done", "terminated", "truncated")
"""How an episode ends."""

RELABELLING = ("achieved", "achieved_mask", "world_hash")
"""What is shown for hindsight relabelling only, and never to a policy."""

GOAL_KEYS = ("goal", "achieved", "achieved_mask")
"""What an environment must emit for its trajectories to be relabelled."""

GOAL_PAD = -1.0
"""Value of every coordinate of an unused goal slot."""

GOAL_COMPLETED = -3.0
"""Value of every coordinate of a goal slot that the agent has completed."""

GOAL_TOLERANCE = 1e-3
"""Largest difference in any coordinate at which two goals are the same goal."""

NOT_INPUTS = tuple(entry.name for entry in ENTRIES if not entry.is_input)
"""What the timestep encoder does not read as an observation: goals have an encoder of their own."""

NOT_STORED = tuple(entry.name for entry in ENTRIES if not entry.is_stored)
"""Root entries that no learner reads, or that are stored under ``next``."""

RESERVED = frozenset({"_reset", "next", *(entry.name for entry in ENTRIES if entry.is_reserved)})
"""Names that no observation of an environment may have; ``trial_start`` may be one if it is a flag
``(1)``.
"""
