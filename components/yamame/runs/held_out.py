"""Evaluation of a run on its held-out tasks: environment, episodes, video and score."""

from contextlib import ExitStack, nullcontext

from numpy.typing import NDArray
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent import InContextPolicy
from yamame.checks import UsageError
from yamame.cli.sections import AnyConfig
from yamame.evaluation import EvaluationResult, evaluate, render_video
from yamame.evaluation.bound import EndlessEpisodes
from yamame.evaluation.held_out import MemoryReset, Policy
from yamame.evaluation.result import concatenate
from yamame.runs.build import build_env
from yamame.runs.checks import check_positions
from yamame.system import signals
from yamame.system.messages import OutsideError, print_stderr, warnings_as_lines

_VIDEO_EPISODES = 4
_ENOUGH_FRAMES = 50
"""Frames of a video after which no further episode begins: short episodes are shown several of,
long ones only once.
"""


def held_out_env(cfg: AnyConfig) -> EnvBase:
    """Build the environment of the held-out tasks.

    ``evaluation.num_envs`` may be below the number of tasks; these are then evaluated in rounds.

    Raises:
        SettingError: An episode has more steps than a learned table of positions.
    """
    num_episodes = distributed.shard(cfg.evaluation.num_episodes, "evaluation.num_episodes")
    num_envs = min(cfg.evaluation.num_envs or num_episodes, num_episodes)
    seed = distributed.rank_seed(cfg.evaluation.seed)
    env = build_env(cfg, num_envs=num_envs, seed=seed, held_out=True)
    try:
        check_positions(cfg, env, max_steps=cfg.evaluation.max_steps)
    except UsageError:
        env.close()
        raise
    return env


def play_held_out(
    cfg: AnyConfig,
    policy: Policy,
    env: EnvBase,
    *,
    max_steps: int | None = None,
    memory_reset: MemoryReset = "never",
) -> EvaluationResult:
    """Evaluate one complete episode of every held-out task; each rank takes a share of them.

    Args:
        cfg: Composed configuration.
        policy: Policy to evaluate.
        env: Environment of the held-out tasks.
        max_steps: Steps after which an episode is cut; None for ``evaluation.max_steps``.
        memory_reset: As for `yamame.evaluation.evaluate`.
    """
    evaluation = cfg.evaluation
    # A signal must not stop one rank while the others wait for its result.
    waits = nullcontext() if distributed.world_size() == 1 else signals.deferred()
    with waits, warnings_as_lines(EndlessEpisodes, prints=distributed.is_rank0()):
        result = evaluate(
            policy,
            env,
            num_episodes=distributed.shard(evaluation.num_episodes, "evaluation.num_episodes"),
            greedy=evaluation.greedy,
            max_steps=evaluation.max_steps if max_steps is None else max_steps,
            memory_reset=memory_reset,
            seed=distributed.rank_seed(evaluation.seed),
        )
    return concatenate(distributed.all_gather(result))


def render_held_out(cfg: AnyConfig, policy: InContextPolicy) -> NDArray | None:
    """Render a few episodes of held-out tasks.

    Returns:
        Frames of a video; None, with a message, if the environment has no pictures.
    """
    evaluation = cfg.evaluation
    try:
        with ExitStack() as exits:
            env = build_env(cfg, num_envs=1, seed=evaluation.seed, held_out=True)
            exits.callback(lambda: None if env.is_closed else env.close())
            return render_video(
                policy,
                env,
                num_episodes=_VIDEO_EPISODES,
                max_frames=evaluation.video_frames,
                enough_frames=_ENOUGH_FRAMES,
                greedy=evaluation.greedy,
                seed=evaluation.seed,
            )
    except (NotImplementedError, OutsideError) as error:
        print_stderr(f"no video: {error}")
        return None


def score(result: EvaluationResult) -> float:
    """Return the mean success, or the mean return of an environment without success.

    The score decides which checkpoint is the best one, and which job of a sweep.
    """
    values = result.returns if result.success is None else result.success
    return float(values.double().mean())
