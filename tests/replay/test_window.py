"""Windows: every start as often as it should be, and all entries still aligned."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs.transforms import Compose
from yamame.replay import Window
from yamame.replay.window import draw_windows


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


@pytest.mark.parametrize("padding", ["none", "left", "right", "both"])
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


@pytest.mark.parametrize("lengths", [(14, 3, 9, 6, 2), (3, 9, 6, 2, 14)])
@pytest.mark.parametrize("padding", ["none", "left", "right", "both"])
def test_all_entries_of_a_window_are_rows_of_one_trajectory(padding, lengths):
    whole = batch(*lengths)
    window = Window(5, padding=padding, generator=torch.Generator().manual_seed(0))
    different = set()
    for _ in range(50):
        out = window(whole)
        for b in range(5):
            count = int(out["mask"][b].sum())
            begin = int(
                whole["observation", "id"][b].tolist().index(int(out["observation", "id"][b, 0]))
            )
            expected = naive(whole[b], begin, begin + count)
            assert (out[b, :count] == expected).all()
            assert not (out[b, count:] != 0).any()
            different.add((b, begin, count))
        assert out.shape[1] == max(int(m.sum()) for m in out["mask"])
    assert len(different) > 10


@pytest.mark.parametrize("padding", ["none", "left", "right", "both"])
def test_a_window_is_where_it_was_drawn_also_at_the_end_of_the_batch(padding):
    whole = batch(9, 2, 6, 14)
    for seed in range(40):
        one, two = (torch.Generator().manual_seed(seed) for _ in range(2))
        begin, end = draw_windows(whole["mask"].sum((1, 2)) - 1, 5, padding, one)
        out = Window(5, padding=padding, generator=two)(whole)
        for b, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
            assert (out[b, : last - first] == naive(whole[b], first, last)).all()
            assert not (out[b, last - first :] != 0).any()


def test_the_alignment_check_notices_one_shifted_entry():
    whole = batch(14)
    out = Window(5)(whole)
    begin = int(out["step_index"][0, 0]) - 101
    out["is_init"] = out["is_init"].roll(1, 1).logical_not()
    assert not (out[0] == naive(whole[0], begin, begin + 6)).all()


def test_a_window_that_begins_within_a_rollout_is_no_reset_and_keeps_its_step_index():
    whole = batch(14)
    for seed in range(30):
        out = Window(5, generator=torch.Generator().manual_seed(seed))(whole)
        begin = int(out["step_index"][0, 0]) - 101
        assert out["is_init"][0, :, 0].tolist() == [begin == 0] + [False] * 5
        assert out["step_index"][0, :, 0].tolist() == list(range(101 + begin, 107 + begin))


def test_what_fits_stays_as_it_is_and_what_is_given_is_never_changed():
    whole = batch(6, 4)
    before = whole.clone()
    same = Window(5)(whole)
    assert (same == before).all()
    same["extra"] = same["mask"]
    cut = Window(2)(whole)
    assert cut.shape == (2, 3)
    cut.zero_()
    assert (whole == before).all()
    assert "extra" not in whole


def test_it_is_an_ordinary_transform_of_any_replay_buffer():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=6, transform=Compose(Window(3)))
    whole = batch(8, 5, 3)
    buffer.extend(whole)
    out = buffer.sample()
    assert out.batch_size == (6, 4)
    row = torch.div(out["step_index"][:, 0, 0], 100, rounding_mode="floor") - 1
    assert out["mask"].sum((1, 2)).tolist() == [[4, 4, 3][int(r)] for r in row]


def test_a_mask_without_a_last_dimension_works():
    whole = batch(9, 7)
    out = Window(4)(whole.set("mask", whole["mask"].squeeze(-1)))
    assert out["mask"].shape == (2, 5)
    assert not out["next", "reward"][:, -1].any()
    assert not out["action"][:, -1].any()


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
