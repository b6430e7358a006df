"""Greedy decisions of N streams as a graph, for `torch.export` (``.pt2``) or ONNX (``.onnx``).

Every input and output has a name. Observations have the names of `DeployedAgent.observation_spec`,
nested ones joined by dots. The further inputs are

================  ==============  =======  =====================================================
name              shape           dtype    meaning
================  ==============  =======  =====================================================
``reward``        ``[N, 1]``      float32  reward of the last action; ignored with ``is_init``
``is_init``       ``[N, 1]``      bool     an episode starts; the state of the stream is ignored
``trial_start``   ``[N, 1]``      bool     another trial of the same task starts
``state.*``       ``[N, ...]``             outputs ``next.*`` of the last step, or zeros
================  ==============  =======  =====================================================

The outputs are ``action`` as in `DeployedAgent.action_spec`, the parameters ``params`` ``[N, P]``
of the distributions, and ``next.*``. The memory has room for ``context_length`` timesteps from the
start, because shapes in a graph are fixed.
"""

import copy
import importlib.util
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import UsageError, require
from yamame.deploy.interface import dotted
from yamame.deploy.step import ActingStep
from yamame.execution.capturing import recording
from yamame.files.atomic import atomic_writer, make_folder

_STATE = "state."


class GreedyStep(nn.Module):
    """Greedy decision with flat dictionaries of tensors as input and output, see the module.

    Args:
        step: The decision.
        entries: Shape and dtype of every observed entry of one stream, by its key.
    """

    def __init__(
        self, step: ActingStep, entries: dict[Any, tuple[torch.Size, torch.dtype]]
    ) -> None:
        super().__init__()
        self.step = step
        self.entries = entries

    def example(self, num: int) -> dict[str, Tensor]:
        """Return the inputs of the first step of streams.

        Args:
            num: Number N of streams.

        Raises:
            UsageError: The memory has no largest size.
        """
        encoder = self.step.policy.trajectory_encoder
        capacity: int | None = getattr(encoder, "capacity", encoder.context_length)
        # An encoder whose memory is a state of fixed size has room for any number of timesteps.
        _, room = encoder.grow_by(encoder.init_memory(1), 1)
        if capacity is None and room < sys.maxsize:
            raise UsageError(
                "export: the memory must have a largest size; "
                "load the agent with a number as context_length"
            )

        inputs = {}
        for key, (shape, dtype) in self.entries.items():
            inputs[dotted(key)] = torch.zeros(num, *shape, dtype=dtype)
        inputs["reward"] = torch.zeros(num, 1)
        inputs["is_init"] = torch.ones(num, 1, dtype=torch.bool)
        inputs["trial_start"] = torch.zeros(num, 1, dtype=torch.bool)
        state = self.step.init_state(num, capacity=capacity)
        for key, value in state.items(True, True):
            inputs[_STATE + dotted(key)] = value
        return inputs

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute one decision of every stream."""
        num = len(inputs["reward"])
        observation = TensorDict({}, [num])
        for key in self.entries:
            observation[key] = inputs[dotted(key)]
        mask = observation.pop("action_mask", None)

        state = TensorDict({}, [num])
        for name, value in inputs.items():
            if name.startswith(_STATE):
                key = tuple(name.split(".")[1:])
                # A step writes into its memory, and a graph must not change its inputs.
                state[key] = value.clone()
        if "memory" not in state.keys():
            # An encoder without memory has no tensor there, so no input either.
            state["memory"] = TensorDict({}, [num])

        params, next_state = self.step(
            observation, inputs["reward"], inputs["is_init"], inputs["trial_start"], state
        )
        space = self.step.policy.action_space
        action = space.decode(space.distribution(params, mask).mode)
        next_state["prev_action"] = space.encode(action)
        outputs = {"action": action, "params": params}
        for key, value in next_state.items(True, True):
            outputs[f"next.{dotted(key)}"] = value
        return outputs


def export_step(step: GreedyStep, path: Path, num: int) -> Path:
    """Write the graph of a step, replacing an existing file.

    Args:
        step: The step.
        path: File with the suffix ``.pt2`` or ``.onnx``.
        num: Number N of streams.

    Raises:
        UsageError: The suffix is another, the memory has no largest size, or a package for ONNX is
            not installed.
        OSError: The file could not be written.
    """
    is_known = path.suffix in (".pt2", ".onnx")
    require("export", "path", str(path), is_known, "end in .pt2 (torch.export) or .onnx")
    step = copy.deepcopy(step).cpu()
    example = step.example(num)
    with recording(), torch.no_grad(), warnings.catch_warnings():
        # The exporters warn about their own internals.
        warnings.simplefilter("ignore")
        outputs = list(step(example))
        program = torch.export.export(step, (example,), strict=False)
        if path.suffix == ".onnx":
            content = _to_onnx(program, list(example), outputs)
        else:
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            content = buffer.getvalue()

    make_folder(path.absolute().parent)
    with atomic_writer(path) as file:
        file.write(content)
    return path


def _to_onnx(program: Any, inputs: list[str], outputs: list[str]) -> bytes:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            remedy = "run: pip install 'yamame[onnx]'"
            raise UsageError(f"export: the package {package} must be installed", remedy=remedy)
    exported = torch.onnx.export(
        program, input_names=inputs, output_names=outputs, dynamo=True, verbose=False
    )
    assert exported is not None
    content: bytes = exported.model_proto.SerializeToString()
    return content
