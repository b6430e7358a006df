"""Record weights and outputs of AMAGO 3.3 itself, which an imported agent must reproduce.

    python tools/record_amago.py tests/deploy/amago    # where AMAGO 3.3 is installed
    python tools/record_amago.py /tmp/runs --keep      # whole runs, as AMAGO leaves them

Every case is a short run of ``amago.Experiment`` in a synthetic environment, whose weights are then
perturbed, so that no gain is 1 and no bias is 0. A folder per case holds the state that AMAGO saves
(``model.safetensors``, ``config.txt``) and ``steps.npz``: inputs of 500 steps of two streams, of
which the second starts anew once, and what AMAGO computes from them, step by step with its hidden
state and for the first stream as a whole. ``trajectory.npz`` is a file of its replay buffer.
"""

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["WANDB_MODE"] = "disabled"
os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compilation takes minutes and changes rounding alone

import amago
import gin
import gymnasium
import numpy as np
import torch
from amago import cli_utils
from amago.envs import AMAGOEnv
from amago.loading import DiskTrajDataset
from amago.nets import policy_dists, transformer
from gymnasium import spaces

NUM_STEPS = 500
RESTART = 300
"""Step at which the second stream starts anew."""
EVERY = 50
"""Steps between two recorded hidden states."""
THINNED = 10
"""Steps between two recorded contexts, and between two outputs of the whole sequence."""
SEED = 3


@dataclass(frozen=True)
class Case:
    """One recorded agent.

    Attributes:
        memory: AMAGO's name of the trajectory encoder.
        action_space: Space of the actions.
        gin: Arguments of AMAGO's classes.
        length: Longest sequence, the timesteps that a Transformer remembers.
        sharpness: Factor on the outputs of the actor, so that AMAGO clips some probabilities.
    """

    memory: str
    action_space: spaces.Space[Any]
    gin: dict[str, Any] = field(default_factory=dict)
    length: int = 48
    sharpness: float = 1.0


_SMALL = {"Actor.d_hidden": 16, "NCritics.d_hidden": 16, "Agent.num_critics": 2}
_TWO = {"Multigammas.discrete": [0.9, 0.99], "Multigammas.continuous": [0.9, 0.99]}
_BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
CASES = {
    "transformer_discrete": Case(
        "transformer",
        spaces.Discrete(3),
        {**_SMALL, **_TWO, "TformerTrajEncoder.n_heads": 4},
        sharpness=10.0,
    ),
    "transformer_box": Case(
        "transformer",
        _BOX,
        {
            **_SMALL,
            **_TWO,
            "TformerTrajEncoder.n_heads": 2,
            "TformerTrajEncoder.d_ff": 24,
            "TformerTrajEncoder.pos_emb": "rope",
            "TformerTrajEncoder.sigma_reparam": False,
            "TformerTrajEncoder.normformer_norms": False,
            "TformerTrajEncoder.activation": "gelu",
            "FFTstepEncoder.activation": "relu",
            "FFTstepEncoder.normalize_inputs": False,
            "Actor.activation": "gelu",
            "NCritics.activation": "mish",
            "Actor.n_layers": 1,
            "Agent.gamma": 0.99995,
        },
    ),
    "transformer_beta": Case(
        "transformer",
        _BOX,
        {
            **_SMALL,
            "TformerTrajEncoder.n_heads": 2,
            "TformerTrajEncoder.pos_emb": "learnable",
            "LearnablePosEmb.max_time_idx": NUM_STEPS,
            "Actor.continuous_dist_type": policy_dists.Beta,
            "Agent.use_multigamma": False,
            "Agent.gamma": 0.9999,
            "Agent.popart": False,
        },
    ),
    "gru_discrete": Case(
        "rnn",
        spaces.Discrete(4),
        {
            **_SMALL,
            **_TWO,
            "GRUTrajEncoder.d_hidden": 12,
            "Discrete.clip_prob_low": 1e-6,
            "Discrete.clip_prob_high": 1.0,
            "FFTstepEncoder.specify_obs_keys": ["b"],
        },
    ),
    "gru_bits": Case(
        "rnn",
        spaces.MultiBinary(3),
        {
            **_SMALL,
            **_TWO,
            "Actor.continuous_dist_type": policy_dists.Multibinary,
            "Agent.online_coeff": 0.0,
        },
    ),
}


class Noise(gymnasium.Env[Any, Any]):
    """Environment of two random observations, in episodes of 60 steps.

    Args:
        action_space: Space of the actions.
    """

    observation_space = spaces.Dict(
        b=spaces.Box(-100.0, 100.0, (3,), np.float32),
        a=spaces.Box(-100.0, 100.0, (2, 1), np.float32),
    )

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self._step = 0

    def reset(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._step = 0
        return observe(np.random.default_rng(0)), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Return the next observation."""
        self._step += 1
        reward = float(np.float16(np.sum(action)))
        return observe(np.random.default_rng(self._step)), reward, False, self._step >= 60, {}


def observe(rng: np.random.Generator) -> dict[str, Any]:
    """Return observations of different scales, which float16 holds exactly."""
    a = np.array([[3.0], [0.2]]) * rng.normal(size=(2, 1)) + [[1.0], [-40.0]]
    b = rng.normal(size=3)
    return {"b": b.astype(np.float16).astype("f4"), "a": a.astype(np.float16).astype("f4")}


def experiment(case: Case, root: Path) -> Any:
    """Return AMAGO's experiment after a few updates."""
    gin.clear_config()
    config: dict[str, Any] = {}
    given: dict[str, Any] = {}
    if case.memory == "transformer":
        given["attention_type"] = transformer.VanillaAttention
    traj = cli_utils.switch_traj_encoder(config, case.memory, memory_size=16, layers=2, **given)
    tstep = cli_utils.switch_tstep_encoder(config, "ff", n_layers=2, d_hidden=16, d_output=12)
    agent = cli_utils.switch_agent(config, "agent")
    config.update(case.gin)
    cli_utils.use_config(config, finalize=False)

    def make() -> Any:
        return AMAGOEnv(Noise(case.action_space), env_name="noise")

    found = amago.Experiment(
        run_name="run",
        ckpt_base_dir=str(root),
        max_seq_len=case.length,
        traj_save_len=60,
        dataset=DiskTrajDataset(dset_root=str(root), dset_name="data", dset_max_size=100),
        tstep_encoder_type=tstep,
        traj_encoder_type=traj,
        agent_type=agent,
        exploration_wrapper_type=None,
        make_train_env=make,
        make_val_env=make,
        val_timesteps_per_epoch=1,
        val_interval=None,
        parallel_actors=2,
        env_mode="sync",
        dloader_workers=0,
        verbose=False,
        train_timesteps_per_epoch=130,
        train_batches_per_epoch=6,
        batch_size=4,
        epochs=2,
        ckpt_interval=None,
        learning_rate=1e-3,
        lr_warmup_steps=1,
        stagger_traj_file_lengths=False,
    )
    found.start()
    found.learn()
    return found


@torch.no_grad()
def perturb(policy: Any, case: Case) -> None:
    """Add noise to all parameters."""
    for parameter in policy.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    policy.actor.base.out_layer.weight.mul_(case.sharpness)
    policy.hard_sync_targets()


def make_inputs(case: Case) -> dict[str, Any]:
    """Return the inputs of two streams, ``[500, 2, ...]``."""
    rng = np.random.default_rng(SEED)
    observations = [[observe(rng) for _ in range(2)] for _ in range(NUM_STEPS)]
    columns = {}
    for key in ("a", "b"):
        columns[key] = np.stack([np.stack([each[key] for each in row]) for row in observations])
    times = np.stack([np.arange(NUM_STEPS)] * 2, 1)
    times[RESTART:, 1] -= RESTART

    shape = (NUM_STEPS, 2)
    if isinstance(case.action_space, spaces.Discrete):
        actions = np.eye(int(case.action_space.n))[rng.integers(case.action_space.n, size=shape)]
    elif isinstance(case.action_space, spaces.MultiBinary):
        actions = rng.integers(2, size=(*shape, case.action_space.n))
    else:
        actions = rng.uniform(-1, 1, size=(*shape, 2))
    actions = actions.astype(np.float16).astype("f4")
    rewards = rng.normal(size=(*shape, 1)).astype(np.float16).astype("f4")
    # The action and reward that led to a timestep, which a first one does not have.
    before = np.concatenate([np.zeros_like(actions[:1]), actions[:-1]])
    rl2s = np.concatenate([rewards, before], -1)
    rl2s[times == 0] = 0.0
    return {**columns, "rl2s": rl2s, "times": times, "actions": actions}


@torch.no_grad()
def outputs(policy: Any, case: Case, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what the policy computes, step by step and as a whole."""
    policy.eval()
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    hidden = policy.init_hidden_state(2, torch.device("cpu"))
    rows: dict[str, list[Any]] = {}
    states = []
    for step in range(NUM_STEPS):
        timestep = {name: value[step].unsqueeze(1) for name, value in tensors.items()}
        is_new = inputs["times"][step] == 0
        if step and is_new.any():
            hidden = policy.reset_hidden_state(hidden, is_new)
        context, hidden = encode(policy, timestep, hidden)
        for name, value in decide(policy, context, timestep["actions"]).items():
            rows.setdefault(name, []).append(value[:, 0])
        if (step + 1) % EVERY == 0 and case.memory == "rnn":
            states.append(hidden.clone())
    found = {name: torch.stack(values) for name, values in rows.items()}

    whole = {name: value[:, :1].transpose(0, 1) for name, value in tensors.items()}
    context, _ = encode(policy, whole, None)
    for name, value in decide(policy, context, whole["actions"]).items():
        found[f"whole_{name}"] = value[0]
    if case.memory == "rnn":
        found["hidden"] = torch.stack(states)
    else:
        found["keys"] = hidden.key_cache.data
        found["key_values"] = hidden.val_cache.data
        found["lengths"] = hidden.seq_lens
    return {name: value.numpy() for name, value in found.items()}


def encode(policy: Any, timesteps: dict[str, Any], hidden: Any) -> tuple[Any, Any]:
    """Return the context of timesteps ``[B, L]``, and the next hidden state."""
    observations = {key: timesteps[key] for key in ("a", "b")}
    times = timesteps["times"].unsqueeze(-1)
    context, hidden = policy.get_state_embedding(observations, timesteps["rl2s"], times, hidden)
    return context, hidden


def decide(policy: Any, context: Any, actions: Any) -> dict[str, Any]:
    """Return the policy's distributions and the values of actions ``[B, L, A]``."""
    dist = policy.actor(context)
    if hasattr(dist, "base_dist"):
        base = dist.base_dist
        names = ("concentration1", "concentration0")
        if not hasattr(base, names[0]):
            names = ("loc", "scale")
        parameters = torch.cat([getattr(base, name) for name in names], -1)
    else:
        parameters = dist.probs
    expanded = actions.unsqueeze(2).expand(-1, -1, len(policy.gammas), -1)
    raw = policy.critics(context, expanded.unsqueeze(0))[0]  # [B, L, C, G, 1]
    return {
        "context": context,
        "policy": parameters,
        "normalized": policy.popart(raw).squeeze(-1),
        "returns": policy.popart(raw, normalized=False).squeeze(-1),
    }


def record(name: str, case: Case, folder: Path, *, keep: bool) -> None:
    """Record one case."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    root = Path(tempfile.mkdtemp()) if not keep else folder / name
    found = experiment(case, root)
    perturb(found.policy, case)
    found.save_checkpoint()
    found.write_latest_policy()

    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    checkpoints = root / "run" / "ckpts"
    (state,) = (checkpoints / "training_states").iterdir()
    inputs = make_inputs(case)
    results = outputs(found.policy, case, inputs)
    for key in ("a", "b", "rl2s", "actions"):
        inputs[key] = inputs[key].astype(np.float16)
    inputs["times"] = inputs["times"].astype(np.int16)
    for key, value in results.items():
        if key == "context" or key.startswith("whole_"):
            results[key] = value[THINNED - 1 :: THINNED]
    np.savez_compressed(target / "steps.npz", **inputs, **results)
    shutil.copy(state / "model.safetensors", target)
    shutil.copy(checkpoints / "config.txt", target)
    trajectories = sorted((root / "data" / "buffer" / "fifo").glob("*.npz"))
    shutil.copy(trajectories[0], target / "trajectory.npz")
    if not keep:
        shutil.rmtree(root)


def main() -> None:
    """Record all cases, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--keep", action="store_true", help="keep the run of each case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or CASES:
        record(name, CASES[name], arguments.folder, keep=arguments.keep)
        print(name, file=sys.stderr)


if __name__ == "__main__":
    main()
