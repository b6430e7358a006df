import copy
import math

import pytest
import torch
from torch import nn
from torchrl.data import Bounded, Categorical, MultiCategorical
from yamame.actions import ActionSpace
from yamame.heads import ActionInputCritic, StateActionCritic, make_critic

GAMMAS = [0.1, 0.9, 0.999]
D, H, C, A, G, O = 6, 8, 4, 2, 3, 5  # noqa: E741


def state_action(num_layers=2):
    return StateActionCritic(
        D,
        num_actions=A,
        num_gammas=G,
        num_critics=C,
        num_outputs=O,
        hidden_size=H,
        num_layers=num_layers,
    )


def action_input(num_layers=2, gammas=GAMMAS):
    return ActionInputCritic(
        D,
        action_size=A,
        gammas=gammas,
        num_critics=C,
        num_outputs=O,
        hidden_size=H,
        num_layers=num_layers,
    )


def members(critic):
    """Return the critics of an ensemble as separate perceptrons with copied weights."""
    layers = critic.ensemble.layers[::2]
    stacks = []
    for member in range(C):
        stack = []
        for layer in layers:
            linear = nn.Linear(layer.weight.shape[2], layer.weight.shape[1])
            linear.weight.data.copy_(layer.weight[member])
            linear.bias.data.copy_(layer.bias[member])
            stack += [linear, nn.LeakyReLU()]
        stacks.append(nn.Sequential(*stack[:-1]))
    return stacks


def naive_state_action(stacks, context):
    return torch.stack([stack(context).unflatten(-1, (A, G, O)) for stack in stacks], -4)


def naive_action_input(stacks, context, action):
    feature = torch.tensor([math.log(1 / (1 - gamma) + 1) for gamma in GAMMAS]).unsqueeze(-1)
    batch = action.shape[:-1]
    inputs = (
        context.unsqueeze(-2).expand(*batch, D),
        feature.expand(*batch, 1),
        action.clamp(-0.999, 0.999),
    )
    return torch.stack([stack(torch.cat(inputs, -1)) for stack in stacks], -3)


def assert_same_gradients(critic, stacks, ours, theirs, *inputs):
    """Check equal values, and equal gradients of inputs through a random functional."""
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape)
    for mine, other in zip(
        torch.autograd.grad((ours * weight).sum(), inputs, retain_graph=True),
        torch.autograd.grad((theirs * weight).sum(), inputs, retain_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
        assert mine.abs().sum() > 0
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    layers = critic.ensemble.layers[::2]
    for member, stack in enumerate(stacks):
        for layer, linear in zip(layers, stack[::2], strict=True):
            torch.testing.assert_close(layer.weight.grad[member], linear.weight.grad)
            torch.testing.assert_close(layer.bias.grad[member], linear.bias.grad)


batches = pytest.mark.parametrize("batch", [(), (5,), (3, 5), (0,)])


@batches
def test_state_action_critics_give_critics_actions_gammas_outputs(batch):
    assert state_action()(torch.randn(*batch, D)).shape == (*batch, C, A, G, O)


@batches
def test_action_input_critics_give_critics_gammas_outputs(batch):
    output = action_input()(torch.randn(*batch, D), torch.randn(*batch, G, A))
    assert output.shape == (*batch, C, G, O)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_state_action_ensemble_equals_separate_perceptrons(num_layers):
    critic, context = state_action(num_layers), torch.randn(3, 5, D, requires_grad=True)
    stacks = members(critic)
    assert_same_gradients(
        critic, stacks, critic(context), naive_state_action(stacks, context), context
    )


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_action_input_ensemble_equals_separate_perceptrons_on_the_concatenation(num_layers):
    critic, context = action_input(num_layers), torch.randn(3, 5, D, requires_grad=True)
    action = (torch.rand(3, 5, G, A) * 1.8 - 0.9).requires_grad_()
    stacks = members(critic)
    expected = naive_action_input(stacks, context, action)
    assert_same_gradients(critic, stacks, critic(context, action), expected, context, action)


def test_several_actions_share_one_context():
    critic, context, action = action_input(), torch.randn(3, 5, D), torch.rand(7, 3, 5, G, A)
    together = critic(context, action)
    assert together.shape == (7, 3, 5, C, G, O)
    for sample in range(7):
        torch.testing.assert_close(together[sample], critic(context, action[sample]))


def test_the_context_is_multiplied_once_for_all_discounts_and_samples():
    from torch.utils.flop_counter import FlopCounterMode

    def operations(critic, num_samples):
        action = torch.rand(num_samples, 50, G, A)
        with FlopCounterMode(display=False) as counted:
            critic(torch.randn(50, D), action)
        return counted.get_total_flops()

    rows = 50 * G
    of_context = 2 * 50 * C * D * H
    of_action = 2 * rows * C * ((1 + A) * H + H * O)
    assert operations(action_input(num_layers=1), 1) == of_context + of_action
    assert operations(action_input(num_layers=1), 7) == of_context + 7 * of_action


def test_a_concatenated_input_takes_a_product_of_the_context_in_every_row():
    """The control of the test above."""
    from torch.utils.flop_counter import FlopCounterMode

    critic = action_input(num_layers=1)
    with FlopCounterMode(display=False) as counted:
        critic.ensemble(torch.rand(50, G, D + 1 + A))
    assert counted.get_total_flops() == 2 * 50 * G * C * ((D + 1 + A) * H + H * O)


def test_actions_are_clipped_in_value_but_not_in_gradient():
    critic, context = action_input(), torch.randn(5, D)
    at_one = torch.ones(5, G, A, requires_grad=True)
    inside = torch.full((5, G, A), 0.999, requires_grad=True)
    torch.testing.assert_close(critic(context, at_one), critic(context, inside))
    assert not torch.allclose(critic(context, torch.full((5, G, A), 0.9)), critic(context, inside))
    (of_one,) = torch.autograd.grad(critic(context, at_one).sum(), at_one)
    (of_inside,) = torch.autograd.grad(critic(context, inside).sum(), inside)
    torch.testing.assert_close(of_one, of_inside)
    assert of_one.abs().min() > 0


def test_inputs_are_left_as_they_are():
    context, action = torch.randn(5, D), torch.ones(5, G, A)
    copies = context.clone(), action.clone()
    state_action()(context)
    action_input()(context, action)
    assert torch.equal(context, copies[0])
    assert torch.equal(action, copies[1])


def test_a_state_action_value_does_not_depend_on_the_other_gammas():
    critic, context, order = state_action(), torch.randn(5, D), [1, 0, 2]
    before = critic(context)
    with torch.no_grad():
        for parameter in critic.ensemble.layers[-1].parameters():
            by_gamma = parameter.unflatten(1, (A, G, O))
            by_gamma.copy_(by_gamma[:, :, order].clone())
    after = critic(context)
    torch.testing.assert_close(after[..., 2, :], before[..., 2, :])
    torch.testing.assert_close(after, before[..., order, :])
    assert not torch.allclose(after[..., 0, :], before[..., 0, :])


def test_an_action_value_does_not_depend_on_the_other_gammas():
    order = [1, 0, 2]
    critic, permuted = action_input(), action_input(gammas=[GAMMAS[index] for index in order])
    permuted.load_state_dict(critic.state_dict())
    context, action = torch.randn(5, D), torch.rand(5, G, A)
    torch.testing.assert_close(
        permuted(context, action[:, order]), critic(context, action)[..., order, :]
    )
    assert not torch.allclose(
        permuted(context, action)[..., 0, :], critic(context, action)[..., 0, :]
    )


def test_members_start_apart_and_on_the_scale_of_linear_layers():
    critic = StateActionCritic(64, num_actions=10, num_gammas=10, num_critics=3, hidden_size=100)
    for layer in critic.ensemble.layers[::2]:
        torch.manual_seed(0)
        linear = nn.Linear(layer.weight.shape[2], layer.weight.shape[1])
        bound = 1 / math.sqrt(linear.in_features)
        for ours, theirs in ((layer.weight, linear.weight), (layer.bias, linear.bias)):
            for member in ours:
                assert member.abs().max() <= bound
                # A uniform sample of n has a standard deviation within a few 1 / sqrt(n) of its
                # own.
                rel = 4 / math.sqrt(member.numel())
                assert member.std().item() == pytest.approx(theirs.std().item(), rel=rel)
            assert not torch.equal(ours[0], ours[1])
            assert torch.corrcoef(ours.flatten(1)).triu(1).abs().max() < 5 / math.sqrt(
                ours[0].numel()
            )


def test_autocast_changes_precision_only_and_not_that_of_the_last_layer():
    context, action = torch.randn(5, D), torch.rand(5, G, A)
    for critic, inputs in ((state_action(), (context,)), (action_input(), (context, action))):
        with torch.autocast("cpu", torch.bfloat16):
            half = critic(*inputs)
        # bfloat16 keeps 8 bits; values here are of order 1.
        torch.testing.assert_close(half, critic(*inputs), rtol=0, atol=0.05)
        assert not torch.equal(half, half.bfloat16().float())
        assert not torch.equal(half, critic(*inputs))


def test_the_critic_is_chosen_by_whether_actions_can_be_enumerated():
    sizes = {
        "gammas": GAMMAS,
        "num_critics": C,
        "num_outputs": O,
        "hidden_size": H,
        "num_layers": 1,
    }
    context = torch.randn(5, D)
    discrete = make_critic(D, action_space=ActionSpace(Categorical(7)), **sizes)
    assert isinstance(discrete, StateActionCritic)
    assert discrete(context).shape == (5, C, 7, G, O)
    for space in (
        ActionSpace(MultiCategorical([2, 3])),
        ActionSpace(Bounded(-torch.ones(2), torch.ones(2))),
    ):
        critic = make_critic(D, action_space=space, **sizes)
        assert isinstance(critic, ActionInputCritic)
        assert critic(context, torch.zeros(5, G, space.encoded_size)).shape == (5, C, G, O)
        assert critic.ensemble.layers[0].weight.shape == (C, H, D + 1 + space.encoded_size)


def test_a_copy_values_alike_until_one_of_the_two_moves():
    context, action = torch.randn(5, D), torch.rand(5, G, A)
    for critic, inputs in ((state_action(), (context,)), (action_input(), (context, action))):
        target = copy.deepcopy(critic)
        before = critic(*inputs)
        assert torch.equal(target(*inputs), before)
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.add_(0.1)
        assert torch.equal(target(*inputs), before)
        assert not torch.allclose(critic(*inputs), before)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: StateActionCritic(0, num_actions=2, num_gammas=1),
            "in_features must be at least 1, got 0",
        ),
        (
            lambda: StateActionCritic(2, num_actions=2, num_gammas=0),
            "StateActionCritic: num_gammas must be at least 1, got 0",
        ),
        (
            lambda: StateActionCritic(2, num_actions=2, num_gammas=1, num_layers=0),
            "num_layers must be .*, got 0",
        ),
        (
            lambda: ActionInputCritic(2, action_size=2, gammas=[0.9], num_critics=-1),
            "ActionInputCritic: num_critics must be at least 1, got -1",
        ),
        (
            lambda: ActionInputCritic(2, action_size=0, gammas=[0.9]),
            "ActionInputCritic: action_size must be at least 1, got 0",
        ),
        (
            lambda: ActionInputCritic(2, action_size=2, gammas=[0.9, 1.0]),
            r"ActionInputCritic: gammas must be in \[0, 1\), at least one, got \[0\.9, 1\.0\]",
        ),
        (lambda: ActionInputCritic(2, action_size=2, gammas=[]), r"gammas must be .* got \[\]"),
        (
            lambda: StateActionCritic(2, num_actions=2, num_gammas=1, num_critics=0),
            "StateActionCritic: num_critics must be at least 1, got 0",
        ),
        (
            lambda: make_critic(
                2, action_space=ActionSpace(Categorical(2)), gammas=[0.9], num_critics=-1
            ),
            "make_critic: num_critics must be at least 0, got -1",
        ),
    ],
)
def test_impossible_sizes_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_context_of_another_size_is_refused():
    for size in (D - 1, D + 1):
        context = torch.zeros(3, size)
        with pytest.raises(ValueError, match=f"end in {D}, the in_features .*got .3, {size}."):
            state_action()(context)
        with pytest.raises(ValueError, match=f"end in {D}, the in_features .*got .3, {size}."):
            action_input()(context, torch.zeros(3, G, A))
