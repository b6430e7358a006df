"""Share of updates that a recording would replay, and share of padding in batches."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame import conf_dir
from yamame.execution.recorded_updates import RecordedUpdates
from yamame.replay import pack
from yamame.runs.build import build_data, build_env, build_replay, build_transform, longest_episode
from yamame.runs.trained import load_trained

NUM_UPDATES = 600
_NUM_ENVS, _STEPS = 64, 1000
"""Number of environments, and the steps of each if the length of episodes is unknown."""


class Counting:
    """Counter of recorded and replayed updates, which computes nothing."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([parameter])
        computed = {"grad_norm": torch.zeros(())}
        self._updates = RecordedUpdates(
            lambda batch: computed,
            lambda norm: None,
            loss=nn.Module(),
            optimizer=optimizer,
            recorder=self,
        )

    def update(self, shape: tuple[int, ...]) -> None:
        """Make an update of a batch of this shape."""
        batch = TensorDict({"x": torch.empty(shape, device="meta")}, shape)
        gradients, step = self._updates.halves(batch)
        step(gradients(batch)["grad_norm"])

    def warm(self, function: Callable[[], Any]) -> Any:
        """See `yamame.execution.recorder.Recorder`."""
        return function()

    def wait(self) -> None:
        """See `yamame.execution.recorder.Recorder`."""

    def record(self, function: Callable[[], dict[str, Tensor]], *, reads: Iterable[Tensor]) -> Any:
        """See `yamame.execution.recorder.Recorder`; an update has two halves."""
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1

        return replay, function()


def shape_table(overrides: list[str], agent: str | None = None) -> Iterator[str]:
    """Yield the lines of a table with a row for a configuration of the training recipe."""
    counting, shapes, cells, real = Counting(), set(), 0, 0
    for batch in sampled(overrides, agent):
        counting.update(tuple(batch.shape))
        shapes.add(tuple(batch.shape))
        cells, real = cells + batch.numel(), real + int(batch["mask"].sum())
    recorded, replayed = (
        number / 2 / NUM_UPDATES for number in (counting.recorded, counting.replayed)
    )
    yield "| shapes | updates recorded | updates replayed | padding |"
    yield "|---|---|---|---|"
    yield f"| {len(shapes)} | {recorded:.1%} | {replayed:.1%} | {1 - real / cells:.1%} |"


def sampled(overrides: list[str], agent: str | None) -> Iterator[TensorDictBase]:
    """Yield batches of the training recipe.

    They come from its data, or from episodes of an agent or of random actions in its environment.
    """
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=["logger=none", *overrides, "device=cpu"])
    torch.manual_seed(cfg.seed)
    env = build_env(cfg, num_envs=_NUM_ENVS, seed=cfg.seed)
    transform = build_transform(cfg, env)
    with tempfile.TemporaryDirectory() as folder:
        source: Any = build_data(cfg, env, transform=transform)
        if source is None:
            path = Path(folder) / "replay"
            source = build_replay(cfg, path, transform=transform, owner="shapes", resume=False)
            policy = None if agent is None else load_trained(agent).build_agent(env).policy()
            source.extend(played(env, policy))
        for _ in range(NUM_UPDATES):
            yield source.sample(cfg.schedule.batch_size)


@torch.no_grad()
@set_exploration_type(ExplorationType.RANDOM)
def played(env: EnvBase, policy: nn.Module | None) -> TensorDictBase:
    """Return whole episodes of a policy, or of random actions."""
    steps = 2 * (longest_episode(env) or _STEPS)
    packed = pack(env.rollout(steps, policy, break_when_any_done=False)).exclude(
        ("next", "aborted")
    )
    ended = packed["next", "terminated"] | packed["next", "truncated"]
    return packed[ended.flatten(1).any(1)]
