"""The acting step as a graph of tensors, for `torch.export` (``.pt2``) or ONNX (``.onnx``): greedy,
of N streams.

Every input and output has a name. What is observed has the names of
`DeployedAgent.observation_spec`, nested ones joined by dots; beside it go in

================  ==============  =======  =====================================================================
name              shape           dtype    meaning
================  ==============  =======  =====================================================================
``reward``        ``[N, 1]``      float32  what the last action earned; of no meaning where ``is_init`` is set
``is_init``       ``[N, 1]``      bool     an episode begins; the state of the stream may hold anything, as zeros
``trial_start``   ``[N, 1]``      bool     another trial of the same task begins
``state.*``       ``[N, ...]``             what the step before gave as ``next.*``
================  ==============  =======  =====================================================================

and come out ``action`` as `DeployedAgent.action_spec` says, ``params`` ``[N, P]`` of the
distributions, and ``next.*``. Memory has room for ``context_length`` timesteps from the start, so
that no shape ever changes.
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

from yamame.checks import UsageError, require_at_least
from yamame.deploy.step import ActingStep
from yamame.execution.capturing import recording
from yamame.files.atomic import atomic_writer, make_folder

_CONTEXT = ("reward", "is_init", "trial_start")


class GreedyStep(nn.Module):
    """`ActingStep` and the most probable action, from and to flat dictionaries of tensors; see the
    module.

    Args:
        step: The step.
        entries: Shape and dtype of every observed entry of one stream, by its key.
    """

    def __init__(
        self, step: ActingStep, entries: dict[Any, tuple[torch.Size, torch.dtype]]
    ) -> None:
        super().__init__()
        self.step, self.entries = step, entries

    def example(self, num: int) -> dict[str, Tensor]:
        """Inputs of N streams that begin.

        Raises:
            UsageError: The memory has no end.
        """
        encoder = self.step.policy.trajectory_encoder
        capacity: int | None = getattr(encoder, "capacity", encoder.context_length)
        _, room = encoder.grow_by(encoder.init_memory(1), 1)
        if capacity is None and room < sys.maxsize:
            raise UsageError(
                "export: the memory must have a largest length; load the agent with context_length=..."
            )
        state = self.step.init_state(num, capacity=capacity)
        flags = torch.zeros(num, 1, dtype=torch.bool)
        inputs = {
            _name(key): torch.zeros(num, *shape, dtype=dtype)
            for key, (shape, dtype) in self.entries.items()
        }
        inputs |= {"reward": torch.zeros(num, 1), "is_init": ~flags, "trial_start": flags}
        return inputs | {f"state.{_name(key)}": value for key, value in state.items(True, True)}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """One decision of every stream."""
        num = len(inputs["reward"])
        observation = TensorDict({}, [num])
        for key in self.entries:
            observation[key] = inputs[_name(key)]
        mask = observation.pop("action_mask", None)
        state = TensorDict({}, [num])
        for name, value in inputs.items():
            if name.startswith("state."):
                state[tuple(name.split(".")[1:])] = value.clone()  # a step writes into its memory
        if "memory" not in state.keys():
            state["memory"] = TensorDict({}, [num])
        params, following = self.step(observation, *(inputs[name] for name in _CONTEXT), state)
        space = self.step.policy.action_space
        action = space.decode(space.distribution(params, mask).mode)
        following["prev_action"] = space.encode(action)
        outputs = {f"next.{_name(key)}": value for key, value in following.items(True, True)}
        return {"action": action, "params": params, **outputs}


def export_step(step: GreedyStep, path: Path, num: int) -> Path:
    """Writes the graph of a step of ``num`` streams; a file that is there is replaced.

    Raises:
        UsageError: The suffix is another, the memory has no end, or what ONNX needs is not
            installed.
        OSError: It could not be written.
    """
    require_at_least("export", 1, num_streams=num)
    if path.suffix not in (".pt2", ".onnx"):
        raise UsageError(f"export: path must end in .pt2 (torch.export) or .onnx, got {path}")
    step = copy.deepcopy(step).cpu()
    example = step.example(num)
    with recording(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = list(step(example))
        program = torch.export.export(step, (example,), strict=False)
        if path.suffix == ".onnx":
            content = _onnx(program, list(example), outputs)
        else:
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            content = buffer.getvalue()
    make_folder(path.absolute().parent)
    with atomic_writer(path) as file:
        file.write(content)
    return path


def _onnx(program: Any, inputs: list[str], outputs: list[str]) -> bytes:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"export: the package {missing[0]} must be installed, run: pip install 'yamame[onnx]'"
        )
    exported = torch.onnx.export(
        program, input_names=inputs, output_names=outputs, dynamo=True, verbose=False
    )
    assert exported is not None
    content: bytes = exported.model_proto.SerializeToString()
    return content


def _name(key: Any) -> str:
    return key if isinstance(key, str) else ".".join(key)
