"""What the emulated device must do to stand in for a real one: it refuses, waits, captures and
computes alike.
"""

import copy
import gc
import io
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from yamame.distributed import between_graphs
from yamame.execution.capturing import recording
from yamame.execution.recorded_updates import make_capturable
from yamame.execution.recorder import CudaRecorder
from yamame.training import MuonAdamW, Progress
from yamame.trajectory.attention import segment_offsets

CONJUGATED = {
    "resolved": lambda z: z.conj().resolve_conj(),
    "copied": lambda z: torch.zeros_like(z).copy_(z.conj()),
    "copied to the host": lambda z: z.conj().cpu(),
    "a product": lambda z: z.conj() * z,
    "a product of matrices": lambda z: z.conj() @ z.T,
    "its imaginary part": lambda z: z.conj().imag + 0,
    "a part": lambda z: z.conj()[1:].reshape(3) * 2,
    "of a conjugate": lambda z: z.conj().conj() * 2,
}
REFUSED = {
    "a sum": lambda there, here: there + here,
    "a concatenation": lambda there, here: torch.cat([there, here]),
    "a product of matrices": lambda there, here: there @ here.T,
    "an index on the device for a tensor of the host": lambda there, here: here[there.long()],
    "a result of the other device": lambda there, here: torch.add(there, there, out=here),
    "a layer of the host": lambda there, here: nn.Linear(3, 1)(there),
}
WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).all()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "copy to the host": lambda x: x.cpu(),
    "list": lambda x: x.tolist(),
    "copy to the device": lambda x: x + torch.ones(3).to("cuda"),
    "repeated so many times": lambda x: x.repeat_interleave(x.long()),
    "all at once": lambda x: torch.cuda.synchronize(),
}
DOES_NOT_WAIT = {
    "arithmetic": lambda x: (x * 2).sum(),
    "filled by a mask": lambda x: x.masked_fill_(x > 0, 0.0),
    "set by a mask": lambda x: x.__setitem__(x > 0, 1.0),
    "made there": lambda x: torch.zeros(3, device="cuda"),
    "pinned": lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "a scalar of the host": lambda x: x + torch.tensor(2.0),
    "a random number": lambda x: torch.rand_like(x),
}


@pytest.fixture
def x():
    return torch.arange(1.0, 4.0, device="cuda")


def captured(function):
    """A graph of a function, and what the function returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@pytest.mark.parametrize("mixed", REFUSED.values(), ids=REFUSED)
def test_tensors_of_two_devices_are_refused(mixed):
    there, here = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"same device|indices should be|but got"):
        mixed(there, here)
    if mixed is not REFUSED["a layer of the host"]:
        mixed(here, here.clone())


def test_a_scalar_or_an_index_of_the_host_is_taken(x):
    assert (x + torch.tensor(2.0)).tolist() == [3.0, 4.0, 5.0]
    assert x[torch.tensor([2])].tolist() == [3.0]
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.tensor([2.0])


def test_what_the_device_holds_is_no_array(x):
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        x.numpy()
    assert x.cpu().numpy().tolist() == [1.0, 2.0, 3.0]


def test_there_is_one_device(x):
    assert torch.zeros(1, device="cuda:0").device == x.device
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        x.to("cuda:1")


def test_a_generator_of_the_host_is_refused(x):
    generator = torch.Generator()
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device="cuda", generator=generator)
    torch.randn(3, generator=generator)


@pytest.mark.parametrize("function", WAITS.values(), ids=WAITS)
def test_a_wait_is_counted_with_its_line_and_refused_in_a_capture(function, x, counts):
    with counts() as counted:
        function(x)
    assert sum(counted.waits.values()) == 1
    ((_, place),) = counted.waits
    assert place == f"laws_of_device.py:{function.__code__.co_firstlineno}"
    with pytest.raises(
        RuntimeError, match=r"not permitted when stream is capturing.*laws_of_device\.py"
    ):
        captured(lambda: function(x))
    captured(lambda: x + 1)  # and the next capture is none the worse


@pytest.mark.parametrize("function", DOES_NOT_WAIT.values(), ids=DOES_NOT_WAIT)
def test_what_the_host_need_not_wait_for_is_not_counted(function, x, counts):
    with counts() as counted:
        function(x)
    assert not counted.waits
    captured(lambda: function(x))


def test_copies_and_kernels_are_counted_with_their_lines(x, counts):
    with counts() as counted:
        y = x.view(3, 1).exp().cpu()
        y.exp()
    assert [kind for kind, _ in counted.kernels] == ["aten::exp"]
    assert [kind for kind, _ in counted.copies] == ["device to host"]
    with counts() as counted:
        graph, _ = captured(lambda: x.exp())
        before = counted.copy()
        for _ in range(2):
            graph.replay()
    ((launch, times),) = counted.since(before).kernels.items()
    assert (launch[0], times) == ("graph launch", 2)


def test_a_backward_pass_is_watched_too(x, counts):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            gradient.sum().item()
            return gradient * 2

    x.requires_grad_()
    with counts() as counted:
        Reads.apply(x).sum().backward()
    assert [kind for kind, _ in counted.waits] == ["item"]
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("watched", [False, True])
def test_a_capture_changes_nothing_and_a_replay_repeats_it(watched, x, counts):
    with counts() if watched else nullcontext():
        assert_captured_and_repeated(x)


def assert_captured_and_repeated(x):
    total, drawn = torch.zeros(3, device="cuda"), torch.get_rng_state()

    def add():
        total.add_(x[:2].sum() + torch.rand(3, device="cuda"))
        return total * 10

    graph, result = captured(add)
    assert total.tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(torch.get_rng_state(), drawn)
    x.copy_(torch.tensor([5.0, 6.0, 0.0]))
    expected, sums = torch.zeros(3), []
    for _ in range(2):
        expected += 11.0 + torch.rand(3)
        sums.append(expected * 10)
    torch.set_rng_state(drawn)
    for once in sums:
        graph.replay()
        assert torch.equal(result.cpu(), once)
    assert torch.equal(total.cpu(), expected)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, partial(MuonAdamW, matrix_lr=0.1, smallest=3)])
def test_a_recorded_training_step_is_a_training_step(kind):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1)).to("cuda")
    recorded = copy.deepcopy(plain)
    batch = torch.randn(4, 3, device="cuda")

    def step(model, optimizer):
        optimizer.zero_grad()
        model(batch).pow(2).sum().backward()
        optimizer.step()

    optimizers = {
        model: kind(model.parameters(), lr=0.1, fused=True) for model in (plain, recorded)
    }
    for optimizer in optimizers.values():
        make_capturable(optimizer)
    for model, optimizer in optimizers.items():
        step(model, optimizer)
    graph, _ = captured(lambda: step(recorded, optimizers[recorded]))
    for _ in range(3):
        step(plain, optimizers[plain])
        graph.replay()
    for one, other in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(one, other)
    step(plain, optimizers[plain])
    assert not torch.equal(plain[0].weight, recorded[0].weight)


def test_a_call_of_the_host_divides_a_capture_and_is_made_in_every_replay(x):
    recorder, called = CudaRecorder(torch.device("cuda")), []

    def call(total):
        called.append(total.item())  # which waits, and no capture contains
        total.mul_(100)

    def function():
        total = x.sum()
        between_graphs(lambda: call(total))
        return {"result": total + x}

    with recording():
        run, results = recorder.record(function, reads=[x])
    assert called == []
    for factor in (1, 2):
        x.mul_(factor)
        run()
        assert called[-1] == 6 * factor
        assert results["result"].tolist() == [(600 + n) * factor for n in (1, 2, 3)]
    assert len(called) == 2
    with recording(), pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        recorder.record(lambda: call(x.sum()), reads=[x])
    with recording():
        recorder.record(lambda: {"x": x + 1}, reads=[x])  # the next capture is none the worse


def test_the_garbage_collector_does_not_run_in_a_capture(x):
    enabled = []
    with recording():
        CudaRecorder(x.device).record(
            lambda: enabled.append(gc.isenabled()) or {"x": x + 1}, reads=[x]
        )
    assert enabled == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("spare", [0, 2])
def test_a_recorded_look_for_segments_finds_those_of_another_batch(x, spare):
    starts = torch.zeros(2, 6, dtype=torch.bool, device="cuda")
    starts[:, 0] = starts[1, 4] = True
    graph, offsets = captured(lambda: segment_offsets(starts, 3 + spare))
    starts[1, 4], starts[0, 2] = False, True
    graph.replay()
    assert offsets.tolist() == [0, 2, 6, 12, *[12] * spare]


def networks():
    """Modules that a GPU computes by kernels of its own, with their inputs."""
    attention = nn.functional.scaled_dot_product_attention
    return {
        "attention": (nn.Linear(4, 4), lambda m, x: attention(m(x), x, x, is_causal=True)),
        "gru": (nn.GRU(4, 4, 2, batch_first=True), lambda m, x: m(x)[0]),
        "lstm": (nn.LSTM(4, 4, batch_first=True), lambda m, x: m(x)[0]),
        "gru_cell": (nn.GRUCell(4, 4), lambda m, x: m(x[:, 0])),
        "lstm_cell": (nn.LSTMCell(4, 4), lambda m, x: m(x[:, 0])[0]),
        "convolution": (nn.Conv1d(5, 2, 3), lambda m, x: m(x)),
        "normalisation": (nn.LayerNorm(4), lambda m, x: m(x)),
    }


@pytest.mark.parametrize("name", networks())
def test_networks_and_their_gradients_are_those_of_the_cpu(name):
    torch.manual_seed(0)
    module, function = networks()[name]
    gradients = {}
    x = torch.randn(3, 5, 4)
    for device in ("cpu", "cuda"):
        moved, leaf = (
            copy.deepcopy(module).to(device),
            x.detach().clone().to(device).requires_grad_(),
        )
        function(moved, leaf).square().sum().backward()
        gradients[device] = [p.grad.cpu() for p in (*moved.parameters(), leaf)]
    for one, other in zip(*gradients.values(), strict=True):
        # The kernels may add in another order: some units in the last place of float32, over some
        # hundred terms.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert gradients["cpu"][0].any()


@pytest.mark.parametrize("function", CONJUGATED.values(), ids=CONJUGATED)
def test_conjugates_are_those_of_the_cpu(function):
    torch.manual_seed(0)
    z = torch.randn(2, 3, dtype=torch.complex64)
    assert torch.equal(function(z.to("cuda")).cpu(), function(z))


def test_gradients_of_complex_numbers_are_those_of_the_cpu():
    torch.manual_seed(0)
    gradients = []
    angle, z = torch.randn(3), torch.randn(2, 3, dtype=torch.complex64)
    for device in ("cpu", "cuda"):
        leaf = angle.clone().to(device).requires_grad_()
        turned = z.to(device) * torch.polar(leaf.exp(), leaf)
        torch.view_as_real(turned).pow(3).sum().backward()
        gradients.append(leaf.grad.cpu())
    assert torch.equal(*gradients)


def test_random_numbers_are_those_of_the_cpu():
    torch.manual_seed(3)
    here = torch.randn(4), torch.rand(2).exponential_(), torch.randperm(5)
    torch.manual_seed(3)
    there = (
        torch.randn(4, device="cuda"),
        torch.rand(2, device="cuda").exponential_(),
        torch.randperm(5, device="cuda"),
    )
    assert all(torch.equal(one, other.cpu()) for one, other in zip(here, there, strict=True))
    assert not torch.equal(torch.randn(4, device="cuda").cpu(), here[0])


def test_lower_precision_is_that_of_the_device(x):
    layer = nn.Linear(3, 1).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.float32


def test_what_was_saved_on_the_device_is_read_on_the_host(x):
    file = io.BytesIO()
    torch.save({"x": x[1:]}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu", weights_only=True)["x"]
    assert loaded.is_cpu
    assert loaded.tolist() == [2.0, 3.0]


def test_views_share_memory_and_what_grows_keeps_its_contents(x):
    x[1:].zero_()
    assert x.tolist() == [1.0, 0.0, 0.0]
    x.resize_(5)[3:] = 7.0
    assert x.tolist() == [1.0, 0.0, 0.0, 7.0, 7.0]
    assert x.data_ptr() == x.view(5, 1).data_ptr() != x.clone().data_ptr()


def test_only_memory_of_the_host_is_pinned(x):
    assert torch.ones(2).pin_memory().is_pinned()
    assert not torch.ones(2).is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin"):
        x.pin_memory()


def test_waits_are_warnings_where_that_is_asked_for():
    x = torch.zeros(1, device="cuda")
    torch.cuda.set_sync_debug_mode("warn")
    try:
        x.add_(1)
        with pytest.warns(UserWarning, match="synchronizing CUDA operation"):
            x.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert x.item() == 1  # warnings are errors


def test_metrics_of_a_checkpoint_and_of_the_device_are_averaged_together():
    progress = Progress()
    progress.unlogged = [{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(3.0, device="cuda")}]
    assert progress.take_means() == {"loss": 2.0}
