"""The synchronous collector stores exactly what happened, and goes on exactly where it was
saved.
"""

import copy
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Binary
from torchrl.envs import (
    Compose,
    ExcludeTransform,
    GymEnv,
    ObservationNorm,
    SerialEnv,
    TransformedEnv,
)
from yamame.agent import InContextAgent
from yamame.collectors import SyncCollector
from yamame.collectors.cast_weights import CastWeights
from yamame.execution.capturing import recording
from yamame.execution.recorder import Compiled
from yamame.exploration import BilevelEpsilon
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import GRUEncoder, TransformerEncoder
from yamame.transforms import ContextTransform
from yamame_envs import MazeRunner, PassiveTMaze

CONTEXT = ["prev_action", "prev_reward", "time", "trial_start", "step_index", "is_init"]


class Shelf:
    """Keeps whatever is appended."""

    def __init__(self) -> None:
        self.trajectories: list[TensorDict] = []

    def extend(self, data):
        for one in data.unbind(0):
            self.trajectories.append(one[: int(one["mask"].sum())].clone())


def make_collector(env, *, encoder=None, explore=True, **settings) -> SyncCollector:
    torch.manual_seed(0)
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=encoder
        or partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1),
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=(0.9,),
    )
    noise = BilevelEpsilon(agent.action_space, anneal_steps=500) if explore else None
    return SyncCollector(env, agent.policy(), Shelf(), exploration=noise, **settings)


def test_stored_trajectories_replay_in_the_environment_step_by_step():
    settings = {"size": 7, "num_goals": 1, "time_limit": 15, "seed": 4}
    collector = make_collector(MazeRunner(num_envs=1, **settings))
    collector.collect(60)
    assert len(collector.replay.trajectories) >= 4
    again = MazeRunner(num_envs=1, **settings)
    current = again.reset()
    for one in collector.replay.trajectories:
        for t in range(len(one) - 1):
            for key in ("observation", "goal", "achieved", *CONTEXT):
                assert torch.equal(current[key][0], one[key][t]), key
            stepped, following = again.step_and_maybe_reset(
                current.set("action", one["action"][t : t + 1])
            )
            for key in ("reward", "terminated", "truncated", "success"):
                assert torch.equal(stepped["next", key][0], one["next", key][t])
            current = following
        assert torch.equal(stepped["next", "observation"][0], one["observation"][-1])
        assert torch.equal(stepped["next", "prev_action"][0], one["prev_action"][-1])
        assert not one["action"][-1].any()


def test_every_step_is_stored_once_and_the_counters_agree():
    collector = make_collector(PassiveTMaze(num_envs=4, length=5))
    brought = [collector.collect(4 * 5) for _ in range(9)]
    steps = sum(episodes.num_steps for episodes in brought)
    assert steps == 9 * 20
    stored = sum(len(one) - 1 for one in collector.replay.trajectories)
    assert 0 <= steps - stored <= 4 * 5
    lengths = torch.cat([episodes.lengths for episodes in brought])
    assert lengths.tolist() == [len(one) - 1 for one in collector.replay.trajectories]
    returns = torch.cat([episodes.returns for episodes in brought])
    assert returns.tolist() == pytest.approx(
        [float(one["next", "reward"].sum()) for one in collector.replay.trajectories]
    )
    success = torch.cat([episodes.success for episodes in brought])
    assert success.tolist() == [
        bool(one["next", "success"].any()) for one in collector.replay.trajectories
    ]


def test_a_trajectory_holds_no_memory_no_features_and_no_seed():
    collector = make_collector(MazeRunner(num_envs=2, size=5, num_goals=1, time_limit=4))
    collector.collect(2 * 9)
    assert set(collector.replay.trajectories[0].keys(True, True)) == {
        *("observation", "goal", "achieved", "achieved_mask", "action", "mask", *CONTEXT),
        *(("next", name) for name in ("reward", "terminated", "truncated", "success")),
    }


def flat(memory, prefix="") -> dict[str, torch.Tensor]:
    """The tensors of a nested memory, by path."""
    if isinstance(memory, torch.Tensor):
        return {prefix: memory}
    return {
        path: value
        for key, inner in memory.items()
        for path, value in flat(inner, f"{prefix}/{key}").items()
    }


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
@pytest.mark.parametrize(
    "encoder",
    [
        partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1),
        partial(GRUEncoder, hidden_size=8, out_features=8),
    ],
)
def test_a_saved_collector_goes_on_exactly_where_it_stood_in_a_new_one(encoder, autocast):
    settings = {"num_envs": 3, "size": 7, "num_goals": 2, "time_limit": 11, "seed": 2}
    first = make_collector(MazeRunner(**settings), encoder=encoder, autocast=autocast)
    first.collect(3 * 17)
    state = copy.deepcopy(first.state_dict())
    random = torch.get_rng_state()
    first.replay.trajectories.clear()
    first.collect(3 * 30)
    second = make_collector(MazeRunner(**settings), encoder=encoder, autocast=autocast)
    second.load_state_dict(state)
    restored, saved = (flat(memory) for memory in (second.state_dict()["memory"], state["memory"]))
    assert any(value.any() for value in saved.values())
    assert restored.keys() == saved.keys()
    assert all(torch.equal(restored[name], value) for name, value in saved.items())
    assert all(restored[name].dtype == value.dtype for name, value in saved.items())
    torch.set_rng_state(random)
    second.collect(3 * 30)
    memories = [flat(c.state_dict()["memory"]) for c in (first, second)]
    assert memories[0].keys() == memories[1].keys()
    assert all(torch.equal(memories[0][name], memories[1][name]) for name in memories[0])
    assert len(first.replay.trajectories) == len(second.replay.trajectories) >= 6
    for a, b in zip(first.replay.trajectories, second.replay.trajectories, strict=True):
        assert (a == b).all()


def test_a_transformed_environment_goes_on_exactly_too_and_in_one_that_had_played_already():
    def build():
        env = MazeRunner(num_envs=3, size=7, num_goals=2, time_limit=11, seed=2)
        return make_collector(
            TransformedEnv(env, ObservationNorm(loc=0.5, scale=2.0, in_keys=["observation"]))
        )

    first, others = build(), (build(), build())
    first.collect(3 * 17)
    state, random = copy.deepcopy(first.state_dict()), torch.get_rng_state()
    first.replay.trajectories.clear()
    first.collect(3 * 30)
    others[1].collect(3 * 40)
    for other in others:
        other.replay.trajectories.clear()
        other.load_state_dict(state)
        torch.set_rng_state(random)
        other.collect(3 * 30)
        assert len(first.replay.trajectories) == len(other.replay.trajectories) >= 6
        assert all(
            (a == b).all()
            for a, b in zip(first.replay.trajectories, other.replay.trajectories, strict=True)
        )


def test_an_environment_that_keeps_no_state_begins_new_episodes():
    def build():
        make = partial(TransformedEnv, transform=ContextTransform(horizon=500))
        return make_collector(
            make(SerialEnv(2, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True)))
        )

    first = build()
    first.collect(2 * 50)
    state = first.state_dict()
    for other in (first, build()):
        other.load_state_dict(state)
        other.replay.trajectories.clear()
        other.collect(2 * 100)
        assert other.replay.trajectories
        for one in other.replay.trajectories:
            assert one["step_index"].flatten().tolist() == list(range(len(one)))
            assert one["is_init"].flatten().tolist() == [True] + [False] * (len(one) - 1)
        other.shutdown()


class FailingTMaze(PassiveTMaze):
    """Fails in every episode that has a goal on the upper side, at its third step."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        shape = (*self.batch_size, 1)
        self.observation_spec["aborted"] = Binary(n=1, shape=shape, dtype=torch.bool)
        self._known.add("aborted")

    def transition(self, task, state, action):
        state, reward, success = super().transition(task, state, action)
        third = self.env_state.state["step_index"] == 2
        return {**state, "ended": third & (task["side"] == 1).unsqueeze(-1)}, reward, success

    def begin(self, task):
        return {
            **super().begin(task),
            "ended": torch.zeros(len(task["side"]), 1, dtype=torch.bool),
        }

    def observe(self, task, state):
        return {**super().observe(task, state), "aborted": state["ended"].clone()}


def test_an_episode_that_the_environment_aborted_is_dropped_and_counted():
    settings = {"num_envs": 4, "length": 5, "seed": 3}
    collector = make_collector(FailingTMaze(**settings))
    brought = [collector.collect(4 * 7) for _ in range(12)]
    stored = collector.replay.trajectories
    assert len(stored) >= 10
    assert {len(one) for one in stored} == {7}
    assert not any("aborted" in str(key) for one in stored for key in one.keys(True, True))
    assert {float(one["observation"][0, 1]) for one in stored} == {-1.0}
    assert sum(episodes.num_aborted for episodes in brought) >= 10
    assert sum(len(episodes.returns) for episodes in brought) == len(stored)
    sound = make_collector(PassiveTMaze(**settings))
    whole = [sound.collect(4 * 7) for _ in range(12)]
    assert {float(one["observation"][0, 1]) for one in sound.replay.trajectories} == {-1.0, 1.0}
    assert sum(episodes.num_aborted for episodes in whole) == 0


def actions(**settings) -> list[list[int]]:
    """What is executed for two different streams of random numbers."""
    played = []
    for seed in (1, 2):
        collector = make_collector(PassiveTMaze(num_envs=4, length=9, seed=3), **settings)
        torch.manual_seed(seed)
        collector.collect(4 * 10)
        played.append(torch.cat([one["action"] for one in collector.replay.trajectories]).tolist())
    return played


def test_greedy_acting_draws_nothing_but_the_noise_that_changes_it():
    same, again = actions(greedy=True, explore=False)
    assert same == again
    sampled, otherwise = actions(greedy=False, explore=False)
    assert sampled != otherwise
    noisy, other_noise = actions(greedy=True, explore=True)
    assert noisy != other_noise


def test_acting_in_bfloat16_changes_neither_weights_nor_what_is_stored():
    exact, rounded = (
        make_collector(PassiveTMaze(num_envs=2, length=4), autocast=a) for a in (None, "bfloat16")
    )
    for collector in (exact, rounded):
        collector.collect(2 * 7)
    kept = [
        {key: value.dtype for key, value in c.replay.trajectories[0].items(True, True)}
        for c in (exact, rounded)
    ]
    assert kept[0] == kept[1]
    assert all(parameter.dtype == torch.float32 for parameter in rounded.policy.parameters())


class Casts(TorchDispatchMode):
    """Counts casts to bfloat16."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += (kwargs or {}).get("dtype") == torch.bfloat16
        return func(*args, **(kwargs or {}))


def test_acting_in_bfloat16_casts_weights_once_and_acts_alike_after_new_weights(monkeypatch):
    encoder = partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1, sigma_reparam=True)
    collectors, played, casts = [], [], []
    for once in (True, False):
        if not once:
            monkeypatch.setattr(CastWeights, "__init__", lambda self, *_: None)
            monkeypatch.setattr(CastWeights, "refresh", lambda self: None)
        env = PassiveTMaze(num_envs=4, length=5, seed=3)
        collectors.append(make_collector(env, encoder=encoder, autocast="bfloat16"))
    weights = TensorDict.from_module(copy.deepcopy(collectors[1].policy)).data
    weights = weights.apply(lambda w: w + 0.5 * torch.ones_like(w) if w.is_floating_point() else w)
    for collector in collectors:
        torch.manual_seed(1)
        with Casts() as counted:
            collector.collect(4 * 12)
        casts.append(counted.count / 12)
        collector.update_policy_weights_(weights)
        collector.collect(4 * 12)
        stored = collector.replay.trajectories
        played.append(torch.cat([one["action"] for one in stored]).tolist())
        parameters = collector.policy.parameters()
        assert all(parameter.dtype == torch.float32 for parameter in parameters)
        assert not [name for name in collector.policy.state_dict() if "cast" in name]
    assert played[0] == played[1]
    # Weights and biases of embedding, of four layers of the Transformer (one without a bias) and
    # of the encoder of timesteps.
    assert casts[0] <= casts[1] - 9


class OnTheHost:
    """Records on a CPU."""

    def __init__(self):
        self.replays = 0

    def warm(self, function):
        return function()

    def wait(self):
        pass

    def record(self, function, *, reads):
        results = {}

        def replay():
            self.replays += 1
            with recording():
                results.update(function())

        return replay, results


def test_a_recorded_policy_collects_what_an_ordinary_one_does_and_goes_on_where_it_was_saved(
    monkeypatch,
):
    recorder, seen = OnTheHost(), []
    monkeypatch.setattr(
        "yamame.collectors.sync.cuda_recorder",
        lambda device, owner: seen.append((device, owner)) or recorder,
    )

    def env():
        return PassiveTMaze(num_envs=2, length=4)

    ordinary, recorded, again = (
        make_collector(env()),
        *(make_collector(env(), cuda_graph=True) for _ in range(2)),
    )
    assert seen == [(torch.device("cpu"), "SyncCollector")] * 2
    weights = TensorDict.from_module(ordinary.policy).data.apply(lambda value: value * 1.5)
    for collector in (ordinary, recorded):
        torch.manual_seed(1)
        collector.collect(2 * 20)
        collector.update_policy_weights_(weights)
        collector.collect(2 * 11)
    again.load_state_dict(recorded.state_dict())
    states = []
    for collector in (ordinary, recorded, again):
        torch.manual_seed(2)
        kept = len(collector.replay.trajectories)
        collector.collect(2 * 20)
        states.append(collector.replay.trajectories[kept:])
    assert recorder.replays > 40
    assert all(
        (a == b).all() for stored in states[1:] for a, b in zip(states[0], stored, strict=True)
    )
    for one, other in zip(ordinary.replay.trajectories, recorded.replay.trajectories, strict=True):
        assert (one == other).all()


def test_a_compiled_policy_collects_what_an_ordinary_one_does_recorded_or_not(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr("yamame.agent.policy.Compiled", partial(Compiled, backend=backend))
    monkeypatch.setattr("yamame.collectors.sync.cuda_recorder", lambda device, owner: OnTheHost())
    stored = []
    for settings in ({}, {"compile": True}, {"compile": True, "cuda_graph": True}):
        collector = make_collector(PassiveTMaze(num_envs=2, length=4), **settings)
        torch.manual_seed(1)
        collector.collect(2 * 20)
        stored.append(collector.replay.trajectories)
        assert len(graphs) == len(stored) - 1  # one for each collector that compiles
    assert len(stored[0]) >= 6
    for other in stored[1:]:
        assert all((one == its).all() for one, its in zip(stored[0], other, strict=True))


def test_what_cannot_be_compiled_is_refused(monkeypatch):
    monkeypatch.setattr(
        "yamame.execution.recorder.missing_compiler", lambda device: f"nothing on {device}"
    )
    with pytest.raises(
        ValueError, match="SyncCollector: compile must be false with nothing on cpu"
    ):
        make_collector(PassiveTMaze(num_envs=2, length=4), compile=True)


def test_recording_is_refused_without_a_gpu():
    with pytest.raises(ValueError, match="SyncCollector: cuda_graph must be false on cpu"):
        make_collector(PassiveTMaze(num_envs=2, length=4), cuda_graph=True)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match=r"SyncCollector: autocast must be .*'float16'"):
        make_collector(PassiveTMaze(num_envs=2, length=4), autocast="float16")


def test_any_torchrl_environment_collects_after_the_context_transform():
    bare = PassiveTMaze(num_envs=2, length=4)
    wrapped = TransformedEnv(bare, Compose(ExcludeTransform(*CONTEXT), ContextTransform(horizon=5)))
    collector = make_collector(wrapped)
    collector.collect(2 * 12)
    assert [len(one) for one in collector.replay.trajectories] == [6] * 4
    native = make_collector(PassiveTMaze(num_envs=2, length=4))
    native.collect(2 * 12)
    assert {key for one in native.replay.trajectories for key in one.keys(True, True)} == set(
        collector.replay.trajectories[0].keys(True, True)
    )


def test_an_environment_without_is_init_is_refused():
    bare = TransformedEnv(PassiveTMaze(num_envs=2, length=4), ExcludeTransform(*CONTEXT))
    with pytest.raises(ValueError, match=r"is_init .*ContextTransform.*observation"):
        SyncCollector(bare, make_collector(PassiveTMaze(num_envs=2, length=4)).policy, Shelf())
