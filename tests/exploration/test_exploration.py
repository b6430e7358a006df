"""Exploration: schedules, exact replacement probabilities, and when nothing may happen at all."""

import copy
import math
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame.actions import ActionSpace
from yamame.exploration import (
    BilevelEpsilon,
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    disable_exploration,
)

ROWS = 20_000
SPECS = {
    "categorical": lambda batch: Categorical(4, shape=batch),
    "one_hot": lambda batch: OneHot(4, shape=(*batch, 4)),
    "multi_categorical": lambda batch: MultiCategorical([3, 4], shape=(*batch, 2)),
    "multi_one_hot": lambda batch: MultiOneHot([3, 4], shape=(*batch, 7)),
    "binary": lambda batch: Binary(3, shape=(*batch, 3)),
    "bounded": lambda batch: Bounded(-1.0, 3.0, (*batch, 2)),
}


def binomial_bounds(n: int, p: float, tail: float = 1e-7) -> tuple[int, int]:
    """Counts outside these have an exact probability below ``tail`` on each side."""
    log_mass = [
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
        for k in range(n + 1)
    ]
    low = high = 0.0
    first, last = 0, n
    while (low := low + math.exp(log_mass[first])) < tail:
        first += 1
    while (high := high + math.exp(log_mass[last])) < tail:
        last -= 1
    return first, last


def assert_probability(event: torch.Tensor, p: float) -> None:
    low, high = binomial_bounds(event.numel(), p)
    assert low <= int(event.sum()) <= high


def rows(action: torch.Tensor, n: int = ROWS, **entries) -> TensorDict:
    return TensorDict(
        {"action": action, "is_init": torch.ones(n, 1, dtype=torch.bool), **entries}, batch_size=[n]
    )


def run(module, td: TensorDict, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return module(td.clone())["action"]


def fixed(spec, epsilon: float, **arguments) -> EpsilonGreedy:
    return EpsilonGreedy(spec, anneal_steps=1, start=epsilon, end=epsilon, **arguments)


def test_the_exact_bounds_reject_a_slightly_wrong_probability():
    """Negative control of the frequency tests: two percent points off is noticed."""
    event = torch.rand(ROWS, generator=torch.Generator().manual_seed(0)) < 0.30
    assert_probability(event, 0.30)
    with pytest.raises(AssertionError):
        assert_probability(event, 0.32)


def test_bilevel_schedule_at_chosen_points():
    module = BilevelEpsilon(Categorical(4), anneal_steps=1000, randomize=False)
    time = torch.tensor([[0.0], [0.25], [1.0], [2.0]])
    td = rows(torch.zeros(4, dtype=torch.int64), 4, time=time)
    expected = {
        0: [1.0, 0.95, 0.8, 0.8],
        500: [0.525, 0.495, 0.405, 0.405],
        1000: [0.05, 0.04, 0.01, 0.01],
        5000: [0.05, 0.04, 0.01, 0.01],
    }
    for steps, epsilon in expected.items():
        module.step(steps - int(module.num_env_steps))
        torch.testing.assert_close(module.epsilon(td), torch.tensor(epsilon))
    torch.testing.assert_close(module.epsilon(td.exclude("time")), torch.full((4,), 0.05))


def test_epsilon_greedy_and_gaussian_schedules_are_linear_and_stop():
    for module in (
        EpsilonGreedy(Categorical(4), anneal_steps=10),
        GaussianNoise(Bounded(-1, 1, (2,)), anneal_steps=10),
    ):
        values = []
        for _ in range(4):
            values.append(float(module.anneal(module.start, module.end)))
            module.step(5)
        assert values == pytest.approx([1.0, 0.525, 0.05, 0.05])


@pytest.mark.parametrize("batch", [(), (ROWS,)])
def test_a_categorical_action_is_replaced_by_a_uniform_one_with_probability_epsilon(batch):
    action = torch.full((ROWS,), 2)
    explored = run(fixed(Categorical(4, shape=batch), 0.4), rows(action))
    for other in (0, 1, 3):
        assert_probability(explored == other, 0.1)
    assert action.unique().tolist() == [2]


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("batched", [False, True])
def test_explored_actions_are_in_the_spec_for_every_kind_of_action(kind, batched):
    spec = SPECS[kind]((50,))
    action = spec.rand()
    module = BilevelEpsilon(SPECS[kind]((50,) if batched else ()), anneal_steps=10, randomize=False)
    explored = run(module, rows(action, 50))
    assert spec.is_in(explored)
    assert explored.dtype == action.dtype
    assert not torch.equal(explored, action)


@pytest.mark.parametrize("kind", SPECS)
def test_zero_epsilon_changes_no_bit(kind):
    spec = SPECS[kind]((50,))
    module = BilevelEpsilon(spec, anneal_steps=1, start=(0, 0), end=(0, 0))
    action = spec.rand()
    assert torch.equal(run(module, rows(action, 50)), action)


def test_full_epsilon_is_uniform_over_one_hots():
    spec = OneHot(4, shape=(ROWS, 4))
    explored = run(fixed(spec, 1.0), rows(torch.eye(4, dtype=torch.bool)[[0] * ROWS]))
    for column in explored.unbind(-1):
        assert_probability(column, 0.25)


def test_masked_actions_are_never_explored_and_the_allowed_ones_evenly():
    mask = torch.tensor([False, True, True, False]).expand(ROWS, 4)
    td = rows(torch.full((ROWS,), 2), action_mask=mask)
    explored = run(fixed(Categorical(4), 0.4), td)
    assert set(explored.tolist()) == {1, 2}
    assert_probability(explored == 1, 0.2)
    blind = run(fixed(Categorical(4), 0.4), td.exclude("action_mask"))
    assert set(blind.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["multi_categorical", "multi_one_hot"])
def test_several_choices_are_replaced_together(kind):
    spec = SPECS[kind]((ROWS,))
    start = torch.zeros(ROWS, 2, dtype=torch.int64)
    one_hot = torch.zeros(ROWS, 7, dtype=torch.bool)
    one_hot[:, [0, 3]] = True
    explored = run(fixed(spec, 0.3), rows(one_hot if kind == "multi_one_hot" else start))
    if kind == "multi_one_hot":
        explored = torch.stack(
            [explored[:, :3].int().argmax(-1), explored[:, 3:].int().argmax(-1)], -1
        )
    changed = explored != 0
    assert_probability(changed.all(-1), 0.3 * (2 / 3) * (3 / 4))
    assert_probability(changed[:, 0], 0.3 * 2 / 3)


def test_bits_are_replaced_one_by_one():
    explored = run(
        fixed(SPECS["binary"]((ROWS,)), 0.6), rows(torch.zeros(ROWS, 3, dtype=torch.int8))
    )
    for bit in explored.unbind(-1):
        assert_probability(bit, 0.3)
    assert_probability(explored.all(-1), 0.3**3)  # replaced together it would be 0.6 / 8


@pytest.mark.parametrize("kind", ["bilevel", "gaussian"])
def test_box_noise_is_normal_in_half_ranges_and_clipped(kind):
    spec = Bounded(torch.tensor([-1.0, 10.0]), torch.tensor([1.0, 30.0]), (2,))
    if kind == "bilevel":
        module = BilevelEpsilon(
            spec, anneal_steps=1, start=(0.2, 0.2), end=(0.2, 0.2), randomize=False
        )
    else:
        module = GaussianNoise(spec, anneal_steps=1, start=0.2, end=0.2)
    action = torch.tensor([0.0, 20.0]).repeat(ROWS, 1)
    noise = (run(module, rows(action)) - action) / torch.tensor([1.0, 10.0]) / 0.2
    # standard error of a standard deviation is 1 / sqrt(2 n); five of them
    assert noise.std(0).tolist() == pytest.approx([1.0, 1.0], abs=5 / math.sqrt(2 * ROWS))
    assert_probability(noise[:, 0] > 1.0, 0.158655)
    edge = run(module, rows(torch.tensor([1.0, 10.0]).repeat(ROWS, 1)))
    assert edge[:, 0].max() == 1.0
    assert edge[:, 1].min() == 10.0
    assert_probability(edge[:, 0] == 1.0, 0.5)


@pytest.mark.parametrize(
    "mode", [ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN]
)
def test_nothing_happens_unless_exploration_is_random(mode):
    module = fixed(Categorical(4), 1.0)
    td = rows(torch.full((50,), 2), 50)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with set_exploration_type(mode):
        assert torch.equal(module(td.clone())["action"], td["action"])
    assert torch.equal(torch.get_rng_state(), state)
    with set_exploration_type(ExplorationType.RANDOM):
        assert not torch.equal(module(td.clone())["action"], td["action"])


def bilevel() -> BilevelEpsilon:
    return BilevelEpsilon(Categorical(4), anneal_steps=100, start=(1, 1), end=(1, 1))


def test_the_random_factor_is_uniform_and_redrawn_only_where_a_rollout_starts():
    module = bilevel()
    torch.manual_seed(0)
    td = rows(torch.zeros(ROWS, dtype=torch.int64))
    first = module.epsilon(td)
    for threshold in (0.1, 0.5, 0.9):
        assert_probability(first < threshold, threshold)
    td["is_init"] = torch.zeros(ROWS, 1, dtype=torch.bool)
    td["is_init"][::3] = True
    second = module.epsilon(td)
    starts = td["is_init"].squeeze(-1)
    assert torch.equal(second[~starts], first[~starts])
    assert bool((second[starts] != first[starts]).all())


def test_the_random_factor_is_drawn_anew_when_the_number_of_rows_changes():
    module = bilevel()
    go_on = torch.zeros(5, 1, dtype=torch.bool)
    module.epsilon(rows(torch.zeros(8, dtype=torch.int64), 8))
    epsilon = module.epsilon(rows(torch.zeros(5, dtype=torch.int64), 5).set("is_init", go_on))
    assert epsilon.shape == (5,)
    assert epsilon.unique().numel() == 5


def test_a_restored_module_goes_on_exactly_in_mid_rollout():
    module = bilevel()
    module.step(30)
    td = rows(torch.zeros(50, dtype=torch.int64), 50)
    run(module, td)
    td["is_init"] = torch.zeros(50, 1, dtype=torch.bool)
    state = copy.deepcopy(module.state_dict())
    expected = run(module, td, seed=1)

    restored = bilevel()
    restored.load_state_dict(state)
    assert int(restored.num_env_steps) == 30
    assert torch.equal(run(restored, td, seed=1), expected)
    forgetful = bilevel()
    forgetful.num_env_steps.copy_(module.num_env_steps)
    assert not torch.equal(run(forgetful, td, seed=1), expected)


def test_the_state_survives_a_file_and_a_state_from_before_the_first_step_loads(tmp_path):
    module = bilevel()
    fresh = module.state_dict()
    module.epsilon(rows(torch.zeros(5, dtype=torch.int64), 5))
    torch.save(module.state_dict(), tmp_path / "state.pt")
    restored = bilevel()
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(
        restored.get_extra_state()["multiplier"], module.get_extra_state()["multiplier"]
    )
    restored.load_state_dict(fresh)
    assert restored.get_extra_state() == {}


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_copies_keep_the_schedule_and_drop_the_rollouts(duplicate):
    module = bilevel()
    module.step(7)
    module.epsilon(rows(torch.zeros(5, dtype=torch.int64), 5))
    other = duplicate(module)
    assert int(other.num_env_steps) == 7
    assert other.get_extra_state() == {}
    assert module.get_extra_state() != {}


def test_weights_of_a_policy_with_exploration_can_be_pushed():
    policy = TensorDictSequential(TensorDictModule(torch.nn.Linear(2, 2), ["x"], ["y"]), bilevel())
    actor = copy.deepcopy(policy)
    policy[1].step(5)
    TensorDict.from_module(actor).data.update_(TensorDict.from_module(policy).data)
    assert int(actor[1].num_env_steps) == 5


def test_disabled_exploration_inside_a_policy_does_nothing():
    policy = TensorDictSequential(
        TensorDictModule(torch.nn.Identity(), ["action"], ["action"]), fixed(Categorical(4), 1.0)
    )
    td = rows(torch.full((50,), 2), 50)
    assert not torch.equal(run(policy, td), td["action"])
    disable_exploration(policy)
    assert torch.equal(run(policy, td), td["action"])


def test_an_action_space_serves_as_well_as_a_spec():
    td = rows(torch.full((50,), 2), 50)
    assert torch.equal(
        run(fixed(ActionSpace(Categorical(4)), 0.5), td), run(fixed(Categorical(4), 0.5), td)
    )


def test_the_key_of_the_action_is_free():
    module = BilevelEpsilon(Categorical(4), anneal_steps=1, action_key=("agent", "action"))
    td = TensorDict(
        {
            "agent": {"action": torch.zeros(9, dtype=torch.int64)},
            "is_init": torch.ones(9, 1).bool(),
        },
        batch_size=9,
    )
    assert module(td)["agent", "action"].shape == (9,)
    assert module.in_keys == [("agent", "action"), "is_init"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: BilevelEpsilon(Categorical(4), anneal_steps=0),
            "BilevelEpsilon: anneal_steps must be at least 1, got 0",
        ),
        (
            lambda: BilevelEpsilon(Categorical(4), anneal_steps=1, start=(1.5, 0.0)),
            r"BilevelEpsilon: start must be two numbers in \[0, 1\], got \(1.5, 0.0\)",
        ),
        (
            lambda: EpsilonGreedy(Categorical(4), anneal_steps=1, end=-0.1),
            r"EpsilonGreedy: end must be in \[0, 1\], got -0.1",
        ),
        (
            lambda: GaussianNoise(Bounded(-1, 1, (2,)), anneal_steps=1, start=-1.0),
            r"GaussianNoise: start must be in \[0, inf\], got -1.0",
        ),
        (lambda: bilevel().step(-1), "BilevelEpsilon: num_env_steps must be at least 0, got -1"),
        (
            lambda: bilevel()(rows(torch.zeros(5, dtype=torch.int64), 5).exclude("is_init")),
            r"BilevelEpsilon: tensordict must hold 'is_init', got \['action'\]",
        ),
        (
            lambda: bilevel()(rows(torch.zeros(5, dtype=torch.int64), 5).exclude("action")),
            r"BilevelEpsilon: tensordict must hold 'action', got \['is_init'\]",
        ),
        (
            lambda: fixed(Bounded(-1, 1, (2,)), 0.5),
            "EpsilonGreedy: action_space must be of kind index or indices or one_hot or "
            "bits, got 'box'",
        ),
        (
            lambda: GaussianNoise(Categorical(4), anneal_steps=1),
            "GaussianNoise: action_space must be of kind box, got 'index'; .*GaussianNoise "
            "for boxes",
        ),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_schedule_of_many_millions_of_steps_is_exact():
    """Adding up small decrements, as TorchRL does, would leave epsilon at its start: each is lost
    in rounding.
    """
    noise = EpsilonGreedy(Categorical(4), anneal_steps=32_000_000)
    assert torch.tensor(1.0) - 0.95 / 32_000_000 == 1.0
    for _ in range(8_000):
        noise.step(2_000)
    assert float(noise.epsilon(rows(torch.zeros(3, dtype=torch.int64), 3))) == pytest.approx(0.525)


def test_the_share_of_a_budget_drives_the_schedule_and_never_back():
    noise = EpsilonGreedy(Categorical(4), anneal=0.5, start=1.0, end=0.0)
    strength = lambda: float(noise.anneal(noise.start, noise.end))  # noqa: E731
    assert strength() == 1.0
    noise.step(10**9)  # steps count only with anneal_steps
    assert strength() == 1.0
    noise.set_spent(0.25)
    assert strength() == 0.5
    noise.set_spent(0.125)  # of a budget that was raised
    assert strength() == 0.5
    noise.set_spent(0.75)
    assert strength() == 0.0
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\]"):
        noise.set_spent(1.5)


def test_steps_take_precedence_over_the_share():
    noise = EpsilonGreedy(Categorical(4), anneal=0.5, anneal_steps=100, start=1.0, end=0.0)
    noise.set_spent(1.0)
    assert float(noise.anneal(1.0, 0.0)) == 1.0
    noise.step(50)
    assert float(noise.anneal(1.0, 0.0)) == 0.5


def test_the_spent_share_is_part_of_the_state_and_older_states_have_none():
    noise = EpsilonGreedy(Categorical(4))
    noise.set_spent(0.125)
    state = noise.state_dict()
    other = EpsilonGreedy(Categorical(4))
    other.load_state_dict(state)
    assert float(other.anneal(1.0, 0.0)) == 0.5
    older = {name: value for name, value in state.items() if name != "spent"}
    other = EpsilonGreedy(Categorical(4), anneal_steps=100)
    other.load_state_dict(older)
    assert float(other.anneal(1.0, 0.0)) == 1.0


def test_a_class_that_knows_steps_alone_still_works():
    class Former(Exploration):
        def __init__(self, action_space, *, anneal_steps):
            super().__init__(action_space, anneal_steps=anneal_steps)

        def epsilon(self, tensordict):
            return self.anneal(1.0, 0.0)

    noise = Former(Categorical(4), anneal_steps=100)
    noise.set_spent(1.0)
    noise.step(25)
    assert float(noise.anneal(1.0, 0.0)) == 0.75
