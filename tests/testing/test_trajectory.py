"""Every law reports a planted defect under its own name, and every encoder satisfies all laws."""

import copy

import pytest
import torch
import yamame.trajectory
from tensordict import TensorDict
from torch import nn
from yamame.execution.capturing import capturing
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import (
    BlockEncoder,
    DeltaNetEncoder,
    FFMEncoder,
    GRUEncoder,
    HFEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MambaEncoder,
    MatrixMemoryEncoder,
    MemoEncoder,
    MemorylessEncoder,
    MLSTMEncoder,
    RecurrentEncoder,
    RSMEncoder,
    TorchRLEncoder,
    TrajectoryEncoder,
    TransformerEncoder,
    WindowEncoder,
)
from yamame.trajectory.kv_cache import CacheStep

SMALL = {"d_model": 16, "num_heads": 2, "num_layers": 2}
ENCODERS = {
    "transformer": lambda: TransformerEncoder(5, **SMALL),
    "unbounded": lambda: TransformerEncoder(5, **SMALL, context_length=None),
    "full context": lambda: TransformerEncoder(5, **SMALL, context_length=9),
    "learned": lambda: TransformerEncoder(5, **SMALL, positions="learned", num_positions=16),
    "rotary": lambda: TransformerEncoder(5, **SMALL, positions="rotary"),
    "window": lambda: TransformerEncoder(5, **SMALL, window=3),
    "window of one": lambda: TransformerEncoder(5, **SMALL, window=2, positions="rotary"),
    "window and sinks": lambda: TransformerEncoder(5, **SMALL, window=3, sinks=2),
    "gelu": lambda: TransformerEncoder(5, **SMALL, activation="gelu"),
    "no stabilisers": lambda: TransformerEncoder(
        5, **SMALL, norm_attention=False, norm_feedforward=False, head_scaling=False
    ),
    "sigma_reparam": lambda: TransformerEncoder(5, **SMALL, sigma_reparam=True),
    "gru": lambda: GRUEncoder(5, hidden_size=8, num_layers=1, out_features=7),
    "deep gru": lambda: GRUEncoder(
        5, hidden_size=8, num_layers=3, out_features=7, max_time_constant=4.0
    ),
    "lstm": lambda: LSTMEncoder(5, hidden_size=8, num_layers=1, out_features=7),
    "deep lstm": lambda: LSTMEncoder(
        5, hidden_size=8, num_layers=3, out_features=7, max_time_constant=4.0
    ),
    "linear recurrence": lambda: LinearRecurrentEncoder(5, d_model=16, num_layers=1),
    "deep linear recurrence": lambda: LinearRecurrentEncoder(
        5, d_model=16, num_layers=3, activation="gelu"
    ),
    "positive linear recurrence": lambda: LinearRecurrentEncoder(
        5, d_model=16, expansion=2, positive=True
    ),
    "complex channels": lambda: LRUEncoder(5, d_model=16),
    "turning fast": lambda: LRUEncoder(5, d_model=16, num_layers=1, max_phase=6.28),
    "fading traces": lambda: FFMEncoder(5, d_model=16),
    "matrix memory": lambda: MLSTMEncoder(5, **SMALL),
    "one head": lambda: MLSTMEncoder(5, d_model=16, num_heads=1, num_layers=1),
    "delta rule": lambda: DeltaNetEncoder(5, **SMALL),
    "latest four": lambda: WindowEncoder(5, window=4, d_model=16),
    "more than there is": lambda: WindowEncoder(5, window=40, d_model=16, num_layers=2),
    "memoryless": lambda: MemorylessEncoder(5, d_model=16, num_layers=2),
    "rewritten summary": lambda: RSMEncoder(5, **SMALL, segment_length=4, num_slots=2),
    "accumulated summaries": lambda: MemoEncoder(5, **SMALL, segment_length=4, num_slots=2),
}
NEED_CUDA = {MambaEncoder, HFEncoder}
"""Encoders with tests of their own: one needs CUDA, the other a package."""


@pytest.mark.parametrize("name", ENCODERS)
def test_every_configuration_keeps_every_law(name: str) -> None:
    torch.manual_seed(0)
    check_trajectory_encoder(ENCODERS[name](), has_memory=name != "memoryless")


def test_every_public_encoder_is_among_the_configurations() -> None:
    public = set()
    for value in vars(yamame.trajectory).values():
        if isinstance(value, type) and issubclass(value, TrajectoryEncoder):
            public.add(value)
    public -= {TrajectoryEncoder, RecurrentEncoder, BlockEncoder, MatrixMemoryEncoder}
    public -= {TorchRLEncoder}  # of any backbone, tested with several
    assert public - NEED_CUDA == {type(make()) for make in ENCODERS.values()}
    assert public > NEED_CUDA


@pytest.mark.parametrize("name", ["transformer", "gru", "memoryless"])
def test_the_checker_leaves_the_encoder_and_random_state_alone(name: str) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS[name]().train()
    encoder(TensorDict({"features": torch.randn(3, 5), "is_init": torch.ones(3, 1).bool()}, [3]))
    state = copy.deepcopy(encoder.state_dict())
    memory = encoder.memory.clone()
    random_state = torch.get_rng_state()
    check_trajectory_encoder(encoder, has_memory=name != "memoryless")
    assert encoder.training
    assert torch.equal(torch.get_rng_state(), random_state)
    torch.testing.assert_close(encoder.state_dict(), state, rtol=0, atol=0)
    torch.testing.assert_close(dict(encoder.memory), dict(memory), rtol=0, atol=0)


def test_the_checker_takes_sequences_no_longer_than_the_context() -> None:
    encoder = TransformerEncoder(5, **SMALL, context_length=8)
    check_trajectory_encoder(encoder, length=32)


def test_the_checker_refuses_sizes_that_check_nothing() -> None:
    encoder = ENCODERS["gru"]()
    with pytest.raises(ValueError, match="batch_size must be at least 2, got 1"):
        check_trajectory_encoder(encoder, batch_size=1)
    with pytest.raises(ValueError, match="length must be at least 6, got 5"):
        check_trajectory_encoder(encoder, length=5)


# ---------------------------------------------------------------------------- planted defects


class WritesMore(GRUEncoder):
    def forward(self, tensordict):
        return super().forward(tensordict).set("hidden", tensordict["features"] * 2)


class ChangesInputs(GRUEncoder):
    def forward(self, tensordict):
        tensordict["features"] += 1
        return super().forward(tensordict)


class WrongShape(GRUEncoder):
    def forward(self, tensordict):
        tensordict = super().forward(tensordict)
        return tensordict.set("context", tensordict["context"].unsqueeze(-2))


class RecordsGraph(GRUEncoder):
    def forward(self, tensordict):
        tensordict = super().forward(tensordict)
        return tensordict.set("context", tensordict["context"] + self.out.bias)


class WritesDoubles(GRUEncoder):
    def step(self, *args):
        context, memory = super().step(*args)
        return context.double(), memory


class Detaches(GRUEncoder):
    def parallel(self, x, step_index, is_init, num_segments=None):
        return super().parallel(x, step_index, is_init).detach()


class LearnsNothing(GRUEncoder):
    def parallel(self, x, step_index, is_init, num_segments=None):
        return super().parallel(x.detach(), step_index, is_init)


class LooksAhead(TransformerEncoder):
    def parallel(self, x, step_index, starts, num_segments=None):
        return super().parallel(x, step_index, starts) + 0.1 * x.mean((1, 2), keepdim=True)


class LooksOneStepAhead(GRUEncoder):
    def parallel(self, x, step_index, starts, num_segments=None):
        return super().parallel(x.roll(-1, 1), step_index, starts)


class LooksAheadForStarts(GRUEncoder):
    def parallel(self, x, step_index, starts, num_segments=None):
        return super().parallel(x, step_index, starts) + starts.float().mean(1)[:, None, None]


class SeesPadding(GRUEncoder):
    """Encoder that takes padding for history: the timesteps after it continue from it."""

    def parallel(self, x, step_index, starts, num_segments=None):
        begins = torch.zeros_like(starts)
        begins[:, 0] = True
        return super().parallel(x, step_index, begins if step_index[:, :3].eq(0).all() else starts)


class SeesPaddingValues(GRUEncoder):
    def forward(self, tensordict):
        tensordict = super().forward(tensordict)
        if tensordict.get("mask", None) is not None:
            tensordict["context"] += 1e-3 * tensordict["features"].mean((1, 2), keepdim=True)
        return tensordict


class MixesEnvs(GRUEncoder):
    def parallel(self, x, step_index, starts, num_segments=None):
        context = super().parallel(x, step_index, starts)
        return context + 0.01 * context.mean(0)


class MixesActingEnvs(GRUEncoder):
    def step(self, x, memory, is_init, step_index=None):
        context, memory = super().step(x, memory, is_init, step_index)
        return context + 0.01 * context.mean(0), memory


class ResetsAllEnvs(GRUEncoder):
    def step(self, x, memory, is_init, step_index=None):
        return super().step(x, memory, is_init.any().expand_as(is_init), step_index)


class IgnoresStarts(GRUEncoder):
    def parallel(self, x, step_index, starts, num_segments=None):
        begins = torch.zeros_like(starts)
        begins[:, 0] = True
        return super().parallel(x, step_index, begins)


class IgnoresActingStarts(TransformerEncoder):
    def step(self, x, memory, is_init, step_index=None):
        return super().step(x, memory, torch.zeros_like(is_init), step_index)


class ForgetsNothing(GRUEncoder):
    """Encoder with a hidden second memory."""

    hidden = None

    def step(self, x, memory, is_init, step_index=None):
        if self.hidden is not None and len(self.hidden) == len(x):
            memory = memory.clone().set("hidden", self.hidden)
        context, memory = super().step(x, memory, is_init, step_index)
        self.hidden = memory["hidden"]
        return context, memory


class CopiesItsMemory(GRUEncoder):
    def __getstate__(self):
        return self.__dict__


class CopiesItsCache(TransformerEncoder):
    def __deepcopy__(self, memo):
        twin = type(self)(self.in_features, **SMALL)
        twin.load_state_dict(self.state_dict())
        twin.memory = None if self.memory is None else self.memory.clone()
        return twin.train(self.training)


class ForgetsInSnapshots(GRUEncoder):
    def memory_state_dict(self):
        return {
            name: torch.zeros_like(value) for name, value in super().memory_state_dict().items()
        }


class SharesSnapshots(TransformerEncoder):
    """Encoder whose snapshot shares tensors with its memory."""

    def memory_state_dict(self):
        return {"memory": self.memory}


class RemembersTheOrder(GRUEncoder):
    """Encoder whose outputs depend on the index of an env."""

    def step(self, x, memory, is_init, step_index=None):
        remembers = memory["hidden"].abs().sum((1, 2)).gt(0) & ~is_init
        context, memory = super().step(x, memory, is_init, step_index)
        return context + 0.01 * (torch.arange(len(x)) * remembers).unsqueeze(1), memory


class SetsItsMemory(GRUEncoder):
    def step(self, x, memory, is_init, step_index=None):
        context, self.memory = super().step(x, memory, is_init, step_index)
        return context, self.memory


class ForgetsInSilence(GRUEncoder):
    """Encoder that starts afresh whenever the number of envs changes."""

    def ready_memory(self, is_init):
        if self.memory is not None and len(self.memory) != len(is_init):
            self.memory = None
        return super().ready_memory(is_init)


class Forgets(GRUEncoder):
    def parallel(self, x, step_index, starts, num_segments=None):
        return super().parallel(x, step_index, torch.ones_like(starts))

    def step(self, x, memory, is_init, step_index=None):
        return super().step(x, memory, torch.ones_like(is_init), step_index)


class SlotOffByOne(CacheStep):
    def __init__(self, cache, is_init, **settings):
        super().__init__(cache, is_init, **settings)
        # The indices of all heads and numbers of a slot, by which keys and values are written.
        self._slot = self._slot - (self.position > 3).long().view(-1, 1, 1, 1)


class FoldsOnce(GRUEncoder):
    """Encoder that acts with the weights of its first step."""

    folded = None

    def step(self, x, memory, is_init, step_index=None):
        if self.folded is None:
            self.folded = self.out.weight.detach().clone()
        current = self.out.weight.data
        self.out.weight.data = self.folded
        result = super().step(x, memory, is_init, step_index)
        self.out.weight.data = current
        return result


class FoldsByVersion(FoldsOnce):
    """Encoder that detects updates in place, but not those through ``.data``."""

    version = None

    def step(self, x, memory, is_init, step_index=None):
        if self.version != self.out.weight._version:
            self.folded, self.version = None, self.out.weight._version
        return super().step(x, memory, is_init, step_index)


class HoldsATensor(GRUEncoder):
    """Encoder that reads an unregistered tensor, which may be replaced after a recording."""

    def __init__(self, *args, **sizes):
        super().__init__(*args, **sizes)
        self.held = torch.ones(5)

    def step(self, x, *args):
        return super().step(x * self.held, *args)


class HoldsATensorInSequences(GRUEncoder):
    """Encoder that reads an unregistered tensor in the parallel pass only."""

    def __init__(self, *args, **sizes):
        super().__init__(*args, **sizes)
        self.held = torch.ones(5)

    def parallel(self, x, *args, **options):
        return super().parallel(x * self.held, *args, **options)

    def step(self, x, *args):
        return super().step(x * torch.ones(5), *args)


class Gain(GRUEncoder):
    """Encoder whose outputs are multiplied by the exponential of a parameter.

    `prepare_to_act` computes it for acting.
    """

    def __init__(self, *args, **sizes):
        super().__init__(*args, **sizes)
        self.log_gain = nn.Parameter(torch.zeros(self.out_features))
        self.register_buffer("gain", torch.ones(self.out_features), persistent=False)

    @torch.no_grad()
    def prepare_to_act(self):
        self.gain.copy_(self.log_gain.exp())

    def act_gain(self):
        """Return the factor of a step: in a capture the prepared one, which is up to date."""
        return self.gain if capturing() else self.log_gain.exp()

    def parallel(self, x, *args, **options):
        return super().parallel(x, *args, **options) * self.log_gain.exp()

    def step(self, *args):
        context, memory = super().step(*args)
        return context * self.act_gain(), memory


class ReplacesABuffer(Gain):
    """Encoder that replaces the tensor of a buffer."""

    @torch.no_grad()
    def prepare_to_act(self):
        self.gain = self.log_gain.exp()


class ReplacesAConstant(Gain):
    """Encoder that replaces a buffer by an equal one, so that only the address differs."""

    def __init__(self, *args, **sizes):
        super().__init__(*args, **sizes)
        self.register_buffer("ones", torch.ones(self.out_features), persistent=False)

    def prepare_to_act(self):
        super().prepare_to_act()
        self.ones = torch.ones(self.out_features)

    def step(self, *args):
        context, memory = super().step(*args)
        return context * self.ones, memory


class ReplacesWhenTheModeChanges(Gain):
    def train(self, mode=True):
        self.gain = self.gain.clone()
        return super().train(mode)


class ReplacesAtLoading(Gain):
    def load_state_dict(self, state, **options):
        return super().load_state_dict(copy.deepcopy(state), assign=True)


class BakesANumber(Gain):
    """Encoder that folds the parameter into a Python number at every update."""

    number = 1.0

    def prepare_to_act(self):
        self.number = float(self.log_gain.detach().exp().mean())

    def act_gain(self):
        return self.number if capturing() else self.log_gain.exp().mean()

    def parallel(self, x, *args, **options):
        return GRUEncoder.parallel(self, x, *args, **options) * self.log_gain.exp().mean()


class BakesANumberInSequences(Gain):
    """Encoder that reads a number back in the parallel pass."""

    def parallel(self, x, *args, **options):
        gain = self.log_gain.exp()
        if capturing():
            gain = torch.tensor(gain.tolist())
        return GRUEncoder.parallel(self, x, *args, **options) * gain


def test_an_encoder_that_prepares_in_place_keeps_every_law() -> None:
    torch.manual_seed(0)
    check_trajectory_encoder(Gain(5, hidden_size=8, out_features=7))


class PositionOffByOne(TransformerEncoder):
    def step(self, x, memory, is_init, step_index=None):
        return super().step(x, memory, is_init, step_index + 1)


class OwnEncoder(TrajectoryEncoder):
    """Encoder of a layer of PyTorch, written as a user of the library would."""

    def __init__(self, in_features, *, out_features=7):
        super().__init__(in_features, out_features)
        self.layer = self.make_layer(in_features, out_features)

    def init_memory(self, num_envs, *, capacity=None, device=None):
        weight = next(self.parameters()).detach()
        hidden = weight.new_zeros(num_envs, self.out_features, device=device)
        return TensorDict({"hidden": hidden}, [num_envs], device=hidden.device)

    def step(self, x, memory, is_init, step_index=None):
        self.check_step(x, memory, is_init)
        hidden = memory["hidden"].masked_fill(is_init.unsqueeze(-1), 0)
        hidden = self.apply_layer(x, hidden)
        memory = TensorDict({"hidden": hidden}, memory.batch_size, device=memory.device)
        return 2.0 * hidden, memory


class BatchFirst(OwnEncoder):
    """Encoder of a layer that ends in an operation in place, which changes only the shape."""

    def make_layer(self, in_features, out_features):
        return nn.GRU(in_features, out_features, batch_first=True)

    def apply_layer(self, x, hidden):
        output, _ = self.layer(x.unsqueeze(1), hidden.unsqueeze(0))
        return output.squeeze(1)


class ShapesInPlace(OwnEncoder):
    def make_layer(self, in_features, out_features):
        return nn.GRUCell(in_features, out_features)

    def apply_layer(self, x, hidden):
        hidden = self.layer(x, hidden)
        return hidden.unsqueeze_(1).squeeze_(1).t_().t_()


@pytest.mark.parametrize("make", [BatchFirst, ShapesInPlace])
def test_encoders_may_change_shapes_in_place(make) -> None:
    torch.manual_seed(0)
    check_trajectory_encoder(make(5))


def test_features_have_the_dtype_of_the_encoder() -> None:
    torch.manual_seed(0)
    check_trajectory_encoder(BatchFirst(5).double(), atol=1e-9)


class Raises(BatchFirst):
    """Encoder that cannot encode some steps."""

    def apply_layer(self, x, hidden):
        if x.shape[0] == 3:
            raise RuntimeError("three are too few")
        assert x.isfinite().all()
        return super().apply_layer(x, hidden)


def test_an_error_of_the_encoder_has_the_name_of_the_law() -> None:
    message = r"Raises breaks the reset law: .*AssertionError"
    with pytest.raises(AssertionError, match=message):
        check_trajectory_encoder(Raises(5))


def test_another_module_is_refused() -> None:
    message = r"encoder must be a .*TrajectoryEncoder, got 'GRU'"
    with pytest.raises(ValueError, match=message):
        check_trajectory_encoder(nn.GRU(5, 8))


DEFECTS = [
    (WritesMore, "entries", "adds or removes"),
    (ChangesInputs, "entries", "changes its inputs"),
    (WrongShape, "entries", "writes 'context' of shape"),
    (RecordsGraph, "entries", "records a graph"),
    (WritesDoubles, "entries", "writes torch.float64"),
    (Detaches, "learning", "records no graph"),
    (LearnsNothing, "learning", "no gradient reaches the features"),
    (LooksAhead, "causality", "depend on later timesteps"),
    (LooksOneStepAhead, "causality", "depend on later timesteps"),
    (LooksAheadForStarts, "causality", "depend on later timesteps"),
    (SeesPadding, "padding", "amount of left padding"),
    (SeesPaddingValues, "padding", "content of padding"),
    (MixesEnvs, "envs", "the parallel pass"),
    (MixesActingEnvs, "envs", "acting"),
    (ResetsAllEnvs, "envs", "acting"),
    (IgnoresStarts, "reset", "the parallel pass"),
    (IgnoresActingStarts, "reset", "acting"),
    (ForgetsNothing, "reset", r"reset_memory\(\)"),
    (CopiesItsMemory, "copying", "copy.deepcopy"),
    (CopiesItsCache, "copying", "copy.deepcopy"),
    (ForgetsInSnapshots, "value", "a saved memory"),
    (SharesSnapshots, "value", "a saved memory"),
    (RemembersTheOrder, "value", "from its own part"),
    (SetsItsMemory, "value", "changes an attribute"),
    (ForgetsInSilence, "value", "another number of envs"),
    (Forgets, "memory", "do not depend on the timestep before"),
    (PositionOffByOne, "parity", "acting differs from the parallel pass"),
    (FoldsOnce, "parity", "after an update of weights in place"),
    (FoldsByVersion, "parity", "through .data"),
    (HoldsATensor, "recording", "the step reads a tensor that is no parameter, buffer or input"),
    (HoldsATensorInSequences, "recording", "the parallel pass reads a tensor"),
    (ReplacesABuffer, "recording", "gain"),
    (ReplacesAConstant, "recording", "ones"),
    (ReplacesWhenTheModeChanges, "recording", "gain"),
    (ReplacesAtLoading, "recording", "load_state_dict"),
    (BakesANumber, "recording", "replay of the step"),
    (BakesANumberInSequences, "recording", "replay of the parallel pass"),
]


@pytest.mark.parametrize(
    ("defect", "law", "sentence"), DEFECTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_defect_is_caught_under_the_name_of_its_law(
    defect, law: str, sentence: str
) -> None:
    torch.manual_seed(0)
    is_transformer = issubclass(defect, TransformerEncoder)
    sizes = SMALL if is_transformer else {"hidden_size": 8, "out_features": 7}
    encoder = defect(5, **sizes)
    message = f"{defect.__name__} breaks the {law} law: .*{sentence}"
    with pytest.raises(AssertionError, match=message):
        check_trajectory_encoder(encoder)


def test_a_cache_slot_off_by_one_breaks_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yamame.trajectory.transformer.CacheStep", SlotOffByOne)
    with pytest.raises(AssertionError, match=r"TransformerEncoder breaks the (reset|parity) law"):
        check_trajectory_encoder(ENCODERS["transformer"]())


def test_a_mask_that_looks_ahead_breaks_causality(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(starts, **options):
        return torch.ones(1, 1, starts.shape[1], starts.shape[1], dtype=torch.bool)

    monkeypatch.setattr("yamame.trajectory.attention.visibility", everything)
    with pytest.raises(AssertionError, match="TransformerEncoder breaks the causality law"):
        check_trajectory_encoder(ENCODERS["transformer"]())


def test_an_encoder_called_memoryless_must_not_remember() -> None:
    message = "memory law: outputs of an encoder without memory depend"
    with pytest.raises(AssertionError, match=message):
        check_trajectory_encoder(ENCODERS["gru"](), has_memory=False)


def test_the_message_names_place_size_and_tolerance() -> None:
    message = r"\(env \d+, timestep \d+: off by \S+e[-+]\d+, allowed 1e-05\)"
    with pytest.raises(AssertionError, match=message):
        check_trajectory_encoder(MixesEnvs(5, hidden_size=8, out_features=7))


class NaNAfterReset(GRUEncoder):
    def step(self, x, memory, is_init, step_index=None):
        context, memory = super().step(x, memory, is_init, step_index)
        return context * torch.nan, memory


class ForgetsOneStep(GRUEncoder):
    """Encoder whose parallel pass continues over the start at timestep 8."""

    def parallel(self, x, step_index, starts, num_segments=None):
        if bool(starts[:, 8].all()):
            starts = starts.clone()
            starts[:, 8] = False
        return super().parallel(x, step_index, starts)


def test_the_message_counts_timesteps_from_the_beginning() -> None:
    with pytest.raises(AssertionError, match=r"reset law: .*timestep (8|9|1\d):"):
        check_trajectory_encoder(ForgetsOneStep(5, hidden_size=8, out_features=7))


def test_nan_never_counts_as_equal() -> None:
    with pytest.raises(AssertionError, match="off by inf"):
        check_trajectory_encoder(NaNAfterReset(5, hidden_size=8, out_features=7))
