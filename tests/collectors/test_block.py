"""Tensors that travel as one."""

import pytest
import torch
from yamame.collectors.block import on_host, packed, unpacked

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.float32,
    torch.int64,
    torch.bfloat16,
    torch.float64,
)


@pytest.mark.parametrize("seed", range(5))
def test_tensors_of_any_dtype_and_shape_come_out_of_the_bytes_as_they_went_in(seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(DTYPES), generator=generator).tolist()
    tensors = {}
    for number, index in enumerate(order):
        shape = torch.randint(0 if number == 3 else 1, 4, (3,), generator=generator).tolist()
        value = (100 * torch.rand(shape, generator=generator)).to(DTYPES[index])
        tensors["next", number] = value.transpose(0, 2) if number % 2 else value
    flat = packed(tensors)
    assert flat.dtype == torch.uint8
    assert len(flat) == sum(value.numel() * value.element_size() for value in tensors.values())
    found = unpacked(flat, tensors)
    assert list(found) == list(tensors)
    for key, value in tensors.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value)
        assert found[key].data_ptr() % value.element_size() == 0
    longer = unpacked(packed({key: value.flip(0) for key, value in tensors.items()}), tensors)
    assert any(not torch.equal(longer[key], value) for key, value in tensors.items())


def test_what_is_on_the_host_is_not_copied():
    tensors = {"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.bool)}
    assert all(on_host(tensors)[key] is value for key, value in tensors.items())
