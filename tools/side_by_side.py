"""Measure parts of this package beside those of other libraries, on one core in alternation.

    python tools/side_by_side.py                # all sections
    python tools/side_by_side.py recurrent ppo  # some

Prints a table. Times are CPU-seconds of this process with one thread, medians over rounds in which
both sides are measured one after the other, so that a change of the machine's load affects both.
The ratio is the median over rounds. `ppo` needs sb3-contrib (pip install 'yamame[train,compare]'),
and `amago` the package of https://github.com/UT-Austin-RPL/amago. A section without its package is
left out.
"""

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyMemmapStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode
from yamame.replay import TrajectoryReplayBuffer
from yamame.trajectory import GRUEncoder, LSTMEncoder

BATCH, LENGTH, SIZE, LAYERS = 24, 101, 256, 3
NUM_ENVS = 16
TRAJECTORIES, STEPS = 512, 100
PPO_STEPS = 8192
ROUNDS = 7
_STEPS_AT_ONCE = 50
Call = Callable[[], Any]


class Pair(NamedTuple):
    """Two calls that do the same work. A call may return its own time in seconds."""

    what: str
    library: str
    ours: Call
    theirs: Call
    divisor: float = 1.0
    """Times are divided by it."""


def recurrent() -> Iterator[Pair]:
    """Yield updates and decision steps of recurrent networks, beside those of TorchRL."""
    modules = ((GRUEncoder, GRUModule, "GRU"), (LSTMEncoder, LSTMModule, "LSTM"))
    for encoder_class, module_class, name in modules:
        encoder = encoder_class(SIZE, hidden_size=SIZE, num_layers=LAYERS, out_features=SIZE)
        sizes = {"input_size": SIZE, "hidden_size": SIZE, "num_layers": LAYERS}
        module = module_class(**sizes, in_key="features", out_key="context")
        batch = f"{BATCH} sequences of {LENGTH} steps"
        for starts, note in (((), ""), ((25, 50), ", three episodes in each")):
            yield Pair(
                f"{name}, forward and backward: {batch}{note}",
                "TorchRL",
                _update(encoder, _sequences(starts)),
                _update(module, _sequences(starts)),
            )
        yield Pair(
            f"{name}, a decision step of {NUM_ENVS} environments",
            "TorchRL",
            _stepping(encoder),
            _stepping(module),
            divisor=_STEPS_AT_ONCE,
        )


def _sequences(starts: tuple[int, ...]) -> TensorDict:
    is_init = torch.zeros(BATCH, LENGTH, 1, dtype=torch.bool)
    is_init[:, [0, *starts]] = True
    features = torch.randn(BATCH, LENGTH, SIZE)
    return TensorDict({"features": features, "is_init": is_init}, [BATCH, LENGTH])


def _with_states(module: nn.Module, inputs: TensorDict) -> TensorDict:
    """Add the initial states that TorchRL's modules read."""
    if isinstance(module, GRUModule | LSTMModule):
        for key in module.in_keys:
            if str(key).startswith("recurrent_state"):
                inputs[key] = torch.zeros(*inputs.shape, LAYERS, SIZE)
    return inputs


def _update(module: nn.Module, inputs: TensorDict) -> Call:
    inputs = _with_states(module, inputs)

    def update() -> None:
        with set_recurrent_mode(True):
            context = module(inputs.clone())["context"]
        context.square().mean().backward()
        module.zero_grad()

    return update


def _stepping(module: nn.Module) -> Call:
    is_init = torch.zeros(NUM_ENVS, 1, dtype=torch.bool)
    features = torch.randn(NUM_ENVS, SIZE)
    first = TensorDict({"features": features, "is_init": ~is_init}, [NUM_ENVS])
    first = _with_states(module, first)

    @torch.no_grad()
    def steps() -> None:
        timestep = first.clone()
        for _ in range(_STEPS_AT_ONCE):
            out = module(timestep)
            # TorchRL writes next states below "next", where the next timestep finds them.
            following = out["next"] if "next" in out.keys() else out
            timestep = following.exclude("context").set("features", features)
            timestep.set("is_init", is_init)

    return steps


def replay() -> Iterator[Pair]:
    """Yield appending and sampling of trajectories on disk, beside TorchRL's slices."""
    stored = []
    for number in range(TRAJECTORIES):
        is_init = torch.zeros(STEPS, 1, dtype=torch.bool)
        is_init[0] = True
        done = torch.zeros(STEPS, 1, dtype=torch.bool)
        done[-1] = True
        entries = {"observation": torch.randn(STEPS, 16), "action": torch.randn(STEPS, 4)}
        entries |= {"reward": torch.randn(STEPS, 1), "is_init": is_init, "done": done}
        entries["episode"] = torch.full((STEPS,), number)
        stored.append(TensorDict(entries, [STEPS]))
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    ours = TrajectoryReplayBuffer(root / "ours", capacity=TRAJECTORIES * STEPS * 2)
    theirs = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(TRAJECTORIES * STEPS, scratch_dir=root / "theirs"),
        sampler=SliceSampler(num_slices=BATCH, traj_key="episode", cache_values=True),
        batch_size=BATCH * STEPS,
    )
    ours.extend(stored)
    theirs.extend(torch.cat(stored))
    with folder:
        yield Pair(
            f"sample {BATCH} of {TRAJECTORIES} trajectories of {STEPS} steps",
            "TorchRL",
            lambda: ours.sample(BATCH),
            theirs.sample,
        )
        some = stored[:NUM_ENVS]
        yield Pair(
            f"append {NUM_ENVS} trajectories of {STEPS} steps",
            "TorchRL",
            lambda: ours.extend(some),
            lambda: theirs.extend(torch.cat(some)),
        )


def ppo() -> Iterator[Pair]:
    """Yield training by recurrent PPO in CartPole, beside sb3-contrib.

    Its updates learn from 512 steps each. Ours learn from whole episodes: ten of them make about as
    many updates per step.
    """
    import gymnasium
    import yamame
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS)
    sizes = {"n_steps": 128, "batch_size": 512, "n_epochs": 4}
    policy = {"lstm_hidden_size": 64, "net_arch": [64], "shared_lstm": True}
    policy["enable_critic_lstm"] = False
    model = RecurrentPPO("MlpLstmPolicy", envs, policy_kwargs=policy, device="cpu", **sizes)

    class Times(yamame.Callback):
        """Notes when training begins and ends, without building and evaluation."""

        def on_begin(self, run: Any) -> None:
            self.begin = time.process_time()

        def on_log(self, run: Any, metrics: Any, step: int) -> None:
            self.end, self.step = time.process_time(), step

    def ours() -> float:
        times = Times()
        with tempfile.TemporaryDirectory() as folder:
            yamame.train(
                *("env=gym", "env.id=CartPole-v1", "encoder=lstm", "encoder.hidden_size=64"),
                *("encoder.num_layers=1", "timestep_encoder.hidden_size=64", "logger=none"),
                *("agent.actor.hidden_size=64", "agent.actor.num_layers=1"),
                *("agent.critic.hidden_size=64", "agent.critic.num_layers=1"),
                *(f"schedule.num_envs={NUM_ENVS}", "schedule.steps_per_iteration=2048"),
                *("schedule.epochs=4", "schedule.batch_size=10"),
                *("evaluation.num_episodes=1", "evaluation.video_frames=1"),
                *("budget.minutes=null", f"budget.env_steps={PPO_STEPS}", f"run.root={folder}"),
                recipe="ppo",
                callbacks=[times],
            )
        # The last iteration ends with its episodes, which is after a few more steps.
        return (times.end - times.begin) * PPO_STEPS / times.step

    yield Pair(
        f"recurrent PPO in CartPole-v1, 1,000 steps of {NUM_ENVS} environments",
        "sb3-contrib",
        ours,
        lambda: model.learn(PPO_STEPS),
        divisor=PPO_STEPS / 1000,
    )


def amago() -> Iterator[Pair]:
    """Yield updates at equal network sizes, beside AMAGO 3.3."""
    from benchmark_sections import Subject

    of_paper = ("agent=amago_paper", "optimizer=adamw", "schedule.autocast=null", "packing=null")
    transformer = ("encoder.ff_factor=4", "encoder.dropout=0.05")
    for name, memory, more in (
        ("transformer", "Transformer", transformer),
        ("rnn", "GRU", ("encoder=gru",)),
    ):
        subject = Subject([*of_paper, *more], "cpu")
        ours = subject.batch(BATCH, LENGTH)
        with tempfile.TemporaryDirectory() as folder:
            experiment = amago_experiment(name, Path(folder))
            theirs = amago_batch()
            yield Pair(
                f"{memory}, an update with {BATCH} sequences of {LENGTH} steps",
                "AMAGO 3.3",
                partial(subject.update, ours),
                partial(experiment.train_step, theirs, log_step=False),
            )


_OBSERVED, _ACTIONS = 13, 4
"""Numbers that a maze with three goals shows, goals included, and its actions."""


def amago_experiment(name: str, folder: Path) -> Any:
    """Return an experiment of AMAGO with the network of its paper."""
    import amago
    import gin
    import gymnasium
    from amago import cli_utils
    from amago.envs import AMAGOEnv
    from amago.loading import DiskTrajDataset
    from amago.nets import transformer

    class Noise(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (_OBSERVED,), np.float32)
        action_space = gymnasium.spaces.Discrete(_ACTIONS)

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self.observation_space.sample(), 0.0, False, False, {}

    def make() -> Any:
        return AMAGOEnv(Noise(), env_name="noise")

    gin.clear_config()
    config: dict[str, Any] = {}
    given = {} if name == "rnn" else {"attention_type": transformer.VanillaAttention}
    sizes = {"memory_size": SIZE, "layers": LAYERS}
    memory = cli_utils.switch_traj_encoder(config, name, **sizes, **given)
    timesteps = {"n_layers": 2, "d_hidden": 512, "d_output": SIZE}
    timestep_encoder = cli_utils.switch_tstep_encoder(config, "ff", **timesteps)
    agent = cli_utils.switch_agent(config, "agent")
    cli_utils.use_config(config, finalize=False)
    experiment = amago.Experiment(
        run_name="run",
        ckpt_base_dir=str(folder),
        max_seq_len=LENGTH - 1,
        traj_save_len=LENGTH,
        dataset=DiskTrajDataset(dset_root=str(folder), dset_name="data", dset_max_size=10),
        tstep_encoder_type=timestep_encoder,
        traj_encoder_type=memory,
        agent_type=agent,
        exploration_wrapper_type=None,
        make_train_env=make,
        make_val_env=make,
        val_timesteps_per_epoch=1,
        parallel_actors=1,
        env_mode="sync",
        dloader_workers=0,
        log_to_wandb=False,
        verbose=False,
        batch_size=BATCH,
    )
    experiment.start()
    experiment.policy_aclr.train()
    return experiment


def amago_batch() -> Any:
    """Return a batch of AMAGO's learner, of as many timesteps as ours."""
    from amago.loading import Batch

    steps = LENGTH - 1
    actions = torch.randint(_ACTIONS, (BATCH, steps))
    one_hot = nn.functional.one_hot(actions, _ACTIONS).float()
    rewards = (torch.rand(BATCH, steps, 1) < 0.05).float()
    dones = torch.zeros(BATCH, steps, 1, dtype=torch.bool)
    dones[:, -1] = True
    before = torch.zeros(BATCH, LENGTH, 1 + _ACTIONS)
    before[:, 1:] = torch.cat((rewards, one_hot), -1)
    return Batch(
        obs={"observation": torch.rand(BATCH, LENGTH, _OBSERVED)},
        rl2s=before,
        rews=rewards,
        dones=dones,
        actions=one_hot,
        time_idxs=torch.arange(LENGTH).view(1, -1, 1).repeat(BATCH, 1, 1),
    )


SECTIONS = {"recurrent": recurrent, "replay": replay, "ppo": ppo, "amago": amago}
PACKAGES = {"ppo": "sb3_contrib", "amago": "amago"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| what | beside | theirs and ours, ms | ours / theirs |\n" + "|---" * 4 + "|")
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"section must be one of {', '.join(SECTIONS)}, got {name}")
    for name in options.sections or SECTIONS:
        package = PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            print(f"{name}: left out, {package} is not installed", file=sys.stderr)
            continue
        for pair in SECTIONS[name]():
            print(row(pair, options.rounds), flush=True)


def row(pair: Pair, rounds: int) -> str:
    """Measure a pair, and return its row."""
    measured = []
    printed = contextlib.redirect_stdout(io.StringIO())
    with printed, contextlib.redirect_stderr(io.StringIO()):
        pair.ours()
        pair.theirs()
        for _ in range(rounds):
            theirs, ours = seconds(pair.theirs), seconds(pair.ours)
            measured.append((theirs / pair.divisor, ours / pair.divisor))
    theirs, ours = (1e3 * statistics.median(side) for side in zip(*measured, strict=True))
    ratio = statistics.median(ours / theirs for theirs, ours in measured)
    return f"| {pair.what} | {pair.library} | {theirs:.2f}, {ours:.2f} | {ratio:.2f} |"


def seconds(call: Call) -> float:
    """Return the CPU-seconds of a call, or what it returns as such."""
    start = time.process_time()
    measured = call()
    return measured if isinstance(measured, float) else time.process_time() - start


if __name__ == "__main__":
    main()
