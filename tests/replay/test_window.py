"""Windows: the distribution of starts, and the alignment of all entries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs.transforms import Compose
from yamame.replay import Window
from yamame.replay.window import draw_windows

PADDINGS = ("none", "left", "right", "both")


def batch(*lengths: int) -> TensorDict:
    """Trajectories of so many timesteps; every entry tells row and timestep, and is never zero."""
    num_steps = max(lengths)
    step = torch.arange(num_steps) + 1
    tag = 100 * (torch.arange(len(lengths))[:, None] + 1) + step
    mask = step <= torch.tensor(lengths)[:, None]
    last = step == torch.tensor(lengths)[:, None]
    seen = torch.where(mask, tag, 0)
    left = torch.where(last, 0, seen)
    return TensorDict(
        {
            "observation": {
                "vector": seen[..., None].float().expand(-1, -1, 3).clone(),
                "id": seen.to(torch.int16),
            },
            "step_index": seen[..., None],
            "is_init": ((step == 1) & mask)[..., None],
            "action": left,
            "next": {"reward": left[..., None].float(), "terminated": (left > 0)[..., None]},
            "mask": mask[..., None],
        },
        batch_size=[len(lengths), num_steps],
    )


def naive(whole: TensorDict, begin: int, end: int) -> TensorDict:
    """Rows begin..end-1 of one trajectory, with no transition out of the last."""
    out = whole[begin:end].clone()
    out["action"][-1] = 0
    out["next", "reward"][-1] = 0
    out["next", "terminated"][-1] = False
    return out


def allowed_starts(padding: str, transitions: int, length: int) -> list[int]:
    if padding == "none":
        return list(range(max(transitions - length, 0) + 1))
    if padding == "left":
        return list(range(1 - length, transitions - length + 1))
    if padding == "right":
        return list(range(max(transitions - 2, 0) + 1))
    return list(range(1 - length, transitions - 2 + 1))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("transitions", "length"), [(12, 5), (5, 5), (3, 5), (12, 1), (2, 1)])
def test_every_allowed_start_is_drawn_for_an_equal_share_of_the_unit_interval(
    padding, transitions, length, monkeypatch
):
    starts = allowed_starts(padding, transitions, length)
    shares = (torch.arange(3 * len(starts), dtype=torch.float64) + 0.5) / (3 * len(starts))
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: shares)
    begin, end = draw_windows(torch.full((len(shares),), transitions), length, padding)
    expected = [(max(s, 0), min(s + length, transitions) + 1) for s in starts for _ in range(3)]
    assert list(zip(begin.tolist(), end.tolist(), strict=True)) == expected
    assert all(2 <= e - b <= length + 1 for b, e in expected)


@given(
    lengths=st.lists(st.integers(2, 14), min_size=1, max_size=5),
    length=st.integers(1, 15),
    padding=st.sampled_from(PADDINGS),
    has_flat_mask=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60, derandomize=True, database=None)
def test_windows_are_those_of_a_loop(lengths, length, padding, has_flat_mask, seed):
    """All entries of a window are rows of one trajectory, which is not changed itself."""
    whole = batch(*lengths)
    given_batch = whole.clone()
    if has_flat_mask:
        given_batch["mask"] = given_batch["mask"].squeeze(-1)
    before = given_batch.clone()
    one, two = (torch.Generator().manual_seed(seed) for _ in range(2))
    begin, end = draw_windows(whole["mask"].sum((1, 2)) - 1, length, padding, one)
    out = Window(length, padding=padding, generator=two)(given_batch)

    assert out.shape == (len(lengths), int((end - begin).max()))
    assert out["mask"].ndim == 3 - has_flat_mask
    out["mask"] = out["mask"].reshape(*out.shape, 1)
    for row, trajectory, first, last in zip(out, whole, begin.tolist(), end.tolist(), strict=True):
        assert (row[: last - first] == naive(trajectory, first, last)).all()
        assert not (row[last - first :] != 0).any()
    if out.shape != whole.shape:
        # A batch that fits is copied with its tensors shared.
        out.zero_()
    out["extra"] = out["mask"]
    assert (given_batch == before).all()
    assert "extra" not in given_batch


def test_the_alignment_check_notices_one_shifted_entry():
    whole = batch(14)
    out = Window(5)(whole)
    begin = int(out["step_index"][0, 0]) - 101
    out["is_init"] = out["is_init"].roll(1, 1).logical_not()
    assert not (out[0] == naive(whole[0], begin, begin + 6)).all()


def test_it_is_an_ordinary_transform_of_any_replay_buffer():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=6, transform=Compose(Window(3)))
    whole = batch(8, 5, 3)
    buffer.extend(whole)
    out = buffer.sample()
    assert out.batch_size == (6, 4)
    row = torch.div(out["step_index"][:, 0, 0], 100, rounding_mode="floor") - 1
    assert out["mask"].sum((1, 2)).tolist() == [[4, 4, 3][int(r)] for r in row]


def test_equal_generators_draw_equal_windows_and_the_global_one_is_the_default():
    whole = batch(30, 25)
    one, two = (
        Window(3, generator=torch.Generator().manual_seed(7))(whole)["step_index"] for _ in range(2)
    )
    assert torch.equal(one, two)
    torch.manual_seed(1)
    one = Window(3)(whole)["step_index"]
    torch.manual_seed(1)
    assert torch.equal(one, Window(3)(whole)["step_index"])


def test_values_that_make_no_sense_are_errors():
    with pytest.raises(ValueError, match="Window: length must be at least 1, got 0"):
        Window(0)
    with pytest.raises(
        ValueError, match=r"Window: padding must be one of .*'both'.*, got 'middle'"
    ):
        Window(3, padding="middle")
    with pytest.raises(ValueError, match=r"Window: the batch must hold 'mask', got \['x'\]"):
        Window(3)(TensorDict({"x": torch.zeros(2, 3)}, batch_size=[2, 3]))
