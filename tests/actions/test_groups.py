import pytest
import torch
from yamame.actions import Groups


@pytest.mark.parametrize("sizes", [[3], [2, 2, 2], [2, 5, 1]])
def test_padding_puts_each_group_on_its_own_row_and_unpadding_undoes_it(sizes):
    groups = Groups(sizes)
    flat = torch.randn(4, 6, sum(sizes))
    padded = groups.pad(flat, fill=-7.0)
    assert padded.shape == (4, 6, len(sizes), max(sizes))
    for row, part in enumerate(flat.split(sizes, -1)):
        assert torch.equal(padded[..., row, : sizes[row]], part)
        assert (padded[..., row, sizes[row] :] == -7.0).all()
        valid = groups.valid.on(flat.device)[row]
        assert valid.tolist() == [column < sizes[row] for column in range(max(sizes))]
    assert torch.equal(groups.unpad(padded), flat)


@pytest.mark.parametrize("sizes", [[], [2, 0]])
def test_empty_groups_are_refused(sizes):
    with pytest.raises(ValueError, match=r"Groups: sizes must be positive .* got \("):
        Groups(sizes)
