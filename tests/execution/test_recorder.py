"""A function is compiled once for every structure that comes again, however many there are."""

import inspect

import pytest
import torch
from tensordict import TensorDict
from yamame.execution import recorder
from yamame.execution.capturing import recording
from yamame.execution.recorder import Compiled, check_compiler, missing_compiler, structure

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def compiled():
    """Return a maker of compiled functions and of lists of their graphs."""

    def make(**options):
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        function = Compiled(lambda batch: 2 * batch["x"], name="twice", backend=backend, **options)
        return function, graphs

    return make


def of_size(size, value=1.0):
    return TensorDict({"x": torch.full((size,), value)}, [size])


def test_a_structure_is_compiled_once_when_it_comes_again(compiled, capsys):
    function, graphs = compiled()
    for call, value in enumerate((1.0, 3.0, 5.0, 7.0)):
        assert function(of_size(2, value)).tolist() == [2 * value] * 2
        assert len(graphs) == (call > 0)
    function(of_size(3))
    function(of_size(2).double())
    assert len(graphs) == 1
    function(of_size(3))
    assert len(graphs) == 2
    assert capsys.readouterr().err.count("twice is compiled") == 1


def test_there_may_be_more_structures_than_one_cache_of_torch_takes(compiled):
    function, graphs = compiled(warmup=0, limit=30)
    for size in range(1, 21):
        assert function(of_size(size)).shape == (size,)
    assert len(graphs) == 20
    shared = torch.compile(lambda batch: 2 * batch["x"], dynamic=False, backend=function._backend)
    for size in range(1, 21):
        shared(of_size(size))
    assert len(graphs) == 20 + 8  # it gives up


def test_the_one_unused_for_longest_gives_way(compiled):
    function, graphs = compiled(warmup=0, limit=2)
    for size, made in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
        function(of_size(size))
        assert len(graphs) == made


def test_while_something_is_captured_nothing_is_compiled(compiled):
    function, graphs = compiled(warmup=0)
    with recording():
        assert function(of_size(2)).tolist() == [2.0, 2.0]
    assert graphs == []
    function(of_size(2))
    with recording():
        function(of_size(2))
    assert len(graphs) == 1  # what is compiled may be captured


def test_what_the_host_knows_is_a_part_of_the_structure():
    batch = TensorDict({"x": torch.zeros(2, 3)}, [2, 3])
    known = [batch.copy().set_non_tensor("num_segments", number) for number in (2, 2, 5)]
    assert structure(known[0]) == structure(known[1])
    assert len({structure(one) for one in (batch, *known)}) == 3


@pytest.mark.parametrize(
    ("device", "missing"),
    [(CPU, r"no C\+\+ compiler"), (CUDA, "no package triton"), (CPU, "torch .*, it takes 2.13")],
)
def test_a_missing_compiler_is_named(monkeypatch, device, missing):
    monkeypatch.setattr(
        recorder.shutil, "which", lambda name: "/usr/bin/g++" if name == "g++" else None
    )
    monkeypatch.setattr(recorder.importlib.util, "find_spec", lambda name: name)
    assert missing_compiler(device) is None
    check_compiler(device, "Learner")
    if "torch" in missing:
        monkeypatch.setattr(recorder.torch, "compile", lambda function, *, dynamic=None: function)
    else:
        monkeypatch.setattr(recorder.shutil, "which", lambda name: None)
        monkeypatch.setattr(recorder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"Learner: compile must be false with {missing}"):
        check_compiler(device, "Learner")


def test_torch_has_a_cache_for_each_function():
    assert "isolate_recompiles" in inspect.signature(torch.compile).parameters
