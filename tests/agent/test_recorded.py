"""Recorded decisions: those of the ordinary policy, from the same memory, and nothing in them is
read back.
"""

import copy
import pickle
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame.agent import policy as policy_module
from yamame.execution.recorder import Compiled, CudaRecorder
from yamame.trajectory import (
    DeltaNetEncoder,
    GRUEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MemoEncoder,
    MemorylessEncoder,
    MLSTMEncoder,
    RSMEncoder,
    TransformerEncoder,
    WindowEncoder,
    separate_memory,
)
from yamame_envs import MazeRunner

ENVS, STEPS, LIMIT = 4, 45, 40
"""So many of these steps are an episode: a cache grows from 32 slots to 64."""
small = partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1)


ENCODERS = {
    "transformer": partial(small, num_layers=2, dropout=0.1),
    "rotary": partial(small, positions="rotary", sigma_reparam=True),
    "learned": partial(small, positions="learned", num_positions=200),
    "latest": partial(small, context_length=20, sinks=2),
    "window": partial(small, window=6),
    "gru": partial(GRUEncoder, max_time_constant=1.0, hidden_size=8, num_layers=2, out_features=8),
    "lstm": partial(LSTMEncoder, hidden_size=8, num_layers=2, out_features=8),
    "linear_recurrent": partial(LinearRecurrentEncoder, d_model=8),
    "lru": partial(LRUEncoder, d_model=8),
    "mlstm": partial(MLSTMEncoder, d_model=8),
    "deltanet": partial(DeltaNetEncoder, d_model=8),
    "rsm": partial(RSMEncoder, d_model=16, num_heads=2, num_layers=1, segment_length=8),
    "memo": partial(MemoEncoder, d_model=16, num_heads=2, num_layers=1, segment_length=4),
    "last_timesteps": partial(WindowEncoder, window=5, d_model=8),
    "memoryless": partial(MemorylessEncoder, d_model=8),
}


class Again:
    """Records on a CPU by calling the function again: what is compiled cannot be traced."""

    def warm(self, function):
        return function()

    def record(self, function, *, reads=()):
        results = {}
        return lambda: results.update(function()), results


def state_of(network):
    """All parameters and buffers, those of target networks included."""
    parts = network.modules()
    return [value for part in parts for value in (*part.parameters(False), *part.buffers(False))]


def acting(policy):
    """A copy that acts."""
    actor = copy.deepcopy(policy).requires_grad_(False).eval()
    actor.prepare_to_act()
    return actor


@pytest.fixture
def record(tape):
    """Makes a copy of a policy that records, and what it records with."""

    def make(policy):
        actor, recorder = acting(policy), tape()
        actor.record(recorder)
        return actor, recorder

    return make


@pytest.fixture
def make_policy(small_agent):
    """Makes a policy."""

    def make(encoder, device="cpu"):
        env = MazeRunner(num_envs=ENVS, size=7, num_goals=2, time_limit=LIMIT, seed=3)
        return small_agent(env, ENCODERS[encoder]).policy().to(device)

    return make


def history(seed=0, device="cpu"):
    """What is seen along a rollout of random actions, in which envs start at different times."""
    env = MazeRunner(num_envs=ENVS, size=7, num_goals=2, time_limit=LIMIT, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    current, seen = env.reset(), []
    for step in range(STEPS):
        if step == 10 and not seed:
            current["is_init"][1], current["step_index"][1] = True, 0
        seen.append(current.clone().to(device))
        current["action"] = torch.randint(5, (ENVS,), generator=generator)
        _, current = env.step_and_maybe_reset(current)
    return seen


@torch.no_grad()
def parameters(policy, seen):
    """Of the distributions of actions."""
    encoder, params = policy.trajectory_encoder, []
    for step in seen:
        decide = policy._recorded or policy._compiled or policy.decide
        memory = encoder.ready_memory(encoder.read_is_init(step))
        chosen, encoder.memory = decide(step.select(*policy.in_keys, strict=False), memory)
        params.append(chosen)
    return torch.stack(params)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_recorded_decisions_are_those_of_the_policy_and_read_nothing_back(
    make_policy, record, encoder
):
    policy, seen = make_policy(encoder), history()
    ordinary = acting(policy)
    recorded, recorder = record(policy)
    expected, found = parameters(ordinary, seen), parameters(recorded, seen)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).min() > 1e-4
    structures = 2 if encoder in ("transformer", "rotary", "learned", "memo") else 1
    assert (recorder.warmed, recorder.records) == (3 * structures, structures)
    assert recorder.replays == STEPS - 3 * structures


def test_actions_are_drawn_outside_and_masked_actions_never(make_policy, record):
    policy = make_policy("transformer")
    recorded, recorder = record(policy)
    ordinary = acting(policy)
    drawn = [[], []]
    for chosen, actor in zip(drawn, (ordinary, recorded), strict=True):
        torch.manual_seed(5)
        for number, step in enumerate(history()):
            step["action_mask"] = torch.ones(ENVS, 5, dtype=torch.bool)
            step["action_mask"][:, number % 5] = False
            exploration = ExplorationType.RANDOM if number % 2 else ExplorationType.DETERMINISTIC
            with set_exploration_type(exploration):
                chosen.append(actor(step)["action"])
            assert (chosen[-1] != number % 5).all()
            assert not {"features", "context"} & set(step.keys())
    assert torch.equal(torch.stack(drawn[0]), torch.stack(drawn[1]))
    assert recorder.replays > 30


@pytest.mark.parametrize("encoder", ["transformer", "gru", "rotary"])
def test_memory_is_loaded_and_reset_and_weights_change_in_place(make_policy, record, encoder):
    policy, seen, others = make_policy(encoder), history(), history(seed=1)
    ordinary = acting(policy)
    recorded, recorder = record(policy)
    weights = TensorDict.from_module(make_policy(encoder)).data.apply(
        lambda value: value * 1.3 + 0.1
    )
    found = []
    for actor in (ordinary, recorded):
        actor.prepare_to_act()
        parts = [parameters(actor, seen[:20])]
        memory = actor.memory_state_dict()
        parts.append(parameters(actor, seen[20:36]))
        actor.load_memory_state_dict(memory)
        TensorDict.from_module(actor).data.update_(weights)
        actor.prepare_to_act()
        parts.append(parameters(actor, seen[20:36]))
        actor.reset_memory()
        parts.append(parameters(actor, others[5:25]))
        found.append(parts)
        assert (parts[1] - parts[2]).abs().max() > 0.01
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert recorder.records <= 2  # a memory of a structure that was recorded needs no recording


def load_while_learning(policy, weights):
    policy.train()
    policy.load_state_dict(weights)
    policy.eval()


def set_in_place(policy, weights):
    TensorDict.from_module(policy).data.update_(TensorDict(weights).unflatten_keys("."))
    policy.prepare_to_act()


def move_nowhere(policy, weights):
    policy.cpu().load_state_dict(weights)


CHANGES = {
    "loaded": lambda policy, weights: policy.load_state_dict(weights),
    "loaded while learning": load_while_learning,
    "set in place": set_in_place,
    "moved nowhere": move_nowhere,
}


@pytest.mark.parametrize("change", CHANGES)
def test_new_weights_are_acted_by_whatever_brought_them_and_whether_recorded_or_not(
    make_policy, record, change
):
    policy, seen = make_policy("rotary"), history()
    weights = {name: value * 1.3 + 0.1 for name, value in policy.state_dict().items()}
    ordinary = acting(policy)
    recorded, recorder = record(policy)
    found = []
    for actor in (ordinary, recorded):
        before = parameters(actor, seen[:20])
        CHANGES[change](actor, weights)
        actor.reset_memory()
        found.append(parameters(actor, seen[:20]))
        assert (found[-1] - before).abs().max() > 0.01
    policy.load_state_dict(weights)
    expected = parameters(acting(policy), seen[:20])
    for actual in found:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert recorder.records == 1


@pytest.mark.parametrize("encoder", ENCODERS)
def test_parameters_and_buffers_keep_their_memory(make_policy, encoder):
    policy, seen = acting(make_policy(encoder)), history()[:2]
    weights = {name: value * 1.3 + 0.1 for name, value in policy.state_dict().items()}
    before = [value.data_ptr() for value in state_of(policy)]
    for change in CHANGES.values():
        change(policy, weights)
        parameters(policy, seen)
        assert [value.data_ptr() for value in state_of(policy)] == before


class Scaled(GRUEncoder):
    """Multiplies what it sees by a tensor that is no buffer."""

    def step(self, x, *args):
        return super().step(x * self.factor(), *args)


@pytest.mark.parametrize("replaceable", [False, True])
def test_a_recording_that_reads_a_tensor_which_may_be_replaced_is_noticed(
    make_policy, record, monkeypatch, replaceable
):
    held = torch.ones(())
    monkeypatch.setattr(
        Scaled, "factor", lambda self: held if replaceable else torch.ones(()), raising=False
    )
    monkeypatch.setitem(ENCODERS, "scaled", partial(Scaled, hidden_size=8, out_features=8))
    (recorded, recorder), seen = record(make_policy("scaled")), history()
    with pytest.raises(AssertionError, match="neither declared") if replaceable else nullcontext():
        parameters(recorded, seen[:10])
    assert (recorder.replays > 0) is not replaceable


@pytest.mark.parametrize(
    "encoder", ["transformer", "window", "gru", "linear_recurrent", "rsm", "last_timesteps"]
)
def test_an_env_that_starts_holds_nothing_of_what_was_there(make_policy, record, encoder):
    recorded, recorder = record(make_policy(encoder))
    seen = history()
    for step in seen[:20]:
        step["observation"].fill_(torch.nan)
    parameters(recorded, seen[:20])
    step, replays = seen[20].clone(), recorder.replays
    step["is_init"][:] = True
    assert parameters(recorded, [step]).isfinite().all()
    assert recorder.replays == replays + 1


def test_a_snapshot_of_a_recorded_memory_is_a_copy(make_policy, record):
    (recorded, _), seen = record(make_policy("gru")), history()
    parameters(recorded, seen[:10])
    memory = recorded.memory_state_dict()
    kept = memory["memory"].clone()
    recorded.load_memory_state_dict(memory)
    parameters(recorded, seen[10:20])
    assert (memory["memory"] == kept).all()


def test_a_nested_stream_of_a_recorded_policy_leaves_its_memory_alone(make_policy, record):
    policy, seen, outputs = make_policy("gru"), history(), []
    for disturbed in (False, True):
        recorded, recorder = record(policy)
        parts = [parameters(recorded, seen[:20])]
        if disturbed:
            with separate_memory(recorded):
                parameters(recorded, seen[25:45])
        outputs.append(torch.cat([*parts, parameters(recorded, seen[20:40])]))
        assert recorder.replays > 10
    assert torch.equal(*outputs)


def test_a_lower_precision_is_that_of_the_encoders_alone(make_policy, record):
    policy, seen = make_policy("transformer"), history()
    exact = parameters(acting(policy), seen)
    lower, _ = record(policy)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
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


@pytest.mark.parametrize("encoder", ["transformer", "latest", "lstm"])
def test_compiled_decisions_are_those_of_the_policy_and_may_be_recorded(
    make_policy, monkeypatch, encoder
):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(policy_module, "Compiled", partial(Compiled, backend=backend))
    policy, seen = make_policy(encoder), history()
    compiled = acting(policy)
    compiled.compile_decisions()
    expected, found = parameters(acting(policy), seen), parameters(compiled, seen)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    structures = 2 if encoder == "transformer" else 1
    assert len(graphs) == structures
    compiled.reset_memory()
    compiled.record(Again())
    torch.testing.assert_close(parameters(compiled, seen), expected, rtol=1e-4, atol=1e-5)
    assert compiled._recorded.num_recordings == len(graphs) == structures
    assert copy.deepcopy(compiled)._compiled is None


def test_decisions_of_code_that_cannot_be_captured_are_refused(make_policy, monkeypatch):
    policy = make_policy("transformer")
    policy.trajectory_encoder.capture_obstacle = "checkpoint_layers"  # in whole sequences alone
    policy.compile_decisions()
    monkeypatch.setattr(TransformerEncoder, "capture_obstacle", "a library")
    with pytest.raises(ValueError, match="compile must be false with TransformerEncoder"):
        policy.compile_decisions()
    with pytest.raises(ValueError, match="cuda_graph must be false with TransformerEncoder"):
        policy.record(Again())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_on_a_gpu_recorded_decisions_are_those_of_the_policy(make_policy, encoder, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    policy, seen = make_policy(encoder, "cuda"), history(device="cuda")
    recorded = acting(policy)
    recorded.record(CudaRecorder(torch.device("cuda", 0)))
    expected = parameters(acting(policy), seen)
    with torch.autocast("cuda", dtype, enabled=dtype is not None, cache_enabled=False):
        again = parameters(recorded, seen)
    tolerance = 1e-3 if dtype is None else 0.05
    torch.testing.assert_close(again, expected, rtol=tolerance, atol=tolerance)
    assert recorded._recorded.num_recordings
