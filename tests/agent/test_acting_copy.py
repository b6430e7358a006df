"""The copy that acts decides what the policy decides, and follows the weights that are written into it."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame import product
from yamame.agent import InContextPolicy
from yamame.agent.policy import acting_copy
from yamame.trajectory import GRUEncoder, TransformerEncoder
from yamame_envs import MazeRunner

ENCODERS = {
    "transformer": partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1, dropout=0.1),
    "gru": partial(GRUEncoder, max_time_constant=1.0, hidden_size=8, out_features=8),
}


@pytest.fixture
def make_policy(small_agent) -> Callable[..., tuple[InContextPolicy, MazeRunner]]:
    """Makes a policy and an environment of four rows."""

    def make(encoder: str, *, gamma_index: int = -1) -> tuple[InContextPolicy, MazeRunner]:
        env = MazeRunner(num_envs=4, size=7, num_goals=2, seed=3)
        return small_agent(env, ENCODERS[encoder]).policy(gamma_index=gamma_index), env

    return make


@torch.no_grad()
def decide(policy: InContextPolicy, env: MazeRunner, num_steps: int = 30) -> torch.Tensor:
    """Parameters of the decisions along a rollout of fixed actions."""
    policy.trajectory_encoder.reset_memory()
    generator = torch.Generator().manual_seed(0)
    env.set_seed(3)
    current, found = env.reset(), []
    for _ in range(num_steps):
        scratch = current.copy()
        context = policy.trajectory_encoder(policy.timestep_encoder(scratch))["context"]
        found.append(policy._params(context))
        action = torch.randint(5, (env.batch_size[0],), generator=generator)
        _, current = env.step_and_maybe_reset(current.set("action", action))
    return torch.stack(found, 1)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("num_rows", [4, 1000])
def test_the_copy_decides_what_the_policy_decides(make_policy, encoder, num_rows):
    policy, env = make_policy(encoder)
    actor = acting_copy(policy, num_rows=num_rows)
    assert policy.training
    assert not actor.training
    # The same products in another order: equal up to rounding.
    assert torch.allclose(decide(actor, env), decide(copy.deepcopy(policy).eval(), env), atol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("how", ["write", "load"])
def test_written_weights_are_followed_and_stay_where_they_lie(make_policy, encoder, how):
    policy, env = make_policy(encoder)
    actor = acting_copy(policy, num_rows=4)
    old = decide(actor, env)
    layout = [parameter.stride() for parameter in actor.parameters()]
    assert layout != [parameter.stride() for parameter in policy.parameters()]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if how == "write":
        TensorDict.from_module(actor).data.update_(TensorDict.from_module(policy).data)
    else:
        actor.load_state_dict(policy.state_dict())
    actor.prepare()
    assert [parameter.stride() for parameter in actor.parameters()] == layout
    found = decide(actor, env)
    assert torch.allclose(found, decide(copy.deepcopy(policy).eval(), env), atol=1e-5)
    assert not torch.allclose(found, old, atol=1e-3)


def test_many_rows_keep_the_layout_and_the_original_is_never_changed(make_policy):
    policy, _ = make_policy("transformer")
    layout = [parameter.stride() for parameter in policy.parameters()]
    acting_copy(policy, num_rows=4)
    assert [parameter.stride() for parameter in policy.parameters()] == layout
    many = acting_copy(policy, num_rows=1000)
    assert [parameter.stride() for parameter in many.parameters()] == layout
    assert policy.trajectory_encoder._prepared is None
    assert all(parameter.requires_grad for parameter in policy.parameters())


@pytest.mark.parametrize("gamma_index", [0, 1, -1])
def test_only_the_parameters_of_the_acting_gamma_are_computed(make_policy, gamma_index):
    policy, _ = make_policy("gru", gamma_index=gamma_index)
    context = torch.randn(6, 8)
    whole = policy.actor(context)[:, gamma_index]
    assert torch.allclose(policy._params(context), whole, atol=1e-6)
    first = policy.actor.num_gammas + gamma_index if gamma_index < 0 else gamma_index
    with torch.no_grad():
        last = policy.actor.mlp[-1]
        last.weight[: first * 5] = torch.nan
        last.weight[(first + 1) * 5 :] = torch.nan
    assert torch.allclose(policy._params(context), whole, atol=1e-6)


def test_a_copy_of_the_copy_decides_the_same(make_policy):
    policy, env = make_policy("transformer")
    actor = acting_copy(policy, num_rows=4)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert torch.allclose(decide(copy.deepcopy(actor), env), decide(actor, env), atol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_copy_in_bfloat16_gives_actions_nearly_the_same_probabilities(make_policy, encoder):
    policy, env = make_policy(encoder)
    with torch.no_grad():
        for parameter in policy.trajectory_encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        policy.actor.mlp[-1].weight.mul_(20.0)
    actor = acting_copy(policy, num_rows=4, dtype=torch.bfloat16)
    exact = decide(copy.deepcopy(policy).eval(), env).softmax(-1)
    error = (decide(actor, env).softmax(-1) - exact).abs().max()
    # Far from uniform, so that a wrong step would show. Numbers keep 8 bits: the context is off by about a hundredth.
    assert exact.max() > 0.5
    assert 1e-5 < error < 0.03
    assert (exact.roll(1, 1) - exact).abs().max() > 2 * 0.03
    assert all(parameter.dtype == torch.float32 for parameter in actor.parameters())
    actor.prepare()
    assert torch.allclose(decide(actor, env).softmax(-1), exact, atol=1e-5)


@pytest.mark.parametrize(("encoder", "number"), [("transformer", 3 + 4), ("gru", 3 + 2 * 2)])
@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_in_bfloat16_all_products_of_few_rows_are_made_in_c(
    make_policy, encoder, number, compiled, compiler, monkeypatch
):
    if product._compiled() is None:
        pytest.skip("this processor lacks the instruction")
    rows, call = [], product._FewRows.__call__

    def counted(self: product._FewRows, x: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return call(self, x)

    monkeypatch.setattr(product._FewRows, "__call__", counted)
    policy, env = make_policy(encoder)
    decide(acting_copy(policy, num_rows=4, dtype=torch.bfloat16, compiled=compiled), env, num_steps=1)
    assert rows == ([4] * number if compiled else [])


def test_a_precision_is_that_of_timesteps_and_history(make_policy):
    policy, env = make_policy("gru")
    actor = acting_copy(policy, num_rows=4, dtype=torch.bfloat16)
    encoders = actor.timestep_encoder, actor.trajectory_encoder
    assert all(encoder._compute_dtype is torch.bfloat16 for encoder in encoders)
    assert all(encoder._prepared is not None for encoder in encoders)
    scratch = env.reset()
    exact = policy.eval().timestep_encoder(scratch)["features"]
    rounded = actor.timestep_encoder(scratch)["features"]
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.0, atol=0.1)
    actor.prepare()
    # Matrices that lie column by column: a last bit.
    torch.testing.assert_close(actor.timestep_encoder(scratch)["features"], exact, rtol=0.0, atol=1e-5)
