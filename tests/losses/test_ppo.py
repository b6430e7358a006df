"""PPO over sequences: advantages, the first ratio, and independence of padding."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Categorical
from yamame.actions import ActionSpace
from yamame.curriculum import TDErrors, advantages
from yamame.heads import ActorHead, PopArt, make_value_head
from yamame.losses import SequencePPOLoss
from yamame.trajectory import GRUEncoder, TransformerEncoder

NUM_FEATURES, CONTEXT_SIZE = 5, 8


def make_ppo(space, *, encoder="memoryless", seed=0, **settings):
    torch.manual_seed(seed)
    features = TensorDictModule(
        nn.Linear(NUM_FEATURES, CONTEXT_SIZE), ["observation"], ["features"]
    )
    heads = {"hidden_size": 16, "num_layers": 1}
    kinds = {
        "memoryless": lambda: TensorDictModule(nn.Tanh(), ["features"], ["context"]),
        "gru": lambda: GRUEncoder(
            CONTEXT_SIZE, hidden_size=8, num_layers=1, out_features=CONTEXT_SIZE
        ),
        "gru_rounded": lambda: GRUEncoder(
            CONTEXT_SIZE, out_features=CONTEXT_SIZE, memory_resolution=0.25
        ),
        "transformer": lambda: TransformerEncoder(
            CONTEXT_SIZE, d_model=CONTEXT_SIZE, num_heads=2, dropout=0.5, sigma_reparam=True
        ),
    }
    return SequencePPOLoss(
        TensorDictSequential(features, kinds[encoder]()),
        ActorHead(CONTEXT_SIZE, action_space=space, num_gammas=1, **heads),
        make_value_head(CONTEXT_SIZE, action_space=space, gammas=[0.99], **heads),
        PopArt(1),
        action_space=space,
        **settings,
    )


def advantages_by_loop(batch, value, *, gamma, gae_lambda, multiplier=1.0):
    """Return generalised advantage estimates, computed backwards one transition at a time."""
    mask, is_init = batch["mask"].squeeze(-1), batch["is_init"].squeeze(-1)
    reward, terminated, truncated = (
        batch["next", name].squeeze(-1) for name in ("reward", "terminated", "truncated")
    )
    out = torch.zeros(mask.shape)
    for b in range(mask.shape[0]):
        following = 0.0
        for t in reversed(range(mask.shape[1] - 1)):
            if not (mask[b, t] and mask[b, t + 1] and not is_init[b, t + 1]):
                following = 0.0
                continue
            bootstrap = 0.0 if terminated[b, t] else gamma * value[b, t + 1]
            delta = multiplier * reward[b, t] + bootstrap - value[b, t]
            carried = 0.0 if terminated[b, t] or truncated[b, t] else gamma * gae_lambda * following
            following = out[b, t] = delta + carried
    return out


def test_advantages_and_targets_are_those_of_a_plain_loop(make_batch, discrete):
    loss = make_ppo(discrete, gamma=0.9, gae_lambda=0.7, reward_multiplier=3.0)
    batch = make_batch(discrete)
    annotated = loss.annotate(batch)
    value = annotated["state_value"].squeeze(-1)
    expected = advantages_by_loop(batch, value, gamma=0.9, gae_lambda=0.7, multiplier=3.0)
    # The vectorised form adds in another order, with powers of the decay.
    torch.testing.assert_close(annotated["advantage"].squeeze(-1), expected, rtol=1e-4, atol=1e-5)
    target = annotated["value_target"].squeeze(-1)
    torch.testing.assert_close(
        target, torch.where(expected != 0, expected + value, 0.0), rtol=1e-4, atol=1e-5
    )
    other = advantages_by_loop(batch, value, gamma=0.9, gae_lambda=0.9, multiplier=3.0)
    assert (other - expected).abs().max() > 0.01


def test_errors_of_single_steps_sum_up_to_the_advantages(discrete, make_batch):
    loss = make_ppo(discrete, gamma=0.9, gae_lambda=0.7, reward_multiplier=3.0, encoder="gru")
    batch = make_batch(discrete)
    # Errors are carried over neither the start of another episode nor an end.
    batch["is_init"][:, 1:] = False
    for name in ("terminated", "truncated"):
        batch["next", name].zero_()
    errors = loss.td_errors(batch)
    td = TDErrors(errors, batch["mask"].squeeze(-1)[:, 1:], loss.acting_discount)
    expected = loss.annotate(batch)["advantage"].squeeze(-1)[:, :-1]
    torch.testing.assert_close(advantages(td, 0.7), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(advantages(td, 0.9), expected, atol=1e-2)


@pytest.mark.parametrize("encoder", ["gru", "transformer"])
def test_the_ratio_is_one_at_the_first_update_and_no_longer_at_the_second(
    make_batch, space, encoder
):
    loss = make_ppo(space, encoder=encoder)
    batch = loss.train().annotate(make_batch(space))
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    terms = loss(batch)
    # The same pass twice: only where the graph is kept may kernels differ in the last bits.
    assert abs(float(terms["max_ratio"]) - 1) < 1e-5
    sum(value for name, value in terms.items() if name.startswith("loss_")).backward()
    assert all(p.grad is not None for p in loss.parameters())
    optimizer.step()
    assert abs(float(loss(batch)["max_ratio"]) - 1) > 1e-4
    assert abs(float(loss(loss.annotate(batch))["max_ratio"]) - 1) < 1e-5


def test_what_stands_at_padding_changes_nothing(make_batch, space):
    batch = make_batch(space)
    spoilt = batch.clone()
    padding = ~spoilt["mask"].squeeze(-1)
    spoilt["observation"][padding] = 7.0
    spoilt["next", "reward"][padding] = torch.nan
    spoilt["next", "terminated"][padding] = True

    def learn(given):
        loss = make_ppo(space, encoder="gru", value_clip=0.2)
        return loss(loss.annotate(given))

    kept, changed = learn(batch), learn(spoilt)
    assert all(torch.equal(kept[key], changed[key]) for key in kept.keys())
    spoilt["next", "reward"][0, 0] += 1.0
    assert not torch.equal(learn(spoilt)["loss_critic"], kept["loss_critic"])


def test_values_are_in_units_of_returns_and_their_error_in_standard_deviations(
    make_batch, discrete
):
    loss = make_ppo(discrete, normalize_advantage=False)
    batch = make_batch(discrete)
    first, second = loss.annotate(batch)["state_value"], loss.annotate(batch)["state_value"]
    # The statistics moved; PopArt keeps what values mean, up to rounding.
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    annotated = loss.annotate(batch)
    returns = loss.returns
    error = loss(annotated)["loss_critic"]
    valid = annotated["value_target"] != 0
    squared = (annotated["value_target"] - annotated["state_value"])[valid].square().mean()
    # Another order of adding.
    torch.testing.assert_close(
        error, 0.5 * squared / returns.std.square().squeeze(), rtol=1e-4, atol=0.0
    )
    returns.shift.add_(1.0)
    shifted = first + returns.std
    torch.testing.assert_close(loss.annotate(batch)["state_value"], shifted, rtol=1e-5, atol=1e-5)


def test_annotating_and_learning_leave_the_batch_and_the_statistics_alone_and_refreshing_moves_them(
    make_batch, discrete
):
    loss = make_ppo(discrete, encoder="transformer")
    batch = make_batch(discrete)
    before, buffers = batch.clone(), {k: v.clone() for k, v in loss.encoder.named_buffers()}

    def moved():
        return [k for k, v in loss.encoder.named_buffers() if not torch.equal(v, buffers[k])]

    loss(loss.annotate(batch))["loss_objective"].backward()
    assert (batch == before).all()
    assert set(batch.keys()) == set(before.keys())
    assert moved() == []
    assert int(loss.returns.moments.num_updates) == 1  # of returns, which the policy does not read
    loss.refresh(batch)
    assert moved()


@pytest.mark.parametrize("mode", [True, False])
def test_networks_compute_in_evaluation_mode_but_recurrent_layers_as_cudnn_asks_for(
    make_batch, discrete, mode
):
    loss, seen = make_ppo(discrete, encoder="gru").train(mode), []
    for module in (loss.encoder, loss.clipped.actor_network.module[0].module):
        module.register_forward_hook(
            lambda *_: seen.append([m for m in loss.modules() if m.training])
        )
    batch = loss.annotate(make_batch(discrete))
    loss(batch)
    recurrent = [module for module in loss.modules() if isinstance(module, nn.RNNBase)]
    assert len(recurrent) == 1
    assert seen == [recurrent if mode else []] * 4
    assert all(module.training == mode for module in loss.modules())  # as it was set
    loss.refresh(batch)
    assert set(seen[4]) >= set(loss.encoder.modules())  # looks at what it learns by
    assert all(module.training == mode for module in loss.modules())


def test_entries_are_found_and_written_under_other_names(make_batch, discrete):
    batch = make_batch(discrete)
    plain = make_ppo(discrete)
    keys = {
        "action": ("agent", "act"),
        "mask": "real",
        "reward": "r",
        "advantage": ("ppo", "advantage"),
    }
    renamed = batch.copy()
    for name in ("action", "mask"):
        renamed.rename_key_(name, keys[name])
    renamed.rename_key_(("next", "reward"), ("next", "r"))
    loss = make_ppo(discrete)
    loss.set_keys(**keys)
    annotated = loss.annotate(renamed)
    assert ("ppo", "advantage") in annotated.keys(True)
    assert set(loss.in_keys) <= {*annotated.keys(True), "action_mask"}
    expected = plain(plain.annotate(batch))
    assert torch.equal(loss(annotated)["loss_objective"], expected["loss_objective"])
    with pytest.raises(KeyError, match="real"):
        loss(batch)


def test_the_statistics_of_returns_are_held_once(make_batch, discrete):
    loss = make_ppo(discrete)._apply(torch.clone)  # other tensors, as on another device
    loss.annotate(make_batch(discrete))
    held = {
        name: value
        for name, value in loss.state_dict().items()
        if name.endswith("moments.num_updates")
    }
    assert list(held.values()) == [torch.tensor(1)], held.keys()


def test_ratios_begin_at_one_under_autocast_too(make_batch, discrete):
    loss, batch = make_ppo(discrete, encoder="gru"), make_batch(discrete)
    plain = loss.annotate(batch)
    with torch.autocast("cpu", torch.bfloat16):
        annotated = loss.annotate(batch)
        assert abs(float(loss(annotated)["max_ratio"]) - 1) < 1e-5
        assert abs(float(loss(plain)["max_ratio"]) - 1) > 1e-4
    assert all(value.dtype != torch.bfloat16 for value in annotated.values(True, True))


def test_repeated_updates_prefer_what_pays(discrete):
    """Check that the policy finds the only action that is rewarded."""
    torch.manual_seed(0)
    space = ActionSpace(Categorical(4), probability_floor=0.0)
    loss = make_ppo(space, encoder="memoryless")
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    size = (64, 2)
    first = torch.tensor([True, False]).expand(size).unsqueeze(-1)
    actor = loss.clipped.actor_network
    for _ in range(15):
        observation = torch.ones(*size, NUM_FEATURES)
        with torch.no_grad():
            context = loss.encoder(TensorDict({"observation": observation}, size))["context"]
            distribution = actor.get_dist(TensorDict({"context": context.flatten(0, 1)}, [128]))
        action = space.decode(distribution.sample()).view(size)
        reward = (action == 2).float().unsqueeze(-1)
        following = {"reward": reward, "terminated": first, "truncated": torch.zeros_like(first)}
        batch = {"observation": observation, "action": action, "mask": torch.ones_like(first)}
        batch = TensorDict(batch | {"is_init": first, "next": TensorDict(following, size)}, size)
        batch = loss.annotate(batch)
        for _ in range(4):
            terms = loss(batch)
            optimizer.zero_grad()
            sum(value for name, value in terms.items() if name.startswith("loss_")).backward()
            optimizer.step()
    assert float(reward[:, 0].mean()) > 0.8


def test_memory_that_is_rounded_when_acting_is_refused(discrete):
    message = "memory_resolution of the encoder must be None, because PPO .*, got 0.25"
    with pytest.raises(ValueError, match=message):
        make_ppo(discrete, encoder="gru_rounded")


def test_a_batch_without_any_transition_is_refused(make_batch, discrete):
    batch = make_batch(discrete)
    batch["mask"][:] = False
    with pytest.raises(
        ValueError, match=r"SequencePPOLoss: mask must leave a valid transition.*\(6, 9\)"
    ):
        make_ppo(discrete).annotate(batch)


def test_ratios_count_as_clipped_beyond_the_range_that_was_set(make_batch, discrete):
    batch, clipped = make_batch(discrete), {}
    for clip_epsilon in (0.01, 0.99):
        torch.manual_seed(0)
        loss = make_ppo(discrete, clip_epsilon=clip_epsilon)
        annotated = loss.annotate(batch)
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        clipped[clip_epsilon] = float(loss(annotated)["clip_fraction"])
    assert clipped[0.01] > 0.5 > clipped[0.99]
