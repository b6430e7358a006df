"""Encoders in the loops of TorchRL: places of the memory, streams of steps, layouts of batches."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import SerialEnv, TransformedEnv
from torchrl.modules import set_recurrent_mode
from torchrl.objectives.value import GAE
from yamame.trajectory import (
    GRUEncoder,
    LinearRecurrentEncoder,
    LSTMEncoder,
    MemoEncoder,
    MemorylessEncoder,
    RSMEncoder,
    TrajectoryKeys,
    TransformerEncoder,
    WindowEncoder,
    separate_memory,
)
from yamame_envs import PassiveTMaze

HEADS = {"d_model": 8, "num_heads": 2, "dropout": 0.0}
MAKE = {
    "transformer": lambda keys: TransformerEncoder(4, **HEADS, context_length=12, keys=keys),
    "gru": lambda keys: GRUEncoder(4, hidden_size=8, num_layers=2, out_features=8, keys=keys),
    "lstm": lambda keys: LSTMEncoder(4, hidden_size=8, num_layers=2, out_features=8, keys=keys),
    "linear_recurrent": lambda keys: LinearRecurrentEncoder(4, d_model=8, keys=keys),
    "rsm": lambda keys: RSMEncoder(4, **HEADS, segment_length=3, keys=keys),
    "memo": lambda keys: MemoEncoder(4, **HEADS, segment_length=3, context_length=12, keys=keys),
    "window": lambda keys: WindowEncoder(4, window=3, d_model=8, keys=keys),
    "memoryless": lambda keys: MemorylessEncoder(4, d_model=8, keys=keys),
}
every = pytest.mark.parametrize("name", MAKE)
COUNTERS = ("step_index", "time", "prev_action", "prev_reward", "trial_start")


def corridor(num_envs=2, seed=0, length=5):
    return PassiveTMaze(num_envs=num_envs, length=length, seed=seed)


def corridors():
    """Two times two envs, whose episodes end at different times."""
    return SerialEnv(2, [lambda: corridor(seed=0), lambda: corridor(seed=1, length=3)])


def make_policy(name="gru", keys=None):
    torch.manual_seed(0)
    encoder = MAKE[name](keys)
    features = TensorDictModule(nn.Linear(2, 4), ["observation"], ["features"])
    values = TensorDictModule(nn.Linear(8, 4), ["context"], ["action_value"])
    choose = TensorDictModule(lambda values: values.argmax(-1), ["action_value"], ["action"])
    return TensorDictSequential(features, encoder, values, choose).eval()


def collected(env, policy, frames=80):
    collector = Collector(
        env,
        policy,
        frames_per_batch=frames,
        total_frames=-1,
        auto_register_policy_transforms=True,
    )
    for batch in collector:
        return batch
    raise AssertionError


@torch.no_grad()
def in_parallel(policy, batch):
    seen = batch.select("observation", "is_init", "step_index", strict=False)
    with set_recurrent_mode(True):
        return policy(seen)["context"]


# Memory in the TensorDict and in the module.


@every
@pytest.mark.parametrize("carried", [False, True])
def test_acting_in_a_collector_is_the_parallel_pass(name, carried):
    keys = TrajectoryKeys(memory="memory") if carried else None
    policy = make_policy(name, keys)
    batch = collected(corridors(), policy)
    assert batch["is_init"].sum(2).unique().numel() > 1
    assert torch.allclose(batch["context"], in_parallel(policy, batch), atol=1e-5)
    assert ("memory" in batch.keys()) == (carried and name != "memoryless")
    assert (policy[1].memory is None) == carried


@every
def test_a_primer_works_within_and_around_a_vector_of_environments(name):
    policy = make_policy(name, TrajectoryKeys(memory="memory"))
    around = TransformedEnv(corridors(), policy[1].make_tensordict_primer())

    def within(seed, length):
        return TransformedEnv(corridor(2, seed, length), policy[1].make_tensordict_primer())

    for env in (around, SerialEnv(2, [lambda: within(0, 5), lambda: within(1, 3)])):
        with torch.no_grad():
            batch = env.rollout(20, policy, break_when_any_done=False)
        assert torch.allclose(batch["context"], in_parallel(policy, batch), atol=1e-5)


def test_any_number_of_streams_share_a_module_whose_memory_is_in_the_tensordict():
    policy = make_policy("gru", TrajectoryKeys(memory="memory"))
    env = TransformedEnv(corridor(), policy[1].make_tensordict_primer())
    test = TransformedEnv(corridor(seed=9), policy[1].make_tensordict_primer())
    batch = torch.stack(list(steps_of(env, policy, lambda: test.rollout(5, policy))), 1)
    assert torch.allclose(batch["context"], in_parallel(policy, batch), atol=1e-6)


# Two streams on one memory.


def steps_of(env, policy, between, num_steps=8, when=3):
    """Act step by step; something else happens between two of them."""
    td = env.reset()
    for step in range(num_steps):
        if step == when:
            between()
        with torch.no_grad():
            td = policy(td)
        yield td.clone()
        _, td = env.step_and_maybe_reset(td)


def without_counters(policy):
    """A policy that is shown neither counts of steps nor the context before."""
    seen = ["observation", "is_init"]

    def act(td):
        return td.update(policy(td.select(*seen)).select("action", "context"))

    return act


def without_step_index(policy):
    def act(td):
        return td.update(policy(td.exclude(*COUNTERS)).select("action", "context", "features"))

    return act


SEEN = {"all": lambda policy: policy, "context": without_step_index}


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_an_evaluation_between_two_steps_is_an_error(seen, length):
    module = make_policy()
    policy = SEEN[seen](module)
    env, test = corridor(), corridor(seed=9)
    if seen == "context" and length == 1:
        pytest.skip("a single step carries no context along")

    def evaluate():
        with torch.no_grad():
            test.rollout(length, policy)

    with pytest.raises(ValueError, match=r"GRUEncoder: a step must continue .*separate_memory"):
        list(steps_of(env, policy, evaluate))

    def evaluate_apart():
        with separate_memory(module):
            evaluate()

    module[1].reset_memory()
    batch = torch.stack(list(steps_of(env, policy, evaluate_apart)), 1)
    assert torch.allclose(batch["context"], in_parallel(module, batch), atol=1e-6)


def test_an_evaluation_between_two_batches_of_a_collector_is_an_error():
    policy = make_policy()
    collector = Collector(
        corridor(),
        policy,
        frames_per_batch=2 * 4,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    batches = iter(collector)
    next(batches)
    with torch.no_grad():
        corridor(seed=9).rollout(4, policy)  # as many steps, so no count differs
    with pytest.raises(ValueError, match=r"one with .*traj_ids.*separate_memory"):
        next(batches)


def random_at_first(policy):
    return Collector(
        corridor(),
        policy,
        frames_per_batch=2 * 4,
        total_frames=2 * 60,
        init_random_frames=2 * 40,
        auto_register_policy_transforms=False,
    )


def test_a_policy_goes_on_after_random_steps_of_a_collector():
    policy = make_policy()
    with pytest.raises(ValueError, match=r"init_random_frames.* reset_memory\(\)"):
        list(random_at_first(policy))
    policy = make_policy()
    collector = random_at_first(policy)
    policy[1].reset_memory()
    assert len(list(collector)) == 15


def test_two_collectors_of_one_policy_are_two_streams():
    """Both number their trajectories from 0."""
    policy = make_policy()
    collectors = []
    for seed in range(2):
        collector = Collector(
            corridor(seed=seed),
            policy,
            frames_per_batch=2 * 4,
            total_frames=-1,
            auto_register_policy_transforms=False,
        )
        collectors.append(iter(collector))
    for collector in collectors:
        next(collector)
    with pytest.raises(ValueError, match="a step must continue"):
        next(collectors[0])


def test_a_rollout_within_one_of_a_collector_is_an_error():
    policy = make_policy()
    env = corridor()
    td = env.reset()
    with torch.no_grad():
        td = env.step_and_maybe_reset(policy(td))[1]
        td = env.step_and_maybe_reset(policy(td))[1]
        collector = Collector(
            corridor(seed=9),
            policy,
            frames_per_batch=2 * 2,
            total_frames=-1,
            auto_register_policy_transforms=False,
        )
        next(iter(collector))
        with pytest.raises(ValueError, match="a step must continue"):
            policy(td)


def test_a_stream_without_any_mark_is_not_recognised():
    """The limit that the page states."""
    policy = without_counters(make_policy())
    env, test = corridor(), corridor(seed=9)
    with torch.no_grad():
        list(steps_of(env, policy, lambda: test.rollout(5, policy)))


@pytest.mark.parametrize("seen", ["all", "context"])
def test_ordinary_loops_are_no_errors(seen):
    module = make_policy()
    policy = SEEN[seen](module)
    env = corridors()
    with torch.no_grad():
        for _ in range(3):
            env.rollout(3, policy)  # each begins anew, in the middle of an episode
        env.rollout(12, policy, break_when_any_done=False)
        env.rollout(12, policy, break_when_any_done=False, break_when_all_done=True)
        collector = Collector(
            env,
            policy,
            frames_per_batch=4 * 3,
            total_frames=48,
            auto_register_policy_transforms=False,
        )
        assert len(list(collector)) == 4


def test_a_memory_that_was_dropped_on_purpose_begins_within_episodes():
    policy = make_policy()
    env = corridors()
    with torch.no_grad():
        td = env.reset()
        for step in range(6):
            if step == 3:
                policy[1].reset_memory()
            _, td = env.step_and_maybe_reset(policy(td))
        # A copy has no memory of them.
        other = copy.deepcopy(policy)
        with pytest.raises(ValueError, match=r"begins within episodes.*reset_memory\(\)"):
            other(td)
        other[1].reset_memory()
        other(td)


def test_memories_set_by_hand_are_streams_of_their_own():
    policy = make_policy()
    encoder = policy[1]
    streams = [(corridor(seed=seed), None) for seed in range(2)]
    streams = [[env, env.reset(), None] for env, _ in streams]
    with torch.no_grad():
        for _ in range(6):
            for stream in streams:
                env, td, encoder.memory = stream
                _, stream[1] = env.step_and_maybe_reset(policy(td))
                stream[2] = encoder.memory


def test_stored_steps_may_be_acted_again():
    policy = make_policy()
    with torch.no_grad():
        batch = corridor().rollout(12, policy, break_when_any_done=False)
        again = [policy(batch[:, t])["context"] for t in range(12)]
    assert torch.allclose(torch.stack(again, 1), batch["context"], atol=1e-6)


def test_copies_know_no_step_before():
    policy = make_policy()
    env = corridor()
    with torch.no_grad():
        list(steps_of(env, policy, lambda: None))
    for encoder in (copy.deepcopy(policy[1]), pickle.loads(pickle.dumps(policy[1]))):
        assert encoder.last_step is None
        assert encoder.memory is None


# Batches that are no steps.


def test_sequences_outside_of_recurrent_mode_are_errors():
    policy = make_policy()
    batch = corridor(3).rollout(8, break_when_any_done=False)
    message = (
        r"GRUEncoder: a step must be one timestep of envs \[\*N\], got .*{}.*set_recurrent_mode"
    )
    with pytest.raises(ValueError, match=message.format("named 'time'")):
        policy(batch)
    unnamed = batch.clone()
    unnamed.names = None
    with pytest.raises(ValueError, match=message.format("outcomes")):
        policy(unnamed)
    bare = unnamed.exclude("next")
    with pytest.raises(ValueError, match=message.format("begins within episodes")):
        policy(bare)
    with pytest.raises(ValueError, match=message.format("named 'time'")):
        policy(batch[0])
    with pytest.raises(ValueError, match=message.format("begins within episodes")):
        policy(unnamed.reshape(-1))
    # As many envs as there are timesteps.
    with torch.no_grad():
        corridor(24).rollout(3, policy)
    with pytest.raises(ValueError, match=message.format(r"after steps of \[24\] envs")):
        policy(bare)
    assert policy[1].memory is not None
    assert in_parallel(policy, bare).shape == (3, 8, 8)


def test_nested_envs_are_steps():
    policy = make_policy()
    with torch.no_grad():
        batch = corridors().rollout(12, policy, break_when_any_done=False)
    assert batch.shape == (2, 2, 12)


def test_flat_slices_within_recurrent_mode_are_errors():
    policy = make_policy()
    batch = corridor(3).rollout(8, break_when_any_done=False)
    flat = batch.reshape(-1)
    message = r"GRUEncoder: a batch within set_recurrent_mode\(True\) must be of sequences .*{}"
    bare = batch.select("observation", "is_init", "step_index").reshape(-1)
    no_starts = bare.clone()
    no_starts["is_init"].zero_()
    with set_recurrent_mode(True):
        for wrong, reason in (
            (flat, "outcomes"),
            (bare, "is_init after"),
            (no_starts, "step_index does not"),
            (bare.select("observation", "is_init")[0], "without a time dimension"),
        ):
            with pytest.raises(ValueError, match=message.format(reason)):
                policy(wrong)
        # One sequence.
        one = batch[0]
        assert one.names == ["time"]
        expected = policy(batch.clone())["context"][0]
        assert torch.allclose(policy(one.clone())["context"], expected, atol=1e-6)
        short = bare[:5].clone()
        assert torch.allclose(policy(short)["context"], expected[:5], atol=1e-6)


@every
def test_contexts_do_not_cross_the_ends_of_rollouts_without_is_init(name):
    policy = make_policy(name)
    batch = corridor(3).rollout(12, break_when_any_done=False)
    expected = in_parallel(policy, batch)
    unmarked = batch.exclude("is_init", ("next", "is_init"), "step_index", ("next", "step_index"))
    assert unmarked["next", "done"][:, :-1].any()
    with set_recurrent_mode(True), torch.no_grad():
        found = policy(unmarked.clone())["context"]
        crossing = policy(unmarked.exclude("next"))["context"]
    assert torch.allclose(found, expected, atol=1e-5)
    if name != "memoryless":
        assert not torch.allclose(crossing, expected, atol=1e-5)
    # Trajectories of several environments in one row.
    ids = torch.tensor([[0, 0, 1, 1, 1]])
    x = torch.randn(1, 5, 2)
    row = TensorDict({"observation": x, "collector": {"traj_ids": ids}}, [1, 5])
    with set_recurrent_mode(True), torch.no_grad():
        found = policy(row)["context"]
        parts = [
            policy(TensorDict({"observation": part}, part.shape[:2]))["context"]
            for part in (x[:, :2], x[:, 2:])
        ]
    assert torch.allclose(found, torch.cat(parts, 1), atol=1e-5)


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_advantages_need_whole_sequences(name):
    policy = make_policy(name)
    value = TensorDictModule(nn.Linear(8, 1), ["context"], ["state_value"])
    network = TensorDictSequential(policy[0], policy[1], value)
    rollout = corridor().rollout(8, break_when_any_done=False)
    with set_recurrent_mode(True), torch.no_grad():
        with pytest.raises(ValueError, match=r"vmap.*GAE\(\.\.\., shifted=True\)"):
            GAE(gamma=0.9, lmbda=0.9, value_network=network)(rollout.clone())
        advantages = GAE(gamma=0.9, lmbda=0.9, value_network=network, shifted=True)
        found = advantages(rollout.clone())["state_value"]
        torch.testing.assert_close(found, network(rollout.clone())["state_value"])


def test_the_last_observation_of_a_packed_trajectory_keeps_its_history():
    """An end in a packed batch is at the transition into its last timestep."""
    policy = make_policy()
    x = torch.randn(1, 5, 2)
    done = torch.tensor([[0, 0, 0, 1, 0]]).bool().unsqueeze(-1)
    packed = TensorDict({"observation": x, "next": {"done": done, "terminated": done}}, [1, 5])
    plain = packed.exclude("next")
    with set_recurrent_mode(True), torch.no_grad():
        assert torch.equal(policy(packed)["context"], policy(plain)["context"])


# Starts that are missing.


def test_a_missing_start_names_its_cure():
    policy = make_policy()

    def act(td):
        return policy(td.exclude("is_init"))

    cure = r"InitTracker\(\).*Collector\(auto_register_policy_transforms=True\)"
    with pytest.raises(ValueError, match=rf"a step must have key 'is_init' .*{cure}"):
        corridor().rollout(3, act)
