import itertools

import pytest
import torch
from torch.nn import functional as F
from yamame.actions import (
    DiscreteDistribution,
    MultiBinaryDistribution,
    MultiDiscreteDistribution,
)

MASK = torch.tensor([True, False, True, True, True])
NVECS = [[2, 2], [2, 3]]


def discrete(logits, floor=0.0, mask=None):
    return DiscreteDistribution(logits, probability_floor=floor, action_mask=mask)


def multi(nvec):
    return lambda logits, floor=0.0, mask=None: MultiDiscreteDistribution(
        logits, nvec=nvec, probability_floor=floor, action_mask=mask
    )


def bits(logits, floor=0.0, mask=None):
    return MultiBinaryDistribution(logits, probability_floor=floor, action_mask=mask)


def one_hots(nvec):
    choices = [F.one_hot(torch.arange(n), n).float() for n in nvec]
    return torch.stack([torch.cat(parts) for parts in itertools.product(*choices)])


FAMILIES = {
    "discrete": (discrete, one_hots([5])),
    "even": (multi([2, 2]), one_hots([2, 2])),
    "uneven": (multi([2, 3]), one_hots([2, 3])),
    "bits": (bits, torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))),
}
families = pytest.mark.parametrize(("make", "actions"), FAMILIES.values(), ids=FAMILIES)
floors = pytest.mark.parametrize("floor", [0.0, 0.2])


@floors
@families
def test_probabilities_of_all_actions_sum_to_one(make, actions, floor):
    dist = make(torch.randn(3, 1, actions.shape[-1]), floor)
    torch.testing.assert_close(dist.log_prob(actions).exp().sum(-1), torch.ones(3))


@floors
@families
def test_samples_occur_as_often_as_their_probability_says(make, actions, floor):
    torch.manual_seed(0)
    num_draws = 40_000
    logits = torch.randn(actions.shape[-1])
    sample = make(logits.expand(num_draws, -1), floor).sample()
    counts = (sample.unsqueeze(1) == actions).all(-1).sum(0)
    assert counts.sum() == num_draws
    probs = make(logits, floor).log_prob(actions).exp()
    five_sigma = 5 * (num_draws * probs * (1 - probs)).sqrt()
    assert ((counts - num_draws * probs).abs() < five_sigma).all()
    # Control: the reversed probabilities are told apart.
    assert ((counts - num_draws * probs.flip(0)).abs() > five_sigma).any()


@floors
@families
def test_entropy_is_that_of_the_enumerated_distribution(make, actions, floor):
    dist = make(torch.randn(3, 1, actions.shape[-1]), floor)
    log_probs = dist.log_prob(actions)
    torch.testing.assert_close(dist.entropy()[:, 0], -(log_probs.exp() * log_probs).sum(-1))


@floors
@families
def test_straight_through_samples_are_samples_with_the_gradient_of_the_probabilities(
    make, actions, floor
):
    logits = torch.randn(50, actions.shape[-1], requires_grad=True)
    weight = torch.randn(actions.shape[-1])
    torch.manual_seed(1)
    sample = make(logits, floor).sample()
    torch.manual_seed(1)
    dist = make(logits, floor)
    through = dist.rsample()
    assert not sample.requires_grad
    assert torch.equal(through, sample)
    (of_sample,) = torch.autograd.grad((through * weight).sum(), logits, retain_graph=True)
    (of_probs,) = torch.autograd.grad((dist.probs * weight).sum(), logits)
    assert torch.equal(of_sample, of_probs)
    assert of_probs.abs().sum() > 0


@families
def test_the_mode_is_the_most_probable_action(make, actions):
    dist = make(torch.randn(20, 1, actions.shape[-1]), 0.1)
    best = actions[dist.log_prob(actions).argmax(-1)]
    assert torch.equal(dist.mode[:, 0], best)


@families
def test_draws_come_from_the_global_generator(make, actions):
    dist = make(torch.zeros(64, actions.shape[-1]), 0.1)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = dist.sample(), dist.sample()
    torch.set_rng_state(state)
    assert torch.equal(dist.sample(), first)
    assert not torch.equal(first, second)


@families
def test_the_maths_is_done_in_float32(make, actions):
    logits = torch.randn(4, actions.shape[-1]).bfloat16()
    half, full = make(logits, 0.1), make(logits.float(), 0.1)
    assert half.probs.dtype == half.sample().dtype == half.entropy().dtype == torch.float32
    assert torch.equal(half.probs, full.probs)


def test_the_floor_mixes_in_the_uniform_distribution():
    logits = torch.randn(6, 5)
    expected = 0.7 * logits.softmax(-1) + 0.3 / 5
    torch.testing.assert_close(discrete(logits, 0.3).probs, expected)
    assert torch.equal(discrete(logits).probs, logits.softmax(-1))


def test_the_floor_of_a_masked_distribution_is_over_allowed_actions():
    logits = torch.randn(5)
    probs = discrete(logits, 0.2, MASK).probs
    expected = torch.zeros(5)
    expected[MASK] = 0.8 * logits[MASK].softmax(-1) + 0.2 / 4
    torch.testing.assert_close(probs, expected)


def test_a_saturated_policy_keeps_a_gradient_with_and_without_a_floor_but_not_under_clipping():
    logits = torch.tensor([30.0, 0.0, 0.0])
    action = torch.tensor([0.0, 1.0, 0.0])

    def gradient(log_prob_of):
        leaf = logits.clone().requires_grad_()
        return torch.autograd.grad(log_prob_of(leaf), leaf)[0].abs().max().item()

    def clipped(leaf):
        probs = leaf.softmax(-1).clamp(1e-3, 0.99)
        return ((probs / probs.sum().detach()) * action).sum().log()

    assert gradient(lambda leaf: discrete(leaf, 0.01).log_prob(action)) > 0
    assert gradient(lambda leaf: discrete(leaf).log_prob(action)) == pytest.approx(1.0)
    assert gradient(clipped) == 0


@floors
def test_disallowed_actions_have_probability_zero_and_are_never_taken(floor):
    torch.manual_seed(0)
    logits = torch.zeros(20_000, 5)
    logits[:, 1] = 50.0
    dist = discrete(logits, floor, MASK)
    assert (dist.probs[:, 1] == 0).all()
    assert dist.sample()[:, 1].sum() == 0
    assert dist.mode[:, 1].sum() == 0
    assert discrete(logits, floor).sample()[:, 1].sum() > 10_000


@floors
@pytest.mark.parametrize(
    ("make", "mask", "action"),
    [
        (discrete, MASK, [0.0, 1.0, 0.0, 0.0, 0.0]),
        (multi([2, 3]), MASK, [0.0, 1.0, 1.0, 0.0, 0.0]),
        (bits, MASK, [0.0, 1.0, 0.0, 0.0, 0.0]),
    ],
    ids=["discrete", "multi_discrete", "bits"],
)
def test_a_disallowed_action_has_a_finite_log_probability_and_harms_no_gradient(
    make, mask, action, floor
):
    logits = torch.zeros(5, requires_grad=True)
    log_prob = make(logits, floor, mask).log_prob(torch.tensor(action))
    assert -95 < log_prob < -80
    (gradient,) = torch.autograd.grad(log_prob + make(logits, floor, mask).entropy(), logits)
    assert gradient.isfinite().all()
    assert gradient[1] == 0


@floors
def test_masked_choices_are_independent_within_multi_discrete_actions(floor):
    mask = torch.tensor([True, True, True, False, True])
    logits = torch.randn(5)
    probs = multi([2, 3])(logits, floor, mask).probs
    first, second = discrete(logits[:2], floor), discrete(logits[2:], floor, mask[2:])
    torch.testing.assert_close(probs, torch.cat((first.probs, second.probs)))
    assert probs[3] == 0


def test_disallowed_bits_stay_zero_and_leave_the_others_alone():
    logits = torch.full((1000, 3), 4.0)
    mask = torch.tensor([True, False, True])
    masked, free = bits(logits, 0.1, mask), bits(logits, 0.1)
    assert masked.sample()[:, 1].sum() == 0
    assert free.sample()[:, 1].sum() > 0
    assert torch.equal(masked.probs[:, [0, 2]], free.probs[:, [0, 2]])
    assert masked.mode[0].tolist() == [1.0, 0.0, 1.0]


def test_a_mask_that_allows_nothing_names_its_first_row():
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    discrete(torch.zeros(2, 3, 5), 0.1, mask)
    mask[1, 2] = False
    message = r"DiscreteDistribution: row \(1, 2\) of action_mask must allow an action"
    with pytest.raises(ValueError, match=message):
        discrete(torch.zeros(2, 3, 5), 0.1, mask)


@pytest.mark.parametrize("nvec", NVECS)
def test_a_mask_that_leaves_one_choice_empty_names_row_and_choice(nvec):
    mask = torch.ones(3, sum(nvec), dtype=torch.bool)
    mask[2, 2:] = False
    with pytest.raises(ValueError, match=r"MultiDiscreteDistribution: row \(2, 1\) of action_mask"):
        multi(nvec)(torch.zeros(3, sum(nvec)), 0.1, mask)


@pytest.mark.parametrize("nvec", NVECS)
def test_multi_discrete_is_the_product_of_its_choices(nvec):
    logits, actions = torch.randn(7, sum(nvec)), one_hots(nvec)
    index = torch.randint(len(actions), (7,))
    expected = torch.zeros(7)
    for part, chosen in zip(logits.split(nvec, -1), actions[index].split(nvec, -1), strict=True):
        expected += torch.distributions.Categorical(logits=part).log_prob(chosen.argmax(-1))
    torch.testing.assert_close(multi(nvec)(logits).log_prob(actions[index]), expected)


def test_discrete_and_bits_agree_with_torch_distributions():
    logits = torch.randn(9, 4) * 3
    index = torch.randint(4, (9,))
    expected = torch.distributions.Categorical(logits=logits).log_prob(index)
    torch.testing.assert_close(discrete(logits).log_prob(F.one_hot(index, 4).float()), expected)
    coins = torch.randint(2, (9, 4)).float()
    expected = torch.distributions.Bernoulli(logits=logits).log_prob(coins).sum(-1)
    torch.testing.assert_close(bits(logits).log_prob(coins), expected)


@families
def test_what_is_cloned_has_the_log_probability_without_the_floor_and_its_gradient(make, actions):
    logits = (20 * torch.randn(3, actions.shape[-1])).requires_grad_()
    action = actions[torch.randint(len(actions), (3,))]
    floored, plain = make(logits, 0.01), make(logits, 0.0)
    torch.testing.assert_close(floored.cloning_log_prob(action), plain.log_prob(action))
    assert not torch.allclose(floored.log_prob(action), plain.log_prob(action))
    gradients = [
        torch.autograd.grad(log_prob.sum(), logits)[0]
        for log_prob in (floored.cloning_log_prob(action), plain.log_prob(action))
    ]
    torch.testing.assert_close(*gradients)


def test_log_probabilities_far_below_float_range_stay_exact_without_a_floor():
    log_prob = discrete(torch.tensor([200.0, 0.0])).log_prob(torch.tensor([0.0, 1.0]))
    assert log_prob.item() == pytest.approx(-200.0)


@floors
@families
def test_one_action_serves_the_distributions_of_several_policies(make, actions, floor):
    logits = torch.randn(6, 3, actions.shape[-1])
    action = actions[torch.randint(len(actions), (6,))]
    together = make(logits, floor).log_prob(action.unsqueeze(1))
    for policy in range(3):
        torch.testing.assert_close(
            together[:, policy], make(logits[:, policy], floor).log_prob(action)
        )


def test_clipped_probabilities_are_divided_by_their_sum():
    """By hand, and that values within the bounds are only divided; the masked action has none."""
    logits = torch.tensor([20.0, 0.0, 1.0, -1.0])
    policy = DiscreteDistribution(logits, probability_clip=(0.01, 0.9))
    by_hand = torch.tensor([0.9, 0.01, 0.01, 0.01]) / 0.93
    torch.testing.assert_close(policy.probs, by_hand)
    torch.testing.assert_close(policy.log_prob(torch.eye(4)), by_hand.log())
    mild = DiscreteDistribution(logits / 20, probability_clip=(0.0, 1.0))
    torch.testing.assert_close(mild.probs, (logits / 20).softmax(-1))

    allowed = torch.tensor([True, False, True, True])
    masked = DiscreteDistribution(logits, probability_clip=(0.01, 0.9), action_mask=allowed)
    torch.testing.assert_close(masked.probs, torch.tensor([0.9, 0.0, 0.01, 0.01]) / 0.92)


def test_choices_are_clipped_each_on_its_own():
    logits = torch.tensor([9.0, 0.0, 0.0, 9.0, 0.0])
    clip = (0.05, 0.9)
    policy = MultiDiscreteDistribution(logits, nvec=[2, 3], probability_clip=clip)
    parts = [DiscreteDistribution(part, probability_clip=clip) for part in logits.split([2, 3])]
    torch.testing.assert_close(policy.probs, torch.cat([part.probs for part in parts]))
    assert (policy.probs.split([2, 3])[0] < 0.95).all()
