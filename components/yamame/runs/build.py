"""Functions that build the parts of a run, each from its section of the configuration.

They add the arguments that are known only at run time. `yamame.runs.checks` has the conditions on
several settings, or on settings and the environment.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tensordict.nn import TensorDictModuleBase
from torch.optim import Optimizer
from torchrl.envs import Compose, EnvBase, SerialEnv, Transform, TransformedEnv

from yamame import distributed
from yamame.agent import InContextAgent, InContextPolicy
from yamame.agent.assembly import KEYS, agent_arguments
from yamame.agent.discounts import discount_horizon
from yamame.checks import ArgumentError, BuildError, at_key, require_setting
from yamame.cli.nodes import instantiate, plain, select, target_of, with_changes
from yamame.cli.sections import AnyConfig
from yamame.cli.threads import share_threads
from yamame.cli.validation import parameters_of
from yamame.collectors import Collector
from yamame.data import Mixture, TrajectoryDataset, TrajectoryFormat
from yamame.deploy.build import check_device as check_device
from yamame.keys import GOAL_KEYS
from yamame.replay import Window
from yamame.runs import checks
from yamame.runs.alerts import ClippedTargetsWarning, EndlessWarning, RewardWarning
from yamame.runs.callbacks import Callback, Callbacks, Tracking
from yamame.runs.checks import check_lengths as check_lengths
from yamame.runs.checks import longest_episode as longest_episode
from yamame.runs.checks import relabels as relabels
from yamame.runs.novelty import lacks_worlds, warn_other_splits
from yamame.runs.progress_bar import ProgressBar
from yamame.system.messages import print_stderr, warnings_as_lines
from yamame.timestep import FlattenedWarning
from yamame.training.averaging import AveragedWeights
from yamame.training.guard import NonFiniteGuard
from yamame.training.learner import Learner
from yamame.training.progress import Progress
from yamame.transforms import ContextTransform

_READ_FROM_ENVS = ("novelty", "held_out_instructions", "goal_radius")
"""Attributes of environments that this package reads (`yamame_envs.ContextEnv`)."""


def build_env(cfg: AnyConfig, *, num_envs: int, seed: int, held_out: bool = False) -> EnvBase:
    """Build the environment in the format of `yamame.keys`.

    The class gets those of ``num_envs``, ``seed`` and ``device`` that its constructor takes. One
    without ``num_envs`` is built that many times, and its copies are stepped one after the other.

    Args:
        cfg: Composed configuration.
        num_envs: Number of environments in the batch.
        seed: Seed of the environments.
        held_out: Whether ``evaluation.env`` changes the settings.
    """
    changes = plain(cfg.evaluation.env) if held_out else {}
    parameters = parameters_of(target_of(cfg.env))
    given: dict[str, Any] = {}
    for name, value in (("num_envs", num_envs), ("seed", seed), ("device", cfg.device)):
        if name in parameters:
            given[name] = value
    build = partial(instantiate, cfg.env, **given, **changes)

    with _errors_at_changes(changes):
        env = build() if "num_envs" in parameters else _build_serial(num_envs, build, cfg.device)
    if "seed" not in parameters:  # otherwise the constructor has used it
        env.set_seed(seed)

    if select(cfg, "trials") is not None:
        env = instantiate(cfg.trials, env=env, seed=seed)
    if "step_index" in env.observation_spec.keys():
        return env
    # Environments of other libraries do not write the keys of the context themselves.
    return TransformedEnv(env, ContextTransform())


@contextmanager
def _errors_at_changes(changes: dict[str, Any]) -> Iterator[None]:
    """Within the block, errors about settings of ``evaluation.env`` get that key, not ``env``."""
    try:
        yield
    except ArgumentError as error:
        if error.key == "env" and error.name in changes:
            error.key = "evaluation.env"
            error.is_setting = True
        raise
    except BuildError as error:
        # The same environment without the changes was built before, for training.
        if error.key == "env" and changes:
            error.key = "evaluation.env"
        raise


def _build_serial(num_envs: int, build: Callable[[], EnvBase], device: str) -> EnvBase:
    """Build several environments that are stepped one after the other."""
    env = SerialEnv(num_envs, build, device=device)
    # SerialEnv has no attributes of its members before it is started.
    with closing(build()) as member:
        for name in _READ_FROM_ENVS:
            setattr(env, name, getattr(member, name, None))
    return env


def build_agent(cfg: AnyConfig, env: EnvBase, *, is_new: bool = True) -> InContextAgent:
    """Build the agent for an environment, with new weights, on the device of the configuration.

    Args:
        cfg: Composed configuration.
        env: Environment, or one of the same specs.
        is_new: Whether to print a line for each observation that is flattened.

    Raises:
        UsageError: A part has wrong arguments, the encoder has fewer positions than an episode has
            steps, or it needs a different device.
    """
    specs = env.observation_spec, env.full_action_spec["action"]
    loss = target_of(cfg.agent.loss)
    horizon = discount_horizon(env.observation_spec)
    arguments = agent_arguments(
        cfg, lambda section, key: instantiate(section), loss=loss, horizon=horizon
    )
    lines = warnings_as_lines(FlattenedWarning, prints=is_new and distributed.is_rank0())
    with at_key("agent", KEYS), lines:
        agent = InContextAgent(*specs, **arguments)
    checks.check_encoder(cfg, agent.trajectory_encoder, env)
    return agent.to(cfg.device)


def build_collector(
    cfg: AnyConfig,
    *,
    env: EnvBase,
    policy: InContextPolicy,
    replay: Any,
    exploration: TensorDictModuleBase,
) -> Collector:
    """Build the collector, which steps ``env``, or environments of its own in other processes.

    Processes with a share of a GPU act on it, all others on the CPU.
    """
    given: dict[str, Any] = {"policy": policy, "replay": replay, "exploration": exploration}
    if "make_env" in parameters_of(target_of(cfg.collector)):
        device = "cuda" if select(cfg, "collector.resources.num_gpus") else "cpu"
        given["make_env"] = partial(build_env, with_changes(cfg, {"device": device}))
        given["num_envs"] = distributed.shard(cfg.schedule.num_envs, "schedule.num_envs")
        given["seed"] = distributed.rank_seed(cfg.seed)
        # Workers of a cluster at a different address do not use this machine's cores.
        is_local = cfg.collector.get("address") is None
        share_threads(num_workers=cfg.collector.get("num_workers", 0) if is_local else 0)
    else:
        given["env"] = env
    collector: Collector = instantiate(cfg.collector, **given)
    return collector


def build_learner(
    cfg: AnyConfig,
    agent: InContextAgent,
    *,
    guard: NonFiniteGuard | None = None,
    fall: Callable[[int], float] | None = None,
) -> Learner:
    """Build the learner of an agent.

    Args:
        cfg: Composed configuration.
        agent: The agent.
        guard: Skips updates with NaN or Inf gradients; None for one that keeps no evidence.
        fall: Largest share of the learning rate after a number of updates, see
            `yamame.runs.schedules.annealing`; None: it stays after the warm-up.

    Raises:
        UsageError: The loss takes one discount factor and the agent has several, or a setting of
            the schedule is out of its range.
    """
    loss = _build_loss(cfg, agent).to(cfg.device)
    optimizer = build_optimizer(cfg, agent)
    schedule = cfg.schedule
    decay = select(schedule, "average_decay")
    with at_key("schedule", {"decay": "schedule.average_decay"}):
        averaged = None if decay is None else AveragedWeights(agent.policy(), decay=decay)
        return Learner(
            loss,
            optimizer,
            max_grad_norm=schedule.max_grad_norm,
            warmup_updates=schedule.warmup_updates,
            fall=fall,
            autocast=schedule.autocast,
            cuda_graph=bool(select(schedule, "cuda_graph")),
            compile=bool(select(schedule, "compile")),
            guard=guard,
            averaged=averaged,
        )


def _build_loss(cfg: AnyConfig, agent: InContextAgent) -> Any:
    # Losses of a single policy, such as PPO's, take one discount factor.
    if "gamma" in parameters_of(target_of(cfg.agent.loss)):
        gammas = list(agent.gammas)
        require_setting("agent.gammas", gammas, len(gammas) == 1, "hold one discount factor")
        discount: dict[str, Any] = {"gamma": gammas[0]}
    else:
        discount = {"gammas": agent.gammas}
    return instantiate(
        cfg.agent.loss,
        encoder=agent.encoder,
        actor=agent.actor,
        critic=agent.critic,
        returns=agent.returns,
        action_space=agent.action_space,
        **discount,
    )


def build_optimizer(cfg: AnyConfig, agent: InContextAgent) -> Optimizer:
    """Build the optimizer of all parameters of the agent that are learned.

    A class whose constructor takes ``module`` gets the agent as well, to read the roles of its
    parameters (`yamame.agent.roles`).
    """
    learned = [parameter for parameter in agent.parameters() if parameter.requires_grad]
    given: dict[str, Any] = {"params": learned}
    if "module" in parameters_of(target_of(cfg.optimizer)):
        given["module"] = agent
    optimizer: Optimizer = instantiate(cfg.optimizer, **given)
    return optimizer


def evaluated_policy(agent: InContextAgent, learner: Learner) -> InContextPolicy:
    """Return the policy to evaluate and deploy: with averaged weights if there are any."""
    return agent.policy() if learner.averaged is None else learner.averaged.network


def build_callbacks(cfg: AnyConfig, given: Sequence[Callback]) -> Callbacks:
    """Build all callbacks of a run, by name.

    Args:
        cfg: Composed configuration, with callbacks in the section ``callbacks``.
        given: Further callbacks, from Python.

    Raises:
        SettingError: A callback is not a `Callback`, or has the name of one of the run's own.
    """
    named: dict[str, Callback] = {
        "tracking": Tracking(),  # first, so that its run is open when others log
        "progress_bar": ProgressBar(),
        "reward_warning": RewardWarning(),
        "endless_warning": EndlessWarning(),
        "clipped_targets_warning": ClippedTargetsWarning(),
    }
    for name, node in cfg.callbacks.items():
        key = f"callbacks.{name}"
        is_node = isinstance(node, Mapping)
        require_setting(key, node, is_node, "be a mapping with _target_")
        condition = "have another name, for a callback of the run itself has this one"
        require_setting(key, name, name not in named, condition)
        named[str(name)] = instantiate(node)

    for callback in given:
        kind = type(callback).__name__
        # Numbered per class, so that a checkpoint's states find their callbacks again.
        number = sum(other.startswith(kind) for other in named)
        named[f"{kind}-{number}"] = callback

    for name, callback in named.items():
        checks.check_callback(f"callbacks.{name}", callback)
    return Callbacks(named)


def build_transform(cfg: AnyConfig, env: EnvBase, *, resumed: Path | None = None) -> Compose:
    """Build the transforms of sampled trajectories: relabelling, then windows, then packing.

    Args:
        cfg: Composed configuration.
        env: Environment of training. Its ``held_out_instructions``, if there are any, are rejected
            when relabelling (`yamame_envs.GoalEnv`).
        resumed: Folder of the trajectories of a resumed run.

    Raises:
        UsageError: The environment has no goals to relabel, or the class of ``relabel`` cannot
            reject held-out instructions.
    """
    transforms: list[Transform] = []
    has_goals = set(GOAL_KEYS) <= set(env.observation_spec.keys())
    # A user's class may rewrite something else, such as rewards.
    needs_goals = getattr(target_of(cfg.relabel), "needs_goals", False)
    checks.check_relabelled_entries(cfg, env.observation_spec.keys())
    if has_goals or not needs_goals:
        transforms.append(_build_relabelling(cfg, env, resumed))
    else:
        checks.check_no_relabelling(cfg)

    # Trajectories are relabelled whole: a window may not contain the step that reaches a goal.
    longest = [longest_episode(env)]
    if cfg.window is not None:
        window = instantiate(cfg.window)
        transforms.append(window)
        if isinstance(window, Window):
            longest.append(window.length)
    return Compose(*transforms, *build_packing(cfg, *longest))


def _build_relabelling(cfg: AnyConfig, env: EnvBase, resumed: Path | None) -> Transform:
    parameters = parameters_of(target_of(cfg.relabel))
    given: dict[str, Any] = {}
    radius = getattr(env, "goal_radius", None)  # of goals in a continuous space
    if radius is not None and "radius" in parameters:
        given["radius"] = radius

    held_out = getattr(env, "held_out_instructions", None)
    if held_out is not None and lacks_worlds(resumed, env):
        # Without hashes of their worlds, held-out instructions cannot be distinguished from others.
        if distributed.is_rank0():
            print_stderr(
                f"{resumed}: trajectories of an earlier version, without world_hash: relabelling "
                "continues as in that version, and may use held-out instructions"
            )
    elif held_out is not None and "held_out" in parameters:
        given["held_out"] = held_out
    elif held_out is not None:
        checks.check_no_held_out_relabelling(cfg)
    relabelling: Transform = instantiate(cfg.relabel, **given)
    return relabelling


def build_packing(cfg: AnyConfig, *steps: int | None) -> list[Transform]:
    """Build the packing of sequences.

    Args:
        cfg: Composed configuration.
        steps: Limits of the steps of a sequence; None for no limit.

    Returns:
        A list with the packing, or an empty one without packing.
    """
    if cfg.packing is None:
        return []
    given = {}
    if "longest" in parameters_of(target_of(cfg.packing)):
        # A sequence of n steps has n + 1 timesteps.
        timesteps = [limit + 1 for limit in steps if limit is not None]
        given["longest"] = min(timesteps, default=None)
    return [instantiate(cfg.packing, **given)]


def build_data(cfg: AnyConfig, env: EnvBase, *, transform: Transform) -> TrajectoryDataset | None:
    """Build the data of ``data=...`` as trajectories of an environment; None without data.

    Raises:
        UsageError: Goals are drawn by their rarity, and the source does not count them.
    """
    if cfg.data.source is None:
        return None
    warn_other_splits(cfg)
    data: TrajectoryDataset = instantiate(
        cfg.data.source, format=TrajectoryFormat(env), transform=transform
    )
    checks.check_goal_counts(data, transform)
    return data


def build_source(
    cfg: AnyConfig, env: EnvBase, *, replay: Any, transform: Transform, progress: Progress
) -> Any:
    """Build the source of batches: the replay buffer, or a mixture of it and of data.

    Raises:
        UsageError: A share is not in [0, 1], or ``schedule.offline_updates`` needs data.
    """
    data = build_data(cfg, env, transform=transform)
    if data is None:
        offline = cfg.schedule.offline_updates
        remedy = "set data=runs data.path=..."
        condition = "be 0 with data=none"
        require_setting("schedule.offline_updates", offline, not offline, condition, remedy=remedy)
        return replay

    first = cfg.data.weight
    last = first if cfg.data.final_weight is None else cfg.data.final_weight
    for key, share in (("data.weight", first), ("data.final_weight", last)):
        require_setting(key, share, 0.0 <= share <= 1.0, "be a share in [0, 1]")
    return Mixture(
        {"data": data, "replay": replay},
        weights={"data": first, "replay": 1.0 - first},
        final_weights={"data": last, "replay": 1.0 - last},
        anneal=cfg.data.anneal,
        count=partial(getattr, progress, cfg.data.anneal_by),
    )


def build_replay(
    cfg: AnyConfig, path: Path, *, transform: Transform, owner: str, resume: bool
) -> Any:
    """Build the replay buffer, with its files in a folder of the run.

    Args:
        cfg: Composed configuration.
        path: Folder of the files.
        transform: Transform of sampled trajectories.
        owner: Name of the run.
        resume: Whether the run is resumed.

    Raises:
        UsageError: The run is resumed and the folder is missing, or it is new and the folder holds
            trajectories of another run.
    """
    checks.check_replay_folder(path, owner=owner, resume=resume)
    if not resume and path.is_dir():
        shutil.rmtree(path)  # of a run that was stopped before its first checkpoint

    given: dict[str, Any] = {"path": path, "transform": transform, "resume": resume}
    # The name of a run may have changed since it began; the checkpoint has the former one.
    given["owner"] = None if resume else owner
    is_mixed = select(cfg, "data.source") is not None
    follows_lengths = select(cfg, "schedule.batch_timesteps") is not None
    # Checked here in any case: smaller batches of long episodes are rounded to the processes.
    own_size = distributed.shard(cfg.schedule.batch_size, "schedule.batch_size")
    # None where it differs from batch to batch.
    given["batch_size"] = None if is_mixed or follows_lengths else own_size
    if "held_out" in cfg.replay and select(cfg, "schedule.regulator") is None:
        given["held_out"] = None  # nothing is observed on held-out trajectories
    # The buffers of all ranks together hold as much as that of a single process.
    if distributed.world_size() > 1 and "capacity" in cfg.replay:
        given["capacity"] = cfg.replay.capacity // distributed.world_size()
    return instantiate(cfg.replay, **given)


def total_updates(cfg: AnyConfig) -> int | None:
    """Return the updates within the budget, without its minutes; None if only these are limited."""
    budget, schedule = cfg.budget, cfg.schedule
    limits = []
    if budget.updates is not None:
        limits.append(budget.updates)
    # Only recipes with offline_updates make a number of updates per step.
    if budget.env_steps is not None and select(schedule, "offline_updates") is not None:
        steps = budget.env_steps - schedule.learning_starts
        limits.append(int(steps * schedule.updates_per_step) + schedule.offline_updates)
    # A schedule needs an end, even if the budget is spent before the first update.
    return max(1, int(min(limits))) if limits else None
