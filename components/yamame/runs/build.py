"""The parts that every recipe builds from a configuration: environment, agent, learner, replay,
collector.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tensordict.nn import TensorDictModuleBase
from torch.optim import Optimizer
from torchrl.envs import Compose, EnvBase, SerialEnv, Transform, TransformedEnv

from yamame import distributed
from yamame.agent import InContextAgent, InContextPolicy
from yamame.checks import UsageError
from yamame.cli.nodes import instantiate, plain, target_of
from yamame.cli.threads import share_threads
from yamame.cli.validation import parameters_of
from yamame.collectors import Collector
from yamame.data import Mixture, TrajectoryDataset, TrajectoryFormat
from yamame.deploy.build import assemble
from yamame.deploy.build import check_device as check_device
from yamame.keys import GOAL_KEYS
from yamame.replay import GoalFrequencies, Window
from yamame.replay.disk.files import read_manifests
from yamame.replay.frequencies import counting
from yamame.runs.callbacks import (
    Callback,
    Callbacks,
    ClippedTargetsWarning,
    EndlessWarning,
    RewardWarning,
    Tracking,
)
from yamame.runs.novelty import lacks_worlds, tell_other_splits
from yamame.runs.progress_bar import ProgressBar
from yamame.system.budget import Budget
from yamame.system.messages import format_value, print_stderr
from yamame.training.averaging import AveragedWeights
from yamame.training.guard import NonFiniteGuard
from yamame.training.learner import Learner
from yamame.training.progress import Progress
from yamame.transforms import ContextTransform


def build_env(cfg: DictConfig, *, num_envs: int, seed: int, held_out: bool = False) -> EnvBase:
    """The environment of the configuration, ``num_envs`` times, in the format of `yamame.keys`.

    Its class is given those of ``num_envs``, ``seed`` and ``device`` that its constructor names.
    One without ``num_envs`` is built so many times, and stepped one after the other.
    """
    changed = plain(cfg.evaluation.env) if held_out else {}
    given = {"num_envs": num_envs, "seed": seed, "device": cfg.device}
    known = parameters_of(target_of(cfg.env))
    build = partial(
        instantiate, cfg.env, **{k: v for k, v in given.items() if k in known}, **changed
    )
    try:
        env = build() if "num_envs" in known else _in_turn(num_envs, build, cfg.device)
    except UsageError as error:
        named = [f".{name}" for name in changed if name in str(error)]
        if not named:
            raise
        raise UsageError(f"evaluation.env{named[0]}: {str(error).removeprefix('env: ')}") from error
    if "seed" not in known:
        env.set_seed(seed)
    trials = cfg.get("trials")
    env = env if trials is None else instantiate(trials, env=env, seed=seed)
    has_context = "step_index" in env.observation_spec.keys()
    return env if has_context else TransformedEnv(env, ContextTransform())


def _in_turn(num_envs: int, build: Callable[[], EnvBase], device: str) -> EnvBase:
    """Several environments stepped one after the other, with the attributes of one that are read
    here.
    """
    env = SerialEnv(num_envs, build, device=device)
    with closing(build()) as one:
        for name in ("novelty", "held_out_instructions", "goal_radius"):
            setattr(
                env, name, getattr(one, name, None)
            )  # SerialEnv itself has none before it is started
    return env


def build_agent(cfg: DictConfig, env: EnvBase) -> InContextAgent:
    """The agent of the configuration, fitted to an environment.

    Raises:
        UsageError: Its encoder has learnt fewer positions than an episode has.
    """
    specs = env.observation_spec, env.full_action_spec["action"]
    agent = assemble(cfg, *specs, instantiate=instantiate, loss=target_of(cfg.agent.loss))
    steps, most = longest_episode(env), getattr(agent.trajectory_encoder, "num_positions", None)
    if most is not None and steps is not None and most <= steps:
        name = type(agent.trajectory_encoder).__name__
        given = f"{name} learns {most} positions; set encoder.settings.n_positions={steps + 1}, or a rotary model"
        raise UsageError(
            f"encoder.settings: must have positions for the longest episode, {steps} steps: {given}"
        )
    if getattr(agent.trajectory_encoder, "needs_cuda", False) and not cfg.device.startswith("cuda"):
        name = type(agent.trajectory_encoder).__name__
        raise UsageError(f"device: must be cuda with encoder {name}, got {cfg.device}")
    return agent.to(cfg.device)


def build_collector(
    cfg: DictConfig,
    *,
    env: EnvBase,
    policy: InContextPolicy,
    replay: Any,
    exploration: TensorDictModuleBase,
) -> Collector:
    """The collector of the configuration: it acts in ``env``, or in environments of its own in
    other processes.

    Processes that are given a GPU act on it; all others act on processors.
    """
    given: dict[str, Any] = {"policy": policy, "replay": replay, "exploration": exploration}
    if "make_env" in parameters_of(target_of(cfg.collector)):
        device = "cuda" if OmegaConf.select(cfg, "collector.resources.num_gpus") else "cpu"
        make_env = partial(build_env, OmegaConf.create({**cfg, "device": device}))
        num_envs = distributed.shard(cfg.schedule.num_envs, "schedule.num_envs")
        given |= {
            "make_env": make_env,
            "num_envs": num_envs,
            "seed": distributed.rank_seed(cfg.seed),
        }
        is_here = cfg.collector.get("address") is None
        share_threads(num_workers=cfg.collector.get("num_workers", 0) if is_here else 0)
    else:
        given["env"] = env
    collector: Collector = instantiate(cfg.collector, **given)
    return collector


def build_learner(
    cfg: DictConfig,
    agent: InContextAgent,
    *,
    guard: NonFiniteGuard | None = None,
    budget: Budget | None = None,
) -> Learner:
    """The learner of the configuration for an agent.

    The guard refuses updates that are not finite; the minutes of the budget let the learning rate
    fall in time.

    Raises:
        UsageError: The loss takes one discount factor, and the agent has several; or a setting of
            the schedule is refused.
    """
    given: dict[str, Any] = {"gammas": agent.gammas}
    if "gamma" in parameters_of(target_of(cfg.agent.loss)):
        if len(agent.gammas) != 1:
            raise UsageError(
                f"agent.gammas: must hold one discount factor, got {list(agent.gammas)}"
            )
        given = {"gamma": agent.gammas[0]}
    loss = instantiate(
        cfg.agent.loss,
        encoder=agent.encoder,
        actor=agent.actor,
        critic=agent.critic,
        returns=agent.returns,
        action_space=agent.action_space,
        **given,
    ).to(cfg.device)
    optimizer = build_optimizer(cfg, agent)
    anneals, decay = cfg.schedule.get("anneal_lr"), cfg.schedule.get("average_decay")
    minutes = budget if anneals and budget is not None and budget.minutes is not None else None
    try:
        return Learner(
            loss,
            optimizer,
            max_grad_norm=cfg.schedule.max_grad_norm,
            warmup_updates=cfg.schedule.warmup_updates,
            total_updates=total_updates(cfg) if anneals else None,
            autocast=cfg.schedule.autocast,
            cuda_graph=bool(cfg.schedule.get("cuda_graph")),
            compile=bool(cfg.schedule.get("compile")),
            guard=guard,
            averaged=None if decay is None else AveragedWeights(agent.policy(), decay=decay),
            time_spent=lambda: (
                0.0 if minutes is None else distributed.broadcast(minutes.time_spent)
            ),
        )
    except ValueError as error:  # its arguments are keys of the schedule
        keyed = str(error).replace("AveragedWeights: decay", "schedule.average_decay", 1)
        raise UsageError(keyed.replace("Learner: ", "schedule.", 1)) from error


def build_optimizer(cfg: DictConfig, agent: InContextAgent) -> Optimizer:
    """The optimizer of the configuration, over all parameters of the agent that are learned.

    One whose constructor has an argument ``module`` is given the agent as well, to ask for the
    roles of parameters.
    """
    given: dict[str, Any] = {"params": [p for p in agent.parameters() if p.requires_grad]}
    if "module" in parameters_of(target_of(cfg.optimizer)):
        given["module"] = agent
    optimizer: Optimizer = instantiate(cfg.optimizer, **given)
    return optimizer


def evaluated_policy(agent: InContextAgent, learner: Learner) -> InContextPolicy:
    """The policy that is evaluated and deployed: that of averaged weights, where they are kept."""
    return agent.policy() if learner.averaged is None else learner.averaged.network


def build_callbacks(cfg: DictConfig, given: Sequence[Callback]) -> Callbacks:
    """What is told of a run, by name: its tracker, its bar, those of the configuration, and others.

    Raises:
        UsageError: One of them is no `Callback`.
    """
    named: dict[str, Callback] = {
        "tracking": Tracking(),
        "progress_bar": ProgressBar(),
        "reward_warning": RewardWarning(),
        "endless_warning": EndlessWarning(),
        "clipped_targets_warning": ClippedTargetsWarning(),
    }
    for name, node in cfg.callbacks.items():
        if not isinstance(node, DictConfig):
            raise UsageError(
                f"callbacks.{name}: must be a mapping with _target_, got {format_value(node)}"
            )
        if name in named:
            raise UsageError(
                f"callbacks.{name}: must have another name, for that of the run itself has this one"
            )
        named[str(name)] = instantiate(node)
    for callback in given:
        name = type(callback).__name__
        named[f"{name}-{sum(other.startswith(name) for other in named)}"] = callback
    for name, callback in named.items():
        if not isinstance(callback, Callback):
            raise UsageError(
                f"callbacks.{name}: must be a yamame.Callback, got {type(callback).__name__}"
            )
        events = [name for name in dir(callback) if name.startswith("on_")]
        if strange := [event for event in events if not hasattr(Callback, event)]:
            known = ", ".join(name for name in dir(Callback) if name.startswith("on_"))
            raise UsageError(
                f"callbacks.{name}: must have methods of events, {known}, got {strange[0]}"
            )
        if hasattr(callback, "state_dict") != hasattr(callback, "load_state_dict"):
            raise UsageError(
                f"callbacks.{name}: must have both state_dict and load_state_dict, or neither"
            )
    return Callbacks(named)


def longest_episode(env: EnvBase) -> int | None:
    """Steps of the longest episode; None where the environment does not tell."""
    bound = getattr(env.observation_spec["step_index"].space, "high", None)
    return None if bound is None else int(bound.max())


def check_lengths(cfg: DictConfig, env: EnvBase) -> None:
    """Refuses budgets that end before the first update, and episodes longer than replay or a learnt
    table of positions.

    Raises:
        UsageError: Names the key, and the length where the environment tells it.
    """
    schedule, allowed = cfg.schedule, cfg.budget.env_steps
    if allowed is not None and schedule.updates_per_step > 0 and not schedule.offline_updates:
        least = schedule.learning_starts + math.ceil(1 / schedule.updates_per_step)
        if allowed < least:
            raise UsageError(
                f"budget.env_steps must be at least {least}, where the first update is made, got {allowed}"
            )
    steps = longest_episode(env)
    if steps is None or steps >= 2**31:
        return
    num_positions = cfg.encoder.get("num_positions")
    if num_positions is not None and num_positions <= steps:
        raise UsageError(
            f"encoder.num_positions: must exceed the longest episode, {steps} steps, got {num_positions}"
        )
    capacity = cfg.replay.get("capacity")
    if capacity is not None and capacity <= steps:
        raise UsageError(
            f"replay.capacity: must hold an episode of {steps + 1} timesteps, got {capacity}"
        )


def build_transform(cfg: DictConfig, env: EnvBase, *, resumed: Path | None = None) -> Compose:
    """What happens to trajectories when they are sampled: relabelled whole, then cut, then packed.

    Args:
        cfg: The configuration.
        env: The environment that training plays, which tells the instructions that are held out
            from training (``held_out_instructions``, see `yamame_envs.GoalEnv`), if its split holds
            any.
        resumed: Folder of the trajectories of a run that goes on.

    Raises:
        UsageError: Goals are to be relabelled in an environment that has none; or held-out
            instructions are to be rejected by a class that cannot.
    """
    has_goals = set(GOAL_KEYS) <= set(env.observation_spec.keys())
    if relabels(cfg) and not has_goals:
        name, strategy = type(env).__name__, cfg.relabel.get("strategy")
        raise UsageError(
            f"relabel.strategy={strategy}: {name} has no goals to relabel; set relabel=none"
        )
    relabel = []
    if has_goals:
        radius = getattr(env, "goal_radius", None)  # of goals in a continuous space
        known = parameters_of(target_of(cfg.relabel))
        given = {} if radius is None or "radius" not in known else {"radius": radius}
        held_out = getattr(env, "held_out_instructions", None)
        if held_out is not None and lacks_worlds(resumed, env):
            if distributed.is_rank0():
                print_stderr(
                    f"{resumed}: trajectories of an earlier version, without world_hash: relabelling goes on as it "
                    "did, and may use instructions that are held out"
                )
        elif held_out is not None:
            if "held_out" in known:
                given["held_out"] = held_out
            elif relabels(cfg):
                name = target_of(cfg.relabel).__name__
                raise UsageError(
                    f"relabel: {name} must take held_out, as the split of env holds instructions out that relabelling "
                    "must not use; set relabel=none, or another split of env"
                )
        relabel = [instantiate(cfg.relabel, **given)]
    window = [] if cfg.window is None else [instantiate(cfg.window)]
    lengths = [transform.length for transform in window if isinstance(transform, Window)]
    return Compose(*relabel, *window, *build_packing(cfg, longest_episode(env), *lengths))


def build_packing(cfg: DictConfig, *steps: int | None) -> list[Transform]:
    """The packing of the configuration, if there is one; what is packed has at most so many
    steps.
    """
    if cfg.packing is None:
        return []
    longest = min((known + 1 for known in steps if known is not None), default=None)
    takes = "longest" in parameters_of(target_of(cfg.packing))
    return [instantiate(cfg.packing, **({"longest": longest} if takes else {}))]


def relabels(cfg: DictConfig) -> bool:
    """Whether trajectories are relabelled: always, by a class that knows no ``strategy``."""
    return bool(cfg.relabel.get("strategy") != "none")


def build_data(cfg: DictConfig, env: EnvBase, *, transform: Transform) -> TrajectoryDataset | None:
    """The data of the configuration, as trajectories of an environment; None where there is none.

    Raises:
        UsageError: Goals are drawn by their rarity, and the source does not count them.
    """
    if cfg.data.source is None:
        return None
    tell_other_splits(cfg)
    data: TrajectoryDataset = instantiate(
        cfg.data.source, format=TrajectoryFormat(env), transform=transform
    )
    tables = [
        part.rarity for part in counting(transform) if isinstance(part.rarity, GoalFrequencies)
    ]
    if not all(bool(table.totals.any()) for table in tables):
        raise UsageError(
            f"data.source: {type(data).__name__} must count its goals, for relabel.rarity, it does not; build it on "
            "yamame.data.TrajectoryDataset, call count_goals of the transform, or set relabel=some"
        )
    return data


def build_source(
    cfg: DictConfig, env: EnvBase, *, replay: Any, transform: Transform, progress: Progress
) -> Any:
    """What the learner draws from: replay, or a mixture of data and replay.

    Raises:
        UsageError: A share is none, or updates are to be made from data, and there is none.
    """
    data, setting = build_data(cfg, env, transform=transform), cfg.data
    if data is None:
        if cfg.schedule.offline_updates:
            given = f"needs data, got {cfg.schedule.offline_updates} with data=none; set data=runs data.path=..."
            raise UsageError(f"schedule.offline_updates: {given}")
        return replay
    shares = [
        setting.weight,
        setting.weight if setting.final_weight is None else setting.final_weight,
    ]
    for key, share in zip(("weight", "final_weight"), shares, strict=True):
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"data.{key}: must be a share in [0, 1], got {share}")
    weights, final_weights = ({"data": share, "replay": 1.0 - share} for share in shares)
    count = partial(getattr, progress, setting.anneal_by)
    sources = {"data": data, "replay": replay}
    return Mixture(
        sources, weights=weights, final_weights=final_weights, anneal=setting.anneal, count=count
    )


def build_replay(
    cfg: DictConfig, path: Path, *, transform: Transform, owner: str, resume: bool
) -> Any:
    """The replay buffer of the configuration, with its files in a folder of the run.

    Raises:
        UsageError: The run is resumed, and the folder is gone; or it begins, and the folder holds
            others' trajectories.
    """
    if not resume and path.is_dir():
        written_by = {manifest["owner"] for manifest in read_manifests(path)}
        if not written_by <= {owner}:
            raise UsageError(
                f"run.name: {path} must be new, it holds trajectories that this run has not collected; give the run "
                f"another name, and learn from them with data=runs data.path={path}"
            )
        shutil.rmtree(path)  # a run that was stopped before its first checkpoint begins again
    if resume and not path.is_dir():
        raise UsageError(
            f"resume: {path} must hold the trajectories of the run, it is missing; bring it back, or begin anew with "
            "run.overwrite=true"
        )
    is_mixed = (
        "data" in cfg and cfg.data.source is not None
    )  # then its share differs from batch to batch
    batch_size = (
        None if is_mixed else distributed.shard(cfg.schedule.batch_size, "schedule.batch_size")
    )
    given = {"path": path, "batch_size": batch_size, "transform": transform}
    if distributed.world_size() > 1 and "capacity" in cfg.replay:
        given["capacity"] = cfg.replay.capacity // distributed.world_size()
    # A run may have got another name since it began; its checkpoint says whose trajectories they
    # must be.
    return instantiate(cfg.replay, owner=None if resume else owner, resume=resume, **given)


def total_updates(cfg: DictConfig) -> int | None:
    """The updates that the budget allows, whatever its minutes; None where only these are
    limited.
    """
    budget, schedule = cfg.budget, cfg.schedule
    limits = [] if budget.updates is None else [budget.updates]
    if (
        budget.env_steps is not None and "offline_updates" in schedule
    ):  # others make no update per step
        allowed = int((budget.env_steps - schedule.learning_starts) * schedule.updates_per_step)
        limits.append(allowed + schedule.offline_updates)
    return max(1, int(min(limits))) if limits else None
