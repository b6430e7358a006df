"""Whole steps that are recorded: they collect what ordinary ones do, bit for bit."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import RewardSum
from yamame.collectors import SyncCollector
from yamame.execution.capturing import recording
from yamame.exploration import BilevelEpsilon, EdgeEpsilon, EpsilonGreedy, GaussianNoise
from yamame.trajectory import (
    GRUEncoder,
    MemoEncoder,
    MemorylessEncoder,
    RSMEncoder,
    TrajectoryEncoder,
    TransformerEncoder,
    WindowEncoder,
)
from yamame.trajectory.kv_cache import grow_cache
from yamame_envs import (
    ActiveTMaze,
    Bandits,
    DarkKeyDoor,
    MazeRunner,
    MetaFrozenLake,
    PackageDelivery,
    PassiveTMaze,
    RepeatedTrials,
    Wind,
)

NUM_ENVS, LENGTH = 3, 12


def maze(**settings):
    return MazeRunner(
        **{"num_envs": NUM_ENVS, "size": 7, "num_goals": 2, "time_limit": 10, "seed": 3, **settings}
    )


ENCODERS = {
    "transformer": partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1),
    "latest": partial(
        TransformerEncoder, d_model=16, num_heads=2, num_layers=1, context_length=9, sinks=1
    ),
    # Its cache never grows: one recording acts with all weights that there are.
    "sigma": partial(
        TransformerEncoder,
        d_model=16,
        num_heads=2,
        num_layers=1,
        context_length=9,
        positions="rotary",
        sigma_reparam=True,
    ),
    "gru": partial(GRUEncoder, hidden_size=8, out_features=8),
    "last timesteps": partial(WindowEncoder, window=3, d_model=8),
    "memoryless": partial(MemorylessEncoder, d_model=8),
    "rsm": partial(RSMEncoder, d_model=8, num_heads=2, num_layers=1, segment_length=4),
    "memo": partial(
        MemoEncoder, d_model=8, num_heads=2, num_layers=1, segment_length=4, jitter=0.0
    ),
}
CASES = {
    **{name: (maze, encoder, BilevelEpsilon) for name, encoder in ENCODERS.items()},
    "trials": (
        lambda: RepeatedTrials(maze(), num_trials=2, seed=3),
        ENCODERS["transformer"],
        BilevelEpsilon,
    ),
    "lake": (
        lambda: MetaFrozenLake(
            num_envs=NUM_ENVS, size=3, num_trials=2, hard=True, slip=0.1, seed=3
        ),
        ENCODERS["transformer"],
        EpsilonGreedy,
    ),
    "wind": (lambda: Wind(num_envs=NUM_ENVS, time_limit=9, seed=3), ENCODERS["gru"], GaussianNoise),
    "edges": (maze, ENCODERS["memoryless"], EdgeEpsilon),
}


class OneMore(TransformerEncoder):
    """A stranger's encoder whose memory grows by one timestep at a time, after a look at it."""

    def grow(self, memory):
        return grow_cache(memory, capacity=self.capacity)[0]

    def grow_by(self, memory, num_steps):
        return TrajectoryEncoder.grow_by(self, memory, num_steps)


class Compiled:
    """Records by compiling the function as one graph."""

    def __init__(self):
        self.records = self.replays = 0

    def warm(self, function):
        return function()

    def wait(self):
        pass

    def record(self, function, *, reads):
        self.records += 1
        compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=False)

        def run():
            self.replays += 1
            compiled()

        return run, {}


@pytest.fixture
def make(make_policy, make_shelf, monkeypatch):
    """Makes a collector of a case, which records with a recorder if one is given."""

    def make(case, recorder=None, *, env=None, **settings):
        make_env, encoder, noise = (maze, case, BilevelEpsilon) if callable(case) else CASES[case]
        env = make_env() if env is None else env
        monkeypatch.setattr("yamame.collectors.sync.cuda_recorder", lambda device, owner: recorder)
        return SyncCollector(
            env,
            make_policy(env, encoder),
            make_shelf(),
            exploration=noise(env.full_action_spec["action"], anneal_steps=NUM_ENVS * LENGTH * 6),
            cuda_graph=recorder is not None,
            **settings,
        )

    return make


def collect(collector, blocks, length=LENGTH):
    """The trajectories of some blocks. Where steps are recorded, a cache has slots for a whole
    block.
    """
    for _ in range(blocks):
        collector.policy.reserve(length)
        collector.collect(NUM_ENVS * length)
    return collector.replay.take()


def same(ones, others):
    assert len(ones) == len(others)
    return all((a == b).all() for a, b in zip(ones, others, strict=True))


def act_out(collector, again):
    """Blocks between which weights, memory and block length change; the last ones by a collector of
    the same state.
    """
    weights = TensorDict.from_module(collector.policy).data.apply(lambda value: value * 1.3 + 0.05)
    torch.manual_seed(1)
    parts = collect(collector, 3)
    collector.update_policy_weights_(weights)
    parts += collect(collector, 1)
    memory = collector.policy.memory_state_dict()
    parts += collect(collector, 1)
    collector.policy.load_memory_state_dict(memory)
    parts += collect(collector, 2, length=LENGTH - 3)
    collector.policy.reset_memory()
    parts += collect(collector, 1)
    again.load_state_dict(collector.state_dict())
    parts += collect(again, 2)
    collector.load_state_dict(again.state_dict())
    return parts + collect(collector, 1, length=LENGTH + 5)


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_collect_what_ordinary_ones_do_and_read_nothing_back(make, case, tape):
    recorder = tape()
    ordinary = act_out(make(case), make(case))
    recorded = act_out(make(case, recorder), make(case, recorder))
    assert len(ordinary) > 10
    assert same(ordinary, recorded)
    assert recorder.steps > 8 * LENGTH
    assert recorder.records <= (8 if case in ("transformer", "trials", "lake") else 3)


def test_what_is_recorded_without_its_environment_is_noticed(make, tape):
    recorded = make("gru", tape())
    recorded._recorded._parts.pop()
    with pytest.raises(AssertionError, match="neither declared nor made in the capture"):
        collect(recorded, 4)


@pytest.mark.parametrize("case", ["trials", pytest.param("wind", marks=pytest.mark.slow)])
def test_compiled_as_one_graph_a_whole_step_is_what_it_is(make, case):
    recorder, trajectories = Compiled(), []
    for collector in (make(case), make(case, recorder)):
        torch.manual_seed(1)
        trajectories.append(collect(collector, 1, length=40))
    assert len(trajectories[0]) > 5
    assert same(*trajectories)
    assert recorder.replays > 30
    torch.compiler.reset()


def test_what_cannot_be_recorded_for_a_while_is_not(make, tape):
    """An exploration that is off, and an instruction, which is looked at as episodes begin."""

    def act(collector):
        torch.manual_seed(1)
        parts, replays = [], []
        for number in range(4):
            collector.exploration.enabled = number != 1
            collector.env.set_instruction("1,2" if number == 2 else None)
            parts += collect(collector, 2)
            replays.append(recorder.steps)
        return parts, replays

    recorder = tape()
    (ordinary, _), (recorded, replays) = (
        act(make("gru", each, env=maze(size=5))) for each in (None, recorder)
    )
    assert same(ordinary, recorded)
    assert replays[0] == replays[1] == replays[2] > 0
    assert replays[3] > replays[2]


class Alternating(TensorDictModuleBase):
    """A stranger's policy: counts the steps of an episode."""

    def __init__(self):
        super().__init__()
        self.in_keys, self.out_keys = ["is_init"], ["action"]
        self.count = torch.zeros(NUM_ENVS, dtype=torch.int64)

    def forward(self, tensordict):
        self.count = torch.where(tensordict["is_init"].squeeze(-1), 0, self.count + 1)
        return tensordict.set("action", self.count % 5)

    def reserve(self, num_steps):
        return True

    def static_buffers(self):
        return {"count": self.count}

    def set_static_buffers(self, tensors):
        self.count = tensors["count"]


class Turning(TensorDictModuleBase):
    """A stranger's exploration: turns every action, one further at every step."""

    def __init__(self):
        super().__init__()
        self.in_keys = self.out_keys = ["action"]
        self.turn = torch.zeros((), dtype=torch.int64)

    def forward(self, tensordict):
        self.turn = self.turn + 1
        return tensordict.set("action", (tensordict["action"] + self.turn // 7) % 5)

    def step(self, num_env_steps):
        self.turn.sub_(3)

    def reserve(self, num_steps):
        return True

    def static_buffers(self):
        return {"turn": self.turn}

    def set_static_buffers(self, tensors):
        self.turn = tensors["turn"]


def test_third_party_parts_are_recorded_if_they_declare_their_static_buffers(
    make_shelf, monkeypatch, tape
):
    recorder, trajectories = tape(), []
    monkeypatch.setattr("yamame.collectors.sync.cuda_recorder", lambda device, owner: recorder)
    for cuda_graph in (False, True):
        settings = {"exploration": Turning(), "cuda_graph": cuda_graph}
        collector = SyncCollector(maze(), Alternating(), make_shelf(), **settings)
        for _ in range(4):
            collector.collect(NUM_ENVS * LENGTH)
        trajectories.append(collector.replay.take())
    assert same(*trajectories)
    assert recorder.steps > 3 * LENGTH
    assert len({tuple(one["action"].tolist()) for one in trajectories[0]}) > 3


class Fading(Turning):
    """Turns by a number of Python, which a recording bakes in."""

    def forward(self, tensordict):
        self.turn = self.turn + 1
        return tensordict.set("action", (tensordict["action"] + self.amount) % 5)

    amount = 1

    def step(self, num_env_steps):
        self.amount += num_env_steps


NATIVE = {
    "bandits": lambda: Bandits(
        num_envs=NUM_ENVS, num_arms=3, time_limit=8, reward="gaussian", seed=3
    ),
    "door": lambda: DarkKeyDoor(num_envs=NUM_ENVS, size=3, trial_limit=5, time_limit=9, seed=3),
    "delivery": lambda: PackageDelivery(num_envs=NUM_ENVS, length=6, time_limit=9, seed=3),
    "active tmaze": lambda: ActiveTMaze(num_envs=NUM_ENVS, length=6, seed=3),
    "passive tmaze": lambda: PassiveTMaze(num_envs=NUM_ENVS, length=6, seed=3),
}


@pytest.mark.parametrize("name", NATIVE)
def test_recorded_steps_of_every_environment_read_what_they_carry(make, tape, name):
    recorder, trajectories = tape(), []
    for each in (None, recorder):
        env = NATIVE[name]()
        collector = make("edges", each, env=env)
        torch.manual_seed(1)
        trajectories.append(collect(collector, 3))
    assert same(*trajectories)
    assert recorder.steps > 2 * LENGTH


def numbers_of(make_collector, tape):
    """What recordings bake in, one made at the beginning and one after some steps.

    Longer episodes need a larger cache and one more recording, which has no counterpart.
    """
    recorders = tape(), tape()
    first, second = (make_collector(recorder) for recorder in recorders)
    collect(first, 3)
    second.exploration.load_state_dict(first.exploration.state_dict())
    second.exploration.step(50)
    collect(second, 3)
    shared = min(len(recorder.numbers) for recorder in recorders)
    assert shared > 0
    return [recorder.numbers[:shared] for recorder in recorders]


@pytest.mark.parametrize("case", ["memoryless", "lake", "wind"])
def test_no_number_that_changes_is_baked_into_a_recorded_step(make, tape, case):
    early, late = numbers_of(lambda recorder: make(case, recorder), tape)
    assert early == late


def test_a_number_that_changes_is_found(make_shelf, monkeypatch, tape):
    def make_fading(recorder):
        monkeypatch.setattr("yamame.collectors.sync.cuda_recorder", lambda device, owner: recorder)
        return SyncCollector(
            maze(), Alternating(), make_shelf(), exploration=Fading(), cuda_graph=True
        )

    early, late = numbers_of(make_fading, tape)
    assert early != late


def test_where_the_environment_does_not_allow_it_decisions_are_recorded(make):
    asked = maze()
    asked.set_instruction("5,3")
    for env in (TransformedEnv(maze(), RewardSum()), asked):
        recorder = Decisions()
        collector = make("gru", recorder, env=env)
        assert collector._recorded is None
        collect(collector, 2)
        assert recorder.names == {"output"}
    recorder = Decisions()
    collect(make("gru", recorder), 2)
    assert recorder.names == set()  # of a whole step, which returns nothing


class Decisions:
    """Notes what is returned by what is recorded, and runs it."""

    def __init__(self):
        self.names = None

    def warm(self, function):
        return function()

    def wait(self):
        pass

    def record(self, function, *, reads):
        results = {}

        def run():
            with recording():
                results.update(function())
            self.names = set(results)

        return run, results


def test_a_memory_of_which_nobody_can_tell_its_room_is_looked_at_before_every_step(make, tape):
    encoder = partial(OneMore, d_model=16, num_heads=2, num_layers=1)
    recorder, trajectories = tape(), []
    for collector in (make(encoder), make(encoder, recorder)):
        torch.manual_seed(1)
        assert not collector.policy.reserve(2)
        trajectories.append(collect(collector, 3))
    assert same(*trajectories)
    assert recorder.steps > 2 * LENGTH
