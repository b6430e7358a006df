"""Sessions of one agent act as agents of one stream each, whoever joins, asks and leaves."""

import copy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from yamame.deploy import DeployedAgent

NAMES = ["ayu", "iwana", 3, 0]
MOST = 3
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # batches of other sizes sum in another order
SUBSETS = st.lists(st.sampled_from(NAMES), unique=True, min_size=1)


class SessionsMachine(RuleBasedStateMachine):
    """One agent with sessions, beside an agent for each session.

    Actions are real numbers, so that they show whatever the memories hold.
    """

    made = None

    @initialize(seed=st.integers(0, 100))
    def load(self, seed):
        self.random = np.random.default_rng(seed)
        self.agent = DeployedAgent(self.made.saved, greedy=True, max_sessions=MOST)
        self.alone: dict[object, DeployedAgent] = {}
        self.fresh: set[object] = set()

    def teardown(self) -> None:
        if hasattr(self, "agent"):
            assert set(self.agent.sessions) == set(self.alone)

    def draw(self, num: int) -> dict[str, np.ndarray]:
        entries = {}
        for key, spec in self.agent.observation_spec.items():
            entries[key] = self.random.normal(size=(num, *spec.shape)).astype(np.float32)
        return entries

    @precondition(lambda self: self.alone)
    @rule(data=st.data())
    def reset_again(self, data):
        self.reset([data.draw(st.sampled_from(list(self.alone)))])
        self.act(data, 2)

    @rule(names=SUBSETS)
    def reset(self, names):
        if len(set(self.alone) | set(names)) > MOST:
            with pytest.raises(ValueError, match="max_sessions=3"):
                self.agent.reset(sessions=names)
            return
        self.agent.reset(sessions=names)
        for name in names:
            # Loaded anew: whether a reset forgets is what is tested.
            self.alone[name] = DeployedAgent(self.made.saved, greedy=True)
        self.fresh.update(names)

    @rule(names=SUBSETS)
    def forget(self, names):
        if not set(names) <= set(self.alone):
            with pytest.raises(ValueError, match="DeployedAgent: "):
                self.agent.forget(names)
            return
        self.agent.forget(names)
        for name in names:
            del self.alone[name]
        self.fresh -= set(names)

    @precondition(lambda self: self.alone)
    @rule(data=st.data(), num_steps=st.integers(1, 4))
    def act(self, data, num_steps):
        known = st.lists(st.sampled_from(list(self.alone)), unique=True, min_size=1)
        for _ in range(num_steps):
            names = data.draw(known)
            seen = self.draw(len(names))
            done = self.random.random(len(names)) < 0.1
            reward = self.random.normal(size=len(names))
            fresh = np.array([name in self.fresh for name in names])
            reward[fresh] = 0.0
            given = copy.deepcopy((seen, reward, done))
            actions = self.agent.act(seen, reward=reward, done=done, sessions=names)
            np.testing.assert_equal((seen, reward, done), given)
            for i, name in enumerate(names):
                entries = {key: value[i] for key, value in seen.items()}
                action = self.alone[name].act(entries, reward=reward[i], done=bool(done[i]))
                np.testing.assert_allclose(actions[i], action, **CLOSE)
            self.fresh -= set(names)


@pytest.mark.parametrize("encoder", ["transformer", "gru", "memo"])
def test_sessions_act_as_agents_of_one_stream_each(subject, encoder):
    short = ["context_length=6"] if encoder != "gru" else []
    # Sessions outlive what they remember.
    made = subject(encoder, "env=wind", *short)
    machine = type("Machine", (SessionsMachine,), {"made": made})
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None, max_examples=12, stateful_step_count=15, derandomize=True, database=None
        ),
    )
