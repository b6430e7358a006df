"""The numbers of one update, and their dependence on settings."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from yamame.actions import ActionSpace
from yamame.losses import MultiGammaREDQLoss
from yamame.losses.policy_values import PolicyValues

Make = Callable[..., MultiGammaREDQLoss]
MakeBatch = Callable[..., TensorDict]
MULTIPLIER, DECAY, FLOOR = 10.0, 0.1, 0.01


class _NaiveUpdate:
    """Terms of one update of a discrete agent with PopArt, by definition, entry by entry."""

    def __init__(self, loss: MultiGammaREDQLoss, batch: TensorDict) -> None:
        self.loss, self.batch = loss, batch
        self.num_sequences, self.num_rows = batch.shape
        self.gammas = loss.gammas.tolist()
        self.mean, self.second, self.scale, self.shift = (
            [0.0] * 3,
            [100.0] * 3,
            [1.0] * 3,
            [0.0] * 3,
        )
        self.entries = [
            (b, t)
            for b, t in itertools.product(range(self.num_sequences), range(self.num_rows - 1))
            if batch["mask"][b, t] and batch["mask"][b, t + 1] and not batch["is_init"][b, t + 1]
        ]
        self.context = loss.encoder(batch.clone())["context"].detach()

    def std(self, g: int) -> float:
        return (self.second[g] - self.mean[g] ** 2) ** 0.5

    def probs(self, b: int, t: int, *, target: bool) -> list[list[float]]:
        actor = self.loss._targets["actor"] if target else self.loss.actor_network
        logits = actor(self.context[b, t])
        return ((1 - FLOOR) * logits.softmax(-1) + FLOOR / logits.shape[-1]).tolist()

    def log_prob(self, b: int, t: int, action: int, g: int) -> float:
        """Return the log-probability without the floor, as in cloning."""
        logits: Tensor = self.loss.actor_network(self.context[b, t])
        return logits[g].log_softmax(-1)[action].item()

    def raw(self, b: int, t: int, *, target: bool) -> Tensor:
        critic = self.loss._targets["critic"] if target else self.loss.critic_network
        return critic(self.context[b, t])[..., 0]  # [C, A, G]

    def normalized(self, raw: Tensor, c: int, a: int, g: int) -> float:
        return self.scale[g] * raw[c, a, g].item() + self.shift[g]

    def value(self, raw: Tensor, c: int, a: int, g: int) -> float:
        return self.std(g) * self.normalized(raw, c, a, g) + self.mean[g]

    def target(self, b: int, t: int, g: int, n_step: int) -> float:
        total, discount = 0.0, 1.0
        for i in range(t, t + n_step):
            if (b, i) not in self.entries:
                break
            total += discount * MULTIPLIER * self.batch["next", "reward"][b, i].item()
            discount *= self.gammas[g]
            last = i
            if self.batch["next", "terminated"][b, i]:
                return total
        probs, raw = self.probs(b, last + 1, target=True)[g], self.raw(b, last + 1, target=True)
        per_critic = [
            sum(p * self.value(raw, c, a, g) for a, p in enumerate(probs)) for c in range(3)
        ]
        bootstrap = min(per_critic) if self.loss.online_coeff > 0 else sum(per_critic) / 3
        return total + discount * bootstrap

    def move_statistics(self, targets: dict[tuple[int, int, int], float]) -> None:
        rate = DECAY / (1 - (1 - DECAY) ** 2)  # of the first update, whose count is 2
        for g in range(3):
            old_mean, old_std = self.mean[g], self.std(g)
            ys = [y for (_, _, gamma), y in targets.items() if gamma == g]
            self.mean[g] += rate * (sum(ys) / len(ys) - self.mean[g])
            self.second[g] += rate * (sum(y * y for y in ys) / len(ys) - self.second[g])
            self.scale[g] *= old_std / self.std(g)
            self.shift[g] = (old_std * self.shift[g] + old_mean - self.mean[g]) / self.std(g)

    def terms(self, n_step: int) -> dict[str, float]:
        targets = {
            (b, t, g): self.target(b, t, g, n_step) for b, t in self.entries for g in range(3)
        }
        self.move_statistics(targets)
        critic, online, cloning = 0.0, 0.0, 0.0
        kept, values = [0.0] * 3, [0.0] * 3
        for (b, t, g), y in targets.items():
            raw, probs = self.raw(b, t, target=False), self.probs(b, t, target=False)[g]
            taken = int(self.batch["action"][b, t])
            normalized_target = (y - self.mean[g]) / self.std(g)
            critic += (
                sum((self.normalized(raw, c, taken, g) - normalized_target) ** 2 for c in range(3))
                / 3
            )
            online -= min(
                sum(p * self.normalized(raw, c, a, g) for a, p in enumerate(probs))
                for c in range(3)
            )
            expected = [
                sum(p * self.value(raw, c, a, g) for a, p in enumerate(probs)) for c in range(3)
            ]
            advantage = sum(self.value(raw, c, taken, g) - expected[c] for c in range(3)) / 3
            good = advantage > self.loss.filter_threshold
            cloning -= good * self.log_prob(b, t, taken, g)
            kept[g] += good
            values[g] += sum(self.value(raw, c, taken, g) for c in range(3)) / 3
        count = len(targets)
        labels = [f"gamma_{gamma:g}" for gamma in self.gammas]
        return {
            **{f"filter_weight_{label}": 3 * kept[g] / count for g, label in enumerate(labels)},
            **{f"q_value_{label}": 3 * values[g] / count for g, label in enumerate(labels)},
            "loss_critic": self.loss.critic_coeff * critic / count,
            "loss_online": self.loss.online_coeff * online / count,
            "loss_cloning": self.loss.cloning_coeff * cloning / count,
            "filter_weight": 3 * kept[2] / count,
            "target_value": 3 * sum(y for (_, _, g), y in targets.items() if g == 2) / count,
        }


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("online_coeff", [0.0, 2.0])
def test_terms_agree_with_loops_over_every_entry(
    n_step: int, online_coeff: float, discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    loss = make_loss(
        discrete,
        num_target_critics=3,  # all of them: no draw
        reward_multiplier=MULTIPLIER,
        online_coeff=online_coeff,
        cloning_coeff=0.5,
        critic_coeff=3.0,
        filter_threshold=0.3,
        n_step=n_step,
    )
    with torch.no_grad():
        expected = _NaiveUpdate(loss, batch).terms(n_step)
    terms = loss(batch)
    assert 0.1 < expected["filter_weight"] < 0.9  # both sides of the filter are tried
    for name, value in expected.items():
        if name in loss.out_keys:
            assert terms[name].item() == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert ("loss_online" in loss.out_keys) == (online_coeff > 0)


def test_targets_are_drawn_from_the_named_number_of_critics(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)

    def mean_target(num_target_critics: int, seed: int) -> float:
        loss = make_loss(discrete, num_target_critics=num_target_critics).eval()
        torch.manual_seed(seed)
        return loss(batch)["target_value"].item()

    few = [mean_target(2, seed) for seed in range(5)]
    assert len(set(few)) == 5
    assert min(few) > mean_target(3, 0)  # the minimum over more critics is lower
    assert max(few) < mean_target(1, 0)


def test_termination_cuts_the_value_and_truncation_does_not(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(space)
    ends = batch["next", "terminated"].clone()

    def target_value(terminated: Tensor, truncated: Tensor, bonus: float) -> Tensor:
        batch["next", "terminated"], batch["next", "truncated"] = terminated, truncated
        loss = make_loss(space, num_target_critics=3, n_step=1).eval()
        loss.returns.moments.mean.fill_(
            bonus
        )  # every value is higher by this much, with the same spread
        torch.manual_seed(0)
        return loss(batch)["target_value"]

    valid = make_loss(space)._valid_transitions(batch)
    share_going_on = (~ends[:, :-1, 0])[valid].float().mean()
    off = torch.zeros_like(ends)
    for terminated, truncated, share in (
        (ends, off, share_going_on),
        (off, ends, 1.0),
        (~off, off, 0.0),
    ):
        rise = target_value(terminated, truncated, 10.0) - target_value(terminated, truncated, 0.0)
        assert rise.item() == pytest.approx(float(0.97 * 10.0 * share), abs=1e-3)


def test_statistics_move_in_training_mode_alone(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch, loss = make_batch(space), make_loss(space)
    before = {name: buffer.clone() for name, buffer in loss.returns.named_buffers()}
    loss.eval()
    loss(batch)
    for name, buffer in loss.returns.named_buffers():
        assert torch.equal(buffer, before[name])
    loss.train()
    loss(batch)
    for name, buffer in loss.returns.named_buffers():
        assert not torch.equal(buffer, before[name])


@pytest.mark.parametrize(
    ("settings", "discrete_calls", "sampled_calls"),
    [
        # One pass for the targets, one for every term if it values all actions, else one more for
        # the policy.
        ({}, 2, 3),
        ({"online_coeff": 0.0}, 2, 3),
        ({"critic_coeff": 0.0}, 1, 2),
        ({"critic_coeff": 0.0, "online_coeff": 0.0, "cloning_filter": "none"}, 0, 0),
    ],
)
def test_critics_run_no_oftener_than_the_terms_need(
    settings: dict[str, Any],
    discrete_calls: int,
    sampled_calls: int,
    space: ActionSpace,
    make_loss: Make,
    make_batch: MakeBatch,
) -> None:
    loss = make_loss(space, num_action_samples=3, **settings)
    calls: list[nn.Module] = []
    for critic in (loss.critic_network, loss._targets["critic"]):
        critic.register_forward_hook(lambda module, args, output: calls.append(module))
    terms = loss(make_batch(space))
    assert len(calls) == (discrete_calls if space.enumerable else sampled_calls)
    assert set(terms.keys()) == set(loss.out_keys)
    assert ("loss_critic" in loss.out_keys) == (loss.critic_coeff > 0)
    assert ("loss_online" in loss.out_keys) == (loss.online_coeff > 0)


def test_unfiltered_cloning_is_the_mean_log_likelihood(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    settings = {"online_coeff": 0.0, "critic_coeff": 0.0, "cloning_coeff": 1.0}
    batch, loss = make_batch(space), make_loss(space, cloning_filter="none", **settings)
    context = loss._contexts(loss.encoder, batch)[0][:, :-1]
    policy = space.distribution(loss.actor_network(context))
    log_prob = policy.cloning_log_prob(space.encode(batch["action"][:, :-1]).unsqueeze(-2))
    expected = -log_prob[loss._valid_transitions(batch)].mean()
    torch.testing.assert_close(loss(batch)["loss_cloning"], expected)
    filtered = make_loss(space, filter_threshold=1e9, **settings)(batch)
    assert filtered["loss_cloning"] == 0.0
    assert filtered["filter_weight"] == 0.0


def test_the_filter_tells_actions_apart_whose_values_differ_by_what_float32_rounds_away(
    discrete: ActionSpace, make_loss: Make
) -> None:
    loss = make_loss(discrete, filter_threshold=0.0)
    with torch.no_grad():
        loss.returns.moments.mean.fill_(1e6)  # where neighbours in float32 are 0.06 apart
        loss.returns.moments.variance.fill_(1.0)
    raw = torch.tensor([0.50, 0.51, 0.49]).view(
        1, 1, 1, 3, 1, 1
    )  # [B, T, C, A, G, O], of three actions
    policy = PolicyValues(raw, torch.full((1, 1, 1, 3, 1), 1 / 3))
    returns = loss.returns.to_returns(raw).squeeze()
    assert returns.unique().numel() == 1  # nothing is left of the difference in units of returns
    kept = [bool(loss._cloning_weight(raw[:, :, :, action], policy).all()) for action in range(3)]
    assert kept[1:] == [True, False]


def test_exponential_filter_uses_its_temperature(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    weights = [
        make_loss(discrete, cloning_filter="exponential", filter_temperature=temperature)(batch)[
            "filter_weight"
        ]
        for temperature in (1e-3, 1e9)
    ]
    assert weights[0] > 1.5  # about half the weights at their ceiling
    assert weights[1].item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "value", "condition"),
    [
        ("num_target_critics", 0, "be at least 1"),
        ("n_step", 0, "be at least 1"),
        ("num_action_samples", 0, "be at least 1"),
        ("reward_multiplier", 0.0, "be positive"),
        ("filter_temperature", -1.0, "be positive"),
        ("online_coeff", -1.0, "be at least 0"),
        ("cloning_coeff", -0.5, "be at least 0"),
        ("critic_coeff", -2.0, "be at least 0"),
        ("target_tau", 0.0, r"be in \(0, 1\]"),
        ("target_tau", 1.5, r"be in \(0, 1\]"),
        ("cloning_filter", "soft", "be one of"),
        ("discrete_gradient", "score_function", "be one of"),
    ],
)
def test_settings_out_of_range_are_named(
    name: str, value: Any, condition: str, discrete: ActionSpace, make_loss: Make
) -> None:
    with pytest.raises(
        ValueError, match=rf"MultiGammaREDQLoss: {name} must {condition}.*, got {value!r}"
    ):
        make_loss(discrete, **{name: value})


def test_a_loss_without_a_term_is_rejected(discrete: ActionSpace, make_loss: Make) -> None:
    with pytest.raises(ValueError, match=r"critic_coeff must be positive where .*, got 0\.0"):
        make_loss(discrete, online_coeff=0.0, cloning_coeff=0.0, critic_coeff=0.0)


def test_more_target_critics_than_there_are_is_rejected(
    discrete: ActionSpace, make_loss: Make
) -> None:
    with pytest.raises(ValueError, match="num_target_critics must be at most num_critics 3, got 4"):
        make_loss(discrete, num_target_critics=4)
