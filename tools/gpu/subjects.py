"""Published agent on Dark Key-To-Door, as it is measured by the parts."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from benchmark_sections import Subject
from gpu.job import Job
from yamame.cli.nodes import instantiate
from yamame.training.prefetch import with_num_segments

BFLOAT16 = (
    "float32_matmul_precision=high",
    "schedule.autocast=bfloat16",
    "collector.autocast=bfloat16",
)
RECORDED = ("schedule.cuda_graph=true", "collector.cuda_graph=true")
SETTINGS = {
    "bfloat16, recorded": (*BFLOAT16, *RECORDED),
    "bfloat16": BFLOAT16,
    "float32": (),
    "float32, recorded": RECORDED,
}
"""Settings that are compared, the most important first."""
TINY = (
    "encoder.d_model=16", "encoder.num_heads=2", "encoder.num_layers=1",
    "timestep_encoder.out_size=16",
    "timestep_encoder.hidden_size=16", "agent.actor.hidden_size=16", "agent.critic.hidden_size=16",
)  # fmt: skip


class Kept(list[Any]):
    """Replay buffer that keeps trajectories in a list."""

    def extend(self, data: Any) -> None:
        """Append finished trajectories."""
        self.append(data.clone())


def subject_of(job: Job, settings: Sequence[str]) -> Subject:
    """Build the agent with its learner; on a CPU nothing is recorded."""
    settings = [setting for setting in settings if job.cuda or setting not in RECORDED]
    precision = "high" if "float32_matmul_precision=high" in settings else "highest"
    torch.set_float32_matmul_precision(precision)
    # an agent that was measured before may be held by a cycle, with the memory of its graphs
    gc.collect()
    if job.cuda:
        torch.cuda.empty_cache()
    door = ["experiment=dark_key_to_door", "encoder.dropout=0", *(TINY if job.tiny else ())]
    return Subject([*door, *settings], job.device)


def batch_of(subject: Subject, size: int, length: int, *, halves: bool = False) -> Any:
    """Return sequences as in a run, with their number of trajectories counted on the host.

    Args:
        subject: Its environment is played.
        size: Number of sequences.
        length: Timesteps of each.
        halves: Whether every sequence holds two trajectories.
    """
    batch = subject.batch(size, length).cpu()
    if halves:
        batch["is_init"][:, length // 2] = True
    return with_num_segments(batch).to(subject.device)


def collector_of(subject: Subject, num_envs: int, *, explore: bool = True) -> Any:
    """Build the collector of the configuration, with its trajectories in ``replay``."""
    exploration = instantiate(subject.cfg.exploration, action_space=subject.agent.action_space)
    if not explore:
        exploration.start = exploration.end = (0.0, 0.0)
    given = {"policy": subject.agent.policy(), "replay": Kept(), "exploration": exploration}
    return instantiate(subject.cfg.collector, env=subject.make_env(num_envs), **given)
