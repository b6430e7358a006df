"""The curriculum of a run: its environment, and the replay that shows it every finished episode."""

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.checks import require_setting
from yamame.cli.nodes import instantiate, select, target_of
from yamame.cli.sections import AnyConfig
from yamame.cli.validation import parameters_of
from yamame.curriculum import ObservedReplay
from yamame.curriculum.base import NEEDS
from yamame.runs.state import RunState
from yamame.training.learner import Learner

_METHODS = ("choose", "observe", "state_dict", "load_state_dict")


def follow_curriculum(run: RunState, env: EnvBase, *, seed: int) -> EnvBase:
    """Return an environment of training whose tasks ``curriculum`` chooses; itself without one.

    The curriculum is ``run.curriculum`` from then on.

    Args:
        run: The run.
        env: Environment of training.
        seed: Its seed.

    Raises:
        UsageError: The curriculum lacks a method, the tasks of the environment are no seeds, or the
            collector does not step this environment.
    """
    cfg = run.cfg
    if select(cfg, "curriculum") is None:
        return env
    _check_collector(cfg)
    run.curriculum = instantiate(cfg.curriculum)
    _check_curriculum(run.curriculum, env)
    # By its name, because components do not import environments.
    wrapper = {"_target_": "yamame_envs.CurriculumEnv"}
    followed: EnvBase = instantiate(wrapper, env=env, curriculum=run.curriculum, seed=seed)
    return followed


def observed(run: RunState, env: EnvBase, replay: Any, learner: Learner) -> Any:
    """Return the replay that a collector fills; with a curriculum, that sees every episode first.

    Args:
        run: The run.
        env: Result of `follow_curriculum`.
        replay: Replay buffer.
        learner: Its values score the episodes.

    Raises:
        SettingError: The curriculum needs errors of critics, and the loss has none.
    """
    if run.curriculum is None:
        return replay
    _check_loss(run.curriculum, learner.loss)
    device = run.cfg.device

    def td_errors(trajectories: TensorDictBase) -> Tensor:
        return learner.td_errors(trajectories.to(device)).cpu()

    return ObservedReplay(
        replay,
        observe=env.observe,
        td_errors=td_errors,
        discount=float(getattr(learner.loss, "acting_discount", 1.0)),
        max_steps=run.cfg.context_length,
    )


def _check_collector(cfg: AnyConfig) -> None:
    """Raise if environments are stepped in other processes, which a curriculum does not reach."""
    collector = select(cfg, "collector")
    if collector is None:
        return
    target = target_of(collector)
    is_here = "make_env" not in parameters_of(target)
    condition = "step env itself with a curriculum, which chooses tasks in this process"
    remedy = "set collector=sync, or leave the curriculum out"
    require_setting("collector", target.__name__, is_here, condition, remedy=remedy)


def _check_curriculum(curriculum: Any, env: EnvBase) -> None:
    name = type(curriculum).__name__
    missing = [method for method in _METHODS if not hasattr(curriculum, method)]
    condition = f"have {', '.join(_METHODS)} (it lacks {', '.join(missing)})"
    require_setting("curriculum", name, not missing, condition)

    needs = getattr(curriculum, "needs", ())
    is_known = isinstance(needs, tuple | list | set | frozenset) and set(needs) <= set(NEEDS)
    condition = f"need no others than {', '.join(map(repr, NEEDS))}, as a tuple"
    require_setting("curriculum.needs", needs, is_known, condition)

    fits = "success" not in needs or "success" in env.observation_spec.keys()
    condition = "not need success, which this environment does not report"
    remedy = "set curriculum.score=value_loss" if hasattr(curriculum, "score") else None
    require_setting("curriculum", name, fits, condition, remedy=remedy)


def _check_loss(curriculum: Any, loss: Any) -> None:
    needs_errors = "td_errors" in getattr(curriculum, "needs", ())
    has_errors = callable(getattr(loss, "td_errors", None))
    is_trained = getattr(loss, "critic_coeff", 1.0) > 0
    fits = not needs_errors or (has_errors and is_trained)
    condition = f"not need errors of critics, which {type(loss).__name__} does not train"
    remedy = "set curriculum.score=learnability" if hasattr(curriculum, "score") else None
    name = type(curriculum).__name__
    require_setting("curriculum", name, fits, condition, remedy=remedy)
