"""Conditions on several settings, or on settings and the environment.

Conditions on one argument stand in the signature of its constructor (`yamame.checks`).
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tensordict import NestedKey
from torchrl.envs import EnvBase, Transform

from yamame.checks import UsageError, require_setting
from yamame.cli.nodes import select, target_of
from yamame.cli.sections import AnyConfig
from yamame.data import TrajectoryDataset
from yamame.replay import GoalFrequencies
from yamame.replay.disk.files import read_manifests
from yamame.replay.frequencies import counting
from yamame.runs.callbacks import Callback
from yamame.trajectory import TrajectoryEncoder
from yamame.transforms.context import episode_limit

_REGULATOR = ("observe", "factor", "state_dict", "load_state_dict")
_HOLDS_OUT = ("sample_held_out", "num_held_out")


def longest_episode(env: EnvBase) -> int | None:
    """Return the steps of the longest episode; None if the environment has no limit."""
    return episode_limit(env.observation_spec)


def relabels(cfg: AnyConfig) -> bool:
    """Return whether trajectories are relabelled.

    A class of ``relabel`` without the setting ``strategy`` always relabels.
    """
    return bool(cfg.relabel.get("strategy") != "none")


def check_lengths(cfg: AnyConfig, env: EnvBase, regulator: Any = None) -> None:
    """Check the budget against the first update, and replay against the longest episode.

    Args:
        cfg: Composed configuration.
        env: Environment of training.
        regulator: Object of ``schedule.regulator``, before its first observation; None without one.

    Raises:
        SettingError: The budget never ends, or ends before the first update, or an episode has more
            steps than the replay buffer.
    """
    schedule = cfg.schedule
    budget = cfg.budget
    # Without another limit, minutes=auto is none.
    is_limited = budget.env_steps or budget.cpu_s or budget.minutes not in (None, "auto")
    rate = schedule.updates_per_step
    ends = is_limited or rate > 0 or (budget.updates or 0) <= schedule.offline_updates
    condition = "be positive where budget.updates is the only limit, or the run never ends"
    require_setting("schedule.updates_per_step", rate, bool(ends), condition)

    allowed = budget.env_steps
    # Custom regulators are checked later, and may allow no update at first.
    rate *= float(getattr(regulator, "factor", 1.0))
    if allowed is not None and rate > 0 and not schedule.offline_updates:
        # Below 1, updates per step first add up to a whole update.
        least = schedule.learning_starts + math.ceil(1 / rate)
        condition = f"be at least {least}, the earliest step of an update"
        # The budget is a float; 600 is shown as it was given.
        shown = int(allowed) if allowed == int(allowed) else allowed
        require_setting("budget.env_steps", shown, allowed >= least, condition)

    steps = longest_episode(env)
    if steps is None:
        return
    capacity = cfg.replay.get("capacity")
    if capacity is not None:  # whole trajectories are evicted, this one could not be stored
        condition = f"hold an episode of {steps + 1} timesteps"
        require_setting("replay.capacity", capacity, capacity > steps, condition)


def check_positions(cfg: AnyConfig, env: EnvBase, *, max_steps: int | None = None) -> None:
    """Check a learned table of positions against the longest episode.

    Args:
        cfg: Composed configuration.
        env: Environment of training, or of evaluation.
        max_steps: Steps after which episodes are cut; None if they are not.

    Raises:
        SettingError: An episode has more steps than the table.
    """
    positions = select(cfg, "encoder.num_positions")
    steps = longest_episode(env)
    if positions is None or steps is None:
        return
    if max_steps is not None:
        steps = min(steps, max_steps)
    condition = f"exceed the longest episode, {steps} steps"  # n steps have n + 1 timesteps
    require_setting("encoder.num_positions", positions, positions > steps, condition)


def check_encoder(cfg: AnyConfig, encoder: TrajectoryEncoder, env: EnvBase) -> None:
    """Check the positions of an encoder against the longest episode, and its device.

    Raises:
        UsageError: The encoder has fewer positions, or needs a different device.
    """
    name = type(encoder).__name__
    steps = longest_episode(env)
    positions = getattr(encoder, "num_positions", None)
    if positions is not None and steps is not None:
        condition = f"have positions for the longest episode, {steps} steps"
        remedy = f"set encoder.settings.n_positions={steps + 1}, or choose a rotary model"
        fits = positions > steps
        require_setting("encoder.settings", positions, fits, condition, remedy=remedy)
    needs_cuda = getattr(encoder, "needs_cuda", False)
    is_cuda = cfg.device.startswith("cuda")
    require_setting("device", cfg.device, is_cuda or not needs_cuda, f"be cuda with encoder {name}")


def check_callback(key: str, callback: Any) -> None:
    """Check that an object is a callback whose methods are known events.

    Raises:
        SettingError: The object is not a `Callback`, has a method of an unknown event, or has only
            one of ``state_dict`` and ``load_state_dict``.
    """
    kind = type(callback).__name__
    require_setting(key, kind, isinstance(callback, Callback), "be a yamame.Callback")

    known = ", ".join(name for name in dir(Callback) if name.startswith("on_"))
    for name in dir(callback):
        # A misspelled method would never be called.
        if name.startswith("on_"):
            require_setting(key, name, hasattr(Callback, name), f"have methods of events, {known}")

    saves = hasattr(callback, "state_dict")
    restores = hasattr(callback, "load_state_dict")
    condition = "have both state_dict and load_state_dict, or neither"
    require_setting(key, kind, saves == restores, condition)


def check_no_relabelling(cfg: AnyConfig) -> None:
    """Check that no goals are to be relabelled in an environment without goals.

    Raises:
        SettingError: Trajectories are to be relabelled.
    """
    name = target_of(cfg.env).__name__
    value = cfg.relabel.get("strategy", target_of(cfg.relabel).__name__)
    condition = f"be none, for {name} has no goals to relabel"
    require_setting("relabel", value, not relabels(cfg), condition, remedy="set relabel=none")


def check_relabelled_entries(cfg: AnyConfig, observed: Collection[NestedKey]) -> None:
    """Check that an environment writes what the class of ``relabel`` needs (``needs_entries``).

    Raises:
        SettingError: An entry is missing.
    """
    relabelling = target_of(cfg.relabel)
    missing = [key for key in getattr(relabelling, "needs_entries", ()) if key not in observed]
    condition = f"be none, because the environment does not write {', '.join(missing)}"
    remedy = None
    if missing:
        remedy = "set relabel=none; yamame_envs.XLand writes it with env.achieved=true trials=none"
    require_setting("relabel", relabelling.__name__, not missing, condition, remedy=remedy)


def check_no_held_out_relabelling(cfg: AnyConfig) -> None:
    """Check that a class without ``held_out`` does not relabel if instructions are held out.

    Raises:
        SettingError: The class of ``relabel`` would use held-out instructions.
    """
    name = target_of(cfg.relabel).__name__
    condition = "take held_out, as the split of env holds instructions out from relabelling"
    remedy = "set relabel=none, or a different split of env"
    require_setting("relabel", name, not relabels(cfg), condition, remedy=remedy)


def check_goal_counts(data: TrajectoryDataset, transform: Transform) -> None:
    """Check that a source of data has counted its goals, if goals are drawn by their rarity.

    Raises:
        SettingError: The source has not counted them.
    """
    name = type(data).__name__
    for part in counting(transform):
        if not isinstance(part.rarity, GoalFrequencies):
            continue
        is_counted = bool(part.rarity.totals.any())
        condition = "count its goals, for relabel.rarity"
        remedy = (
            "build it on yamame.data.TrajectoryDataset, call count_goals of the transform, or set "
            "relabel=some"
        )
        require_setting("data.source", name, is_counted, condition, remedy=remedy)


def check_replay_folder(path: Path, *, owner: str, resume: bool) -> None:
    """Check that a run's folder of trajectories belongs to the run, and exists on resume.

    Raises:
        UsageError: A resumed run's folder is missing, or a new run's folder holds trajectories of
            a different run.
    """
    exists = path.is_dir()
    if resume and not exists:
        raise UsageError(
            f"{path} must hold the trajectories of the run, it is missing",
            key="resume",
            remedy="restore it, or start again with run.overwrite=true",
        )
    if resume or not exists:
        return
    owners = {manifest["owner"] for manifest in read_manifests(path)}
    if not owners <= {owner}:
        raise UsageError(
            f"{path} must be new, it holds trajectories that this run has not collected",
            key="run.name",
            remedy="give the run a different name, and learn from them with "
            f"data=runs data.path={path}",
        )


def check_regulation(regulator: Any, replay: Any) -> None:
    """Check a regulator of updates, and that the replay buffer holds trajectories out for it.

    Args:
        regulator: Object of ``schedule.regulator``; None: nothing is checked.
        replay: Replay buffer of the run.

    Raises:
        SettingError: The regulator lacks a method, or the buffer holds no trajectories out.
    """
    if regulator is None:
        return
    missing = [name for name in _REGULATOR if not hasattr(regulator, name)]
    name = type(regulator).__name__
    condition = f"have {', '.join(_REGULATOR)} (it lacks {', '.join(missing)})"
    require_setting("schedule.regulator", name, not missing, condition)

    missing = [name for name in _HOLDS_OUT if not hasattr(replay, name)]
    name = type(replay).__name__
    condition = "have sample_held_out and num_held_out, which schedule.regulator needs"
    remedy = (
        "add them as in yamame.replay.TrajectoryReplayBuffer, or set schedule.regulator=null for "
        "a constant number of updates per step"
    )
    require_setting("replay", name, not missing, condition, remedy=remedy)
    # Custom buffers need not have the setting.
    holds_out = getattr(replay, "held_out", True) is not None
    remedy = "set replay.held_out=16, or schedule.regulator=null"
    condition = "be a number with schedule.regulator"
    require_setting("replay.held_out", None, holds_out, condition, remedy=remedy)
