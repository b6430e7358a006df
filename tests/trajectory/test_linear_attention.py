"""Matrix memories over chunks against a plain loop: values, gradients, any length and any decay."""

import pytest
import torch
from torch.nn import functional as F
from yamame.trajectory.linear_attention import Access, attend_sequence, attend_step


def drawn(length, *, delta, dtype=torch.float32, chance=0.1):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, length, 3, size, dtype=dtype) for size in (4, 4, 5))
    log_keep = F.logsigmoid(2 * torch.randn(2, length, 3, dtype=dtype))
    starts = torch.rand(2, length) < chance
    starts[:, 0] = True
    write = torch.rand(2, length, 3, dtype=dtype) if delta else None
    return Access(query, F.normalize(key, dim=-1), value, log_keep, write), starts


def loop(access, starts):
    """The recurrence of the papers, with states as they write them: values by keys."""
    query, key, value, log_keep, write = access
    state = value.new_zeros(2, 3, value.shape[-1], key.shape[-1])
    identity = torch.eye(key.shape[-1], dtype=key.dtype)
    outputs = []
    for t in range(query.shape[1]):
        kept = log_keep[:, t].exp().masked_fill(starts[:, t, None], 0)[..., None, None]
        outer = torch.einsum("bhi,bhj->bhij", value[:, t], key[:, t])
        if write is None:
            state = kept * state + outer
        else:
            beta = write[:, t, :, None, None]
            projection = torch.einsum("bhi,bhj->bhij", key[:, t], key[:, t])
            state = state @ (kept * (identity - beta * projection)) + beta * outer
        outputs.append(torch.einsum("bhij,bhj->bhi", state, query[:, t]))
    return torch.stack(outputs, 1)


both = pytest.mark.parametrize("delta", [False, True], ids=["adds", "replaces"])


@both
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 100])
def test_chunks_and_steps_are_the_formula_at_any_length(delta, length):
    access, starts = drawn(length, delta=delta)
    expected = loop(access, starts)
    assert torch.allclose(attend_sequence(access, starts), expected, atol=1e-5)
    state, outputs = torch.zeros(2, 3, 4, 5), []
    for t in range(length):
        now = Access(*(None if part is None else part[:, t] for part in access))
        state = state.masked_fill(starts[:, t].view(-1, 1, 1, 1), 0)
        output, state = attend_step(now, state)
        outputs.append(output)
    assert torch.allclose(torch.stack(outputs, 1), expected, atol=1e-5)


@both
def test_results_do_not_depend_on_the_size_of_chunks(delta):
    access, starts = drawn(50, delta=delta)
    results = [attend_sequence(access, starts, chunk=chunk) for chunk in (1, 7, 64)]
    assert torch.allclose(results[0], results[1], atol=1e-5)
    assert torch.allclose(results[0], results[2], atol=1e-5)


@both
def test_gradients_agree_with_differences(delta):
    access, starts = drawn(5, delta=delta, dtype=torch.float64, chance=0.3)
    # The first row and head: every element costs a run.
    inputs = [p[:1, :, :1].clone().requires_grad_() for p in access if p is not None]
    assert torch.autograd.gradcheck(
        lambda *parts: attend_sequence(Access(*parts), starts[:1], chunk=3), inputs
    )


@both
def test_a_gate_that_closes_costs_later_timesteps_no_precision(delta):
    access, starts = drawn(64, delta=delta, chance=0.0)
    log_keep = access.log_keep.clone()
    log_keep[:, 40] = -1e4  # a sum of logarithms with this term has no digits left for the others
    access = access._replace(log_keep=log_keep)
    assert torch.allclose(attend_sequence(access, starts), loop(access, starts), atol=1e-5)
    log_keep.requires_grad_()
    attend_sequence(access, starts).sum().backward()
    assert log_keep.grad.isfinite().all()


def test_the_delta_rule_recalls_the_last_value_of_a_key_and_addition_the_sum():
    key = torch.eye(4)[[0, 1, 0, 2]].view(1, 4, 1, 4)
    value = torch.tensor([1.0, 2.0, 5.0, 7.0]).view(1, 4, 1, 1)
    query = torch.eye(4)[[0, 0, 0, 0]].view(1, 4, 1, 4)
    starts = torch.tensor([[True, False, False, False]])
    added = Access(query, key, value, torch.zeros(1, 4, 1))
    replaced = added._replace(write=torch.ones(1, 4, 1))
    assert attend_sequence(added, starts).flatten().tolist() == [1, 1, 6, 6]
    assert attend_sequence(replaced, starts).flatten().tolist() == [1, 1, 5, 5]
