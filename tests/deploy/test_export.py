"""Exported graphs, whose inputs and outputs include the memory, decide as the agent."""

import numpy as np
import pytest
import torch
from yamame.checks import UsageError
from yamame.deploy import DeployedAgent

NUM = 3
KINDS = [("transformer", 40), ("gru_rounded", None), ("lru", None), ("deltanet", None)]


def play(agent, step, observations, *, shapes, num_steps: int = 80):
    """Return parameters and actions ``[T, NUM, ...]`` of an agent and of a graph.

    Both get the same observations, rewards and episode ends.
    """
    decided, told = [], {"graph": [], "agent": [], "params": []}
    agent.step.register_forward_hook(
        lambda module, given, answer: decided.append(answer[0].clone())
    )
    names, random = list(range(NUM)), np.random.default_rng(0)
    agent.reset(sessions=names)
    state = {name: np.zeros(*shape) for name, shape in shapes.items() if name.startswith("state.")}
    first = np.ones(NUM, bool)
    for t in range(num_steps):
        seen = observations(agent, NUM, seed=t)
        reward = np.where(first, 0.0, random.normal(size=NUM)).astype(np.float32)
        done = first & (t > 0)
        action = agent.act(seen, reward=None if t == 0 else reward, done=done, sessions=names)
        flags = {"is_init": first[:, None], "trial_start": np.zeros((NUM, 1), bool)}
        outputs = step({**seen, "reward": reward[:, None], **flags, **state})
        state = {
            name.replace("next.", "state."): value
            for name, value in outputs.items()
            if name.startswith("next.")
        }
        told["graph"].append(outputs["action"])
        told["agent"].append(action)
        told["params"].append(outputs["params"])
        first = random.random(NUM) < 0.02
    return {name: np.stack(values) for name, values in told.items()} | {
        "expected": torch.stack(decided).numpy()
    }


def onnx_step(path):
    """Return the step in an ONNX file, and the shapes and dtypes of its inputs."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": bool}
    shapes = {given.name: (given.shape, dtypes[given.type]) for given in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True)), shapes


def torch_step(path):
    """Return the step in a file of `torch.export`, and the shapes and dtypes of its inputs."""
    program = torch.export.load(path)
    ((example,), _) = program.example_inputs
    module = program.module()

    def step(inputs):
        tensors = {name: torch.from_numpy(np.array(inputs[name])) for name in example}
        with torch.no_grad():
            return {name: value.numpy() for name, value in module(tensors).items()}

    return step, {name: (tuple(v.shape), v.numpy().dtype) for name, v in example.items()}


@pytest.mark.parametrize(("encoder", "context_length"), KINDS)
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_a_graph_decides_as_the_agent(
    subject, observations, tmp_path, suffix, encoder, context_length
):
    if suffix == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    agent = DeployedAgent(subject(encoder).saved, greedy=True, context_length=context_length)
    path = agent.export(tmp_path / f"agent.{suffix}", num_streams=NUM)
    step, shapes = onnx_step(path) if suffix == "onnx" else torch_step(path)
    told = play(agent, step, observations, shapes=shapes)
    assert told["params"].shape == (80, NUM, 5)
    np.testing.assert_allclose(told["params"], told["expected"], atol=1e-5, rtol=0)
    assert len(np.unique(told["agent"])) > 1
    np.testing.assert_array_equal(told["graph"], told["agent"])


def test_a_graph_without_its_state_decides_otherwise(subject, observations, tmp_path):
    agent = DeployedAgent(subject("gru").saved, greedy=True)
    step, shapes = torch_step(agent.export(tmp_path / "agent.pt2", num_streams=NUM))

    def forgetful(inputs):
        return step({**inputs, "is_init": np.ones((NUM, 1), bool)})

    told = play(agent, forgetful, observations, shapes=shapes, num_steps=20)
    assert np.abs(told["params"][0] - told["expected"][0]).max() < 1e-5
    assert np.abs(told["params"][1:] - told["expected"][1:]).max() > 1e-3


def test_an_export_that_fails_writes_nothing(maze, tmp_path, monkeypatch):
    agent = DeployedAgent(maze.saved)
    with pytest.raises(
        UsageError, match=r"path must end in .pt2 \(torch.export\) or .onnx, got .*agent.bin"
    ):
        agent.export(tmp_path / "agent.bin")
    with pytest.raises(ValueError, match=r"num_streams must be at least 1, got 0"):
        agent.export(tmp_path / "agent.pt2", num_streams=0)
    agent.step.policy.trajectory_encoder.capacity = None
    with pytest.raises(UsageError, match=r"the memory must have a largest size; .* context_length"):
        agent.export(tmp_path / "agent.pt2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"the package onnx must be installed; run: pip install 'yamame\[onnx\]'"
    ):
        DeployedAgent(maze.saved).export(tmp_path / "agent.onnx")
    assert list(tmp_path.iterdir()) == []
