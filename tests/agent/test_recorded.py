"""Recorded decisions: those of the ordinary policy, from the same memory, and nothing in them is read back."""

import copy
import pickle
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch.fx.experimental.proxy_tensor import make_fx
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame.agent.policy import acting_copy
from yamame.capturing import CudaRecorder, capturing
from yamame.trajectory import (
    GRUEncoder,
    LinearRecurrentEncoder,
    LSTMEncoder,
    MemorylessEncoder,
    TransformerEncoder,
    WindowEncoder,
)
from yamame_envs import MazeRunner

ROWS, STEPS = 4, 75
"""Episodes of 60 of these steps, so that a cache grows from 32 slots to 64."""
small = partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=2)


class Replacing(GRUEncoder):
    """Puts other tensors into its memory at every step."""

    def advance(self, x, step_index, starts, memory):
        memory["hidden"] = memory["hidden"].clone()
        return super().advance(x, step_index, starts, memory)


ENCODERS = {
    "transformer": partial(small, dropout=0.1),
    "rotary": partial(small, positions="rotary", sigma_reparam=True),
    "learned": partial(small, positions="learned", num_positions=200),
    "latest": partial(small, context_length=20, sinks=2),
    "window": partial(small, window=6),
    "gru": partial(GRUEncoder, max_time_constant=1.0, hidden_size=8, out_features=8),
    "replacing": partial(Replacing, max_time_constant=1.0, hidden_size=8, out_features=8),
    "lstm": partial(LSTMEncoder, hidden_size=8, out_features=8),
    "linear_recurrent": partial(LinearRecurrentEncoder, d_model=8),
    "last_timesteps": partial(WindowEncoder, window=5, d_model=8),
    "memoryless": partial(MemorylessEncoder, d_model=8),
}


class OnTheHost:
    """Records on a CPU: a replay repeats the same operations on the same tensors, and no line of the function."""

    def __init__(self, context):
        self.context, self.warmed, self.records, self.replays = context, 0, 0, 0
        self.encoder = None

    def warm(self, function):
        assert not capturing()
        self.warmed += 1
        return function()

    def record(self, function):
        assert capturing()
        self.records += 1
        with self.context():
            names = list(self.unchanged(function))
        trace = self.unchanged(lambda: make_fx(lambda _: list(function().values()))(torch.zeros(())))
        found = self.unchanged(lambda: trace(torch.zeros(())))
        results = dict(zip(names, found, strict=True))

        def replay():
            self.replays += 1
            for result, value in zip(results.values(), trace(torch.zeros(())), strict=True):
                result.copy_(value)

        return replay, results

    def unchanged(self, function):
        """What a function returns, with the memory of acting as it was before."""
        held = dict(self.encoder.memory)
        before = {name: value.clone() for name, value in held.items()}
        found = function()
        assert all(self.encoder.memory[name] is value for name, value in held.items())
        for name, value in held.items():
            value.copy_(before[name])
        return found


@pytest.fixture
def record(nothing_read_back):
    """Makes a copy of a policy that records, and what it records with."""

    def make(policy, **settings):
        recorder = OnTheHost(nothing_read_back)
        actor = acting_copy(policy, num_rows=ROWS, recorder=recorder, **settings)
        recorder.encoder = actor.trajectory_encoder
        return actor, recorder

    return make


@pytest.fixture
def make_policy(small_agent):
    """Makes a policy."""

    def make(encoder, device="cpu"):
        env = MazeRunner(num_envs=ROWS, size=7, num_goals=2, time_limit=60, seed=3)
        return small_agent(env, ENCODERS[encoder]).policy().to(device)

    return make


def history(seed=0, device="cpu"):
    """What is seen along a rollout of random actions, in which rows start at different times."""
    env = MazeRunner(num_envs=ROWS, size=7, num_goals=2, time_limit=60, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    current, seen = env.reset(), []
    for step in range(STEPS):
        if step == 10 and not seed:
            current["is_init"][1], current["step_index"][1] = True, 0
        seen.append(current.clone().to(device))
        current["action"] = torch.randint(5, (ROWS,), generator=generator)
        _, current = env.step_and_maybe_reset(current)
    return seen


@torch.no_grad()
def parameters(policy, seen):
    """Of the distributions of actions."""
    if policy._recorded is not None:
        return torch.stack([policy._recorded(step.select(*policy.in_keys)) for step in seen])
    encoder, found = policy.trajectory_encoder, []
    for step in seen:
        context = encoder(policy.timestep_encoder(step.copy()))["context"]
        found.append(policy._params(context))
    return torch.stack(found)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_recorded_decisions_are_those_of_the_policy_and_read_nothing_back(make_policy, record, encoder):
    policy, seen = make_policy(encoder), history()
    ordinary = acting_copy(policy, num_rows=ROWS)
    recorded, recorder = record(policy)
    expected, found = parameters(ordinary, seen), parameters(recorded, seen)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).min() > 1e-4
    structures = 2 if encoder in ("transformer", "rotary", "learned") else 1
    assert (recorder.warmed, recorder.records) == (3 * structures, structures)
    assert recorder.replays == STEPS - 3 * structures


def test_actions_are_drawn_outside_and_masked_actions_never(make_policy, record):
    policy = make_policy("transformer")
    recorded, recorder = record(policy)
    ordinary = acting_copy(policy, num_rows=ROWS)
    drawn = [[], []]
    for chosen, actor in zip(drawn, (ordinary, recorded), strict=True):
        torch.manual_seed(5)
        for number, step in enumerate(history()):
            step["action_mask"] = torch.ones(ROWS, 5, dtype=torch.bool)
            step["action_mask"][:, number % 5] = False
            exploration = ExplorationType.RANDOM if number % 2 else ExplorationType.DETERMINISTIC
            with set_exploration_type(exploration):
                chosen.append(actor(step)["action"])
            assert (chosen[-1] != number % 5).all()
            assert not {"features", "context"} & set(step.keys())
    assert torch.equal(torch.stack(drawn[0]), torch.stack(drawn[1]))
    assert recorder.replays > 50


@pytest.mark.parametrize("encoder", ["transformer", "gru"])
def test_memory_is_loaded_and_reset_and_weights_change_in_place(make_policy, record, encoder):
    policy, seen, others = make_policy(encoder), history(), history(seed=1)
    ordinary = acting_copy(policy, num_rows=ROWS)
    recorded, recorder = record(policy)
    weights = TensorDict.from_module(make_policy(encoder)).data.apply(lambda value: value * 1.3 + 0.1)
    found = []
    for actor in (ordinary, recorded):
        actor.prepare()
        parts = [parameters(actor, seen[:40])]
        memory = actor.trajectory_encoder.memory_state_dict()
        parts.append(parameters(actor, seen[40:60]))
        actor.trajectory_encoder.load_memory_state_dict(memory)
        TensorDict.from_module(actor).data.update_(weights)
        actor.prepare()
        parts.append(parameters(actor, seen[40:60]))
        actor.trajectory_encoder.reset_memory()
        parts.append(parameters(actor, others[5:45]))
        found.append(parts)
        assert (parts[1] - parts[2]).abs().max() > 0.01
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert recorder.records <= 2  # a memory of a structure that was recorded needs no recording


@pytest.mark.parametrize("encoder", ["transformer", "window", "gru", "linear_recurrent", "last_timesteps"])
def test_a_row_that_starts_holds_nothing_of_what_was_there(make_policy, record, encoder):
    recorded, recorder = record(make_policy(encoder))
    seen = history()
    parameters(recorded, seen[:20])
    for value in recorded.trajectory_encoder.memory.values():
        if value.is_floating_point():
            value.fill_(torch.nan)
    step, replays = seen[20].clone(), recorder.replays
    step["is_init"][:] = True
    assert parameters(recorded, [step]).isfinite().all()
    assert recorder.replays == replays + 1


def test_a_snapshot_of_a_recorded_memory_is_a_copy(make_policy, record):
    (recorded, _), seen = record(make_policy("gru")), history()
    parameters(recorded, seen[:10])
    memory = recorded.trajectory_encoder.memory_state_dict()
    kept = {name: value.clone() for name, value in memory.items()}
    recorded.trajectory_encoder.load_memory_state_dict(memory)
    parameters(recorded, seen[10:20])
    assert all(torch.equal(memory[name], kept[name]) for name in kept)


def test_a_lower_precision_is_that_of_the_encoders_alone(make_policy, record):
    policy, seen = make_policy("transformer"), history()
    exact = parameters(acting_copy(policy, num_rows=ROWS), seen)
    lower, _ = record(policy, dtype=torch.bfloat16)
    rounded = parameters(lower, seen)
    assert rounded.dtype == torch.float32
    assert 1e-4 < (rounded - exact).abs().max() < 0.05
    bfloat = rounded.to(torch.bfloat16).to(torch.float32)
    assert (bfloat != rounded).any()


def test_copies_and_pickles_do_not_record(make_policy, record):
    (recorded, recorder), seen = record(make_policy("gru")), history()
    expected, made = parameters(recorded, seen[:20]), recorder.warmed + recorder.replays
    for other in (copy.deepcopy(recorded), pickle.loads(pickle.dumps(recorded))):
        torch.testing.assert_close(parameters(other, seen[:20]), expected, rtol=1e-4, atol=1e-5)
    assert recorder.warmed + recorder.replays == made


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("encoder", set(ENCODERS) - {"replacing"})
def test_on_a_gpu_recorded_decisions_are_those_of_the_policy(make_policy, encoder, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    policy, seen = make_policy(encoder, "cuda"), history(device="cuda")
    ordinary = acting_copy(policy, num_rows=ROWS)
    recorded = acting_copy(policy, num_rows=ROWS, dtype=dtype, recorder=CudaRecorder(torch.device("cuda", 0)))
    expected, found = parameters(ordinary, seen), parameters(recorded, seen)
    tolerance = 1e-3 if dtype is None else 0.05
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert recorded._recorded._recorded
