"""Data format of a timestep: every entry with its shape, dtype and meaning.

Every problem (meta-RL, memory, generalisation, instructions) is converted to this format, so the
rest of the agent does not depend on the benchmark. Shapes are those of one env: ``A`` is the size
of an encoded action, ``K`` the number of goals of size ``d`` in an instruction, ``M`` the number of
goals that may hold at once. Timestep t of a trajectory ``[B, L]`` holds the observation at t and
the action executed there; ``("next", ...)`` holds the outcome of that action.

This module imports only the standard library, because worker processes of environments import it
without torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """Entry of a timestep.

    Args:
        name: Key at the root.
        shape: Shape for one env, in symbols.
        dtype: Name of the torch dtype; None if the environment determines it.
        meaning: Description in one phrase.
        is_input: True if the timestep encoder reads it as an observation.
        is_stored: True if trajectories in replay hold it at the root.
        is_reserved: True if the format writes it, so that no observation of an environment may have
            this name.
    """

    name: str
    shape: str
    dtype: str | None
    meaning: str
    is_input: bool = False
    is_stored: bool = False
    is_reserved: bool = False


ENTRIES = (
    # The instruction, and goals for relabelling.
    Entry("goal", "(K, d)", "float32", "instruction as seen at t", is_stored=True),
    Entry(
        "achieved",
        "(M, d)",
        "float32",
        "goals that hold at t, for relabelling only; `(M)` int32: numbers of hidden goals",
        is_stored=True,
    ),
    Entry(
        "achieved_mask",
        "(M)",
        "bool",
        "slots of `achieved` that hold a goal",
        is_stored=True,
    ),
    Entry(
        "world_hash",
        "(1)",
        "int64",
        "hash of the task without its instruction, for relabelling only",
        is_stored=True,
    ),
    # Allowed actions, and the context from which an agent acts.
    Entry("action_mask", "(*)", "bool", "actions that are allowed at t", is_stored=True),
    Entry(
        "prev_action",
        "(A)",
        "float32",
        "action executed at t-1, encoded; zeros at t=0",
        is_input=True,
        is_stored=True,
        is_reserved=True,
    ),
    Entry(
        "prev_reward",
        "(1)",
        "float32",
        "reward received on arrival at t; 0 at t=0",
        is_input=True,
        is_stored=True,
        is_reserved=True,
    ),
    Entry(
        "time",
        "(1)",
        "float32",
        "t / horizon; absent without a horizon",
        is_input=True,
        is_stored=True,
        is_reserved=True,
    ),
    # Not reserved: an environment may have an observation that marks its own trials.
    Entry(
        "trial_start",
        "(1)",
        "bool",
        "True if an inner episode of the same task starts at t",
        is_input=True,
        is_stored=True,
    ),
    Entry("step_index", "(1)", "int64", "t", is_stored=True, is_reserved=True),
    Entry(
        "is_init",
        "(1)",
        "bool",
        "True if an episode starts at t: memory must be fresh",
        is_stored=True,
        is_reserved=True,
    ),
    Entry(
        "mask",
        "(1)",
        "bool",
        "True for a real timestep, False for padding; in stored batches only",
        is_stored=True,
    ),
    # Tasks and outcomes.
    Entry("task_seed", "(1)", "int64", "seed of the task", is_reserved=True),
    Entry(
        "played_seed",
        "(1)",
        "int64",
        "seed of the task that is played, with a curriculum",
        is_reserved=True,
    ),
    Entry("success", "(1)", "bool", "True if the whole task is done", is_reserved=True),
    Entry(
        "aborted",
        "(1)",
        "bool",
        "True if the episode ended because the environment failed",
        is_reserved=True,
    ),
    Entry("action", "(*)", None, "action executed at t", is_stored=True, is_reserved=True),
    Entry("reward", "(1)", "float32", "reward; stored under ``next``", is_reserved=True),
    Entry("done", "(1)", "bool", "terminated or truncated", is_reserved=True),
    Entry(
        "terminated",
        "(1)",
        "bool",
        "True if the episode ended and later values count as 0; stored under ``next``",
        is_reserved=True,
    ),
    Entry(
        "truncated",
        "(1)",
        "bool",
        "True if the episode was cut off and later values count; stored under ``next``",
        is_reserved=True,
    ),
)
"""All entries at the root of a timestep except the observations of the environment."""

CONTEXT = ("prev_action", "prev_reward", "time", "trial_start", "step_index", "is_init")
"""Entries added to the observations of an environment so that an agent can act from its history."""

ARRIVAL = ("prev_action", "prev_reward")
"""Part of the context that describes the transition to a timestep, not the timestep itself."""

DONE = ("done", "terminated", "truncated")
"""Flags of the end of an episode."""

RELABELLING = ("achieved", "achieved_mask", "world_hash")
"""Entries for hindsight relabelling only, which no policy may read."""

GOAL_KEYS = ("goal", "achieved", "achieved_mask")
"""Entries that an environment must emit for its trajectories to be relabelled."""

GOAL_PAD = -1.0
"""Value of every coordinate of an unused goal slot."""

GOAL_COMPLETED = -3.0
"""Value of every coordinate of a goal slot that the agent has completed."""

GOAL_TOLERANCE = 1e-3
"""Largest difference in any coordinate at which two goals are the same goal."""

# Goals are not among the inputs, because they have an encoder of their own.
NOT_INPUTS = tuple(entry.name for entry in ENTRIES if not entry.is_input)
"""Entries that the timestep encoder does not read as observations."""

NOT_STORED = tuple(entry.name for entry in ENTRIES if not entry.is_stored)
"""Entries not stored at the root: no learner reads them, or they are stored under ``next``."""

RESERVED = frozenset({"_reset", "next", *(entry.name for entry in ENTRIES if entry.is_reserved)})
"""Names that no observation of an environment may have.

``trial_start`` is allowed if it is a flag ``(1)``.
"""
