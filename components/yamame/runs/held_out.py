"""The held-out tasks of a run: their environment, playing them, a video of them, and the score that
comes out.
"""

import contextlib
from contextlib import ExitStack

from numpy.typing import NDArray
from omegaconf import DictConfig
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent import InContextPolicy
from yamame.evaluation import EvaluationResult, evaluate, render_video
from yamame.evaluation.result import concatenate
from yamame.runs.build import build_env
from yamame.system import signals
from yamame.system.messages import print_stderr


def held_out_env(cfg: DictConfig) -> EnvBase:
    """The environment of the held-out tasks; where envs cost a lot, fewer of them play the tasks,
    in rounds.
    """
    num_episodes = distributed.shard(cfg.evaluation.num_episodes, "evaluation.num_episodes")
    num_envs = min(cfg.evaluation.num_envs or num_episodes, num_episodes)
    return build_env(
        cfg, num_envs=num_envs, seed=distributed.rank_seed(cfg.evaluation.seed), held_out=True
    )


def play_held_out(
    cfg: DictConfig, policy: InContextPolicy, env: EnvBase, *, memory_wiped: bool = False
) -> EvaluationResult:
    """Plays one complete episode of every held-out task; ranks share them out."""
    with contextlib.nullcontext() if distributed.world_size() == 1 else signals.deferred():
        played = evaluate(
            policy,
            env,
            num_episodes=distributed.shard(cfg.evaluation.num_episodes, "evaluation.num_episodes"),
            greedy=cfg.evaluation.greedy,
            max_steps=cfg.evaluation.max_steps,
            memory_wiped=memory_wiped,
            seed=distributed.rank_seed(cfg.evaluation.seed),
        )
    return concatenate(distributed.all_gather(played))


def render_held_out(cfg: DictConfig, policy: InContextPolicy) -> NDArray | None:
    """Pictures of a few episodes of held-out tasks; None, and a line that says why, where there are
    no pictures.
    """
    evaluation = cfg.evaluation
    options = {
        "max_frames": evaluation.video_frames,
        "greedy": evaluation.greedy,
        "seed": evaluation.seed,
    }
    with ExitStack() as exits:
        env = build_env(cfg, num_envs=1, seed=evaluation.seed, held_out=True)
        exits.callback(lambda: None if env.is_closed else env.close())
        try:
            return render_video(policy, env, num_episodes=4, **options)
        except NotImplementedError as error:
            print_stderr(f"no video: {error}")
            return None


def score(result: EvaluationResult) -> float:
    """What decides which checkpoint is the best, and what a sweep compares: success, or the return
    without it.
    """
    values = result.returns if result.success is None else result.success
    return float(values.double().mean())
