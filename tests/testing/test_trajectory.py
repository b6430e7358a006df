"""Every law catches a planted defect under its own name, and every encoder of the package keeps them all."""

import copy

import pytest
import torch
import yamame.trajectory
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import (
    GRUEncoder,
    LinearRecurrentEncoder,
    LSTMEncoder,
    MambaEncoder,
    MemorylessEncoder,
    TrajectoryEncoder,
    TransformerEncoder,
    WindowEncoder,
)
from yamame.trajectory.cache import CacheStep

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
    "no norm_attention": lambda: TransformerEncoder(5, **SMALL, norm_attention=False),
    "no norm_feedforward": lambda: TransformerEncoder(5, **SMALL, norm_feedforward=False),
    "no head_scaling": lambda: TransformerEncoder(5, **SMALL, head_scaling=False),
    "sigma_reparam": lambda: TransformerEncoder(5, **SMALL, sigma_reparam=True),
    "gru": lambda: GRUEncoder(5, hidden_size=8, num_layers=1, out_features=7),
    "deep gru": lambda: GRUEncoder(5, hidden_size=8, num_layers=3, out_features=7, max_time_constant=4.0),
    "lstm": lambda: LSTMEncoder(5, hidden_size=8, num_layers=1, out_features=7),
    "deep lstm": lambda: LSTMEncoder(5, hidden_size=8, num_layers=3, out_features=7, max_time_constant=4.0),
    "linear recurrence": lambda: LinearRecurrentEncoder(5, d_model=16, num_layers=1),
    "deep linear recurrence": lambda: LinearRecurrentEncoder(5, d_model=16, num_layers=3, activation="gelu"),
    "latest four": lambda: WindowEncoder(5, window=4, d_model=16),
    "more than there is": lambda: WindowEncoder(5, window=40, d_model=16, num_layers=2),
    "memoryless": lambda: MemorylessEncoder(5, d_model=16, num_layers=2),
}
NEED_CUDA = {MambaEncoder}
"""Its laws are checked in the test of its own."""


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_configuration_keeps_every_law(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    check_trajectory_encoder(ENCODERS[name](), seed=seed, has_memory=name != "memoryless")


def test_every_public_encoder_is_among_the_configurations() -> None:
    public = {
        value
        for value in vars(yamame.trajectory).values()
        if isinstance(value, type) and issubclass(value, TrajectoryEncoder) and value is not TrajectoryEncoder
    }
    assert public - NEED_CUDA == {type(make()) for make in ENCODERS.values()}
    assert public > NEED_CUDA


@pytest.mark.parametrize("name", ["transformer", "gru", "memoryless"])
def test_the_checker_leaves_the_encoder_and_random_state_alone(name: str) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS[name]().train()
    encoder.step(torch.randn(3, 5), torch.zeros(3).long(), torch.ones(3).bool())
    state, memory = copy.deepcopy(encoder.state_dict()), encoder.memory_state_dict()
    random_state = torch.get_rng_state()
    check_trajectory_encoder(encoder, has_memory=name != "memoryless")
    assert encoder.training
    assert torch.equal(torch.get_rng_state(), random_state)
    for before, after in ((state, encoder.state_dict()), (memory, encoder.memory_state_dict())):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


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
    def step(self, x, step_index, starts):
        return super().step(x, step_index, starts) + self.out.bias


class LooksAhead(TransformerEncoder):
    def parallel(self, x, step_index, starts):
        return super().parallel(x, step_index, starts) + 0.1 * x.mean((1, 2), keepdim=True)


class LooksOneStepAhead(GRUEncoder):
    def parallel(self, x, step_index, starts):
        return super().parallel(x.roll(-1, 1), step_index, starts)


class LooksAheadForStarts(GRUEncoder):
    def parallel(self, x, step_index, starts):
        return super().parallel(x, step_index, starts) + starts.float().mean(1)[:, None, None]


class SeesPadding(GRUEncoder):
    """Takes padding for history: real timesteps after it continue from it."""

    def parallel(self, x, step_index, starts):
        begins = torch.zeros_like(starts)
        begins[:, 0] = True
        return super().parallel(x, step_index, begins if step_index[:, :3].eq(0).all() else starts)


class SeesPaddingValues(GRUEncoder):
    def forward(self, tensordict):
        tensordict = super().forward(tensordict)
        if tensordict.get("mask", None) is not None:
            tensordict["context"] += 1e-3 * tensordict["features"].mean((1, 2), keepdim=True)
        return tensordict


class MixesRows(GRUEncoder):
    def parallel(self, x, step_index, starts):
        context = super().parallel(x, step_index, starts)
        return context + 0.01 * context.mean(0)


class MixesActingRows(GRUEncoder):
    def advance(self, x, step_index, starts, memory):
        context = super().advance(x, step_index, starts, memory)
        return context + 0.01 * context.mean(0)


class ResetsAllRows(GRUEncoder):
    def advance(self, x, step_index, starts, memory):
        return super().advance(x, step_index, starts.any().expand_as(starts), memory)


class IgnoresStarts(GRUEncoder):
    def parallel(self, x, step_index, starts):
        begins = torch.zeros_like(starts)
        begins[:, 0] = True
        return super().parallel(x, step_index, begins)


class IgnoresActingStarts(TransformerEncoder):
    def step(self, x, step_index, starts):
        return super().step(x, step_index, torch.zeros_like(starts))


class ResetsNothing(GRUEncoder):
    def reset_memory(self):
        pass


class CopiesItsMemory(GRUEncoder):
    def __getstate__(self):
        return self.__dict__


class CopiesItsCache(TransformerEncoder):
    def __deepcopy__(self, memo):
        twin = type(self)(self.in_features, **SMALL)
        twin.load_state_dict(self.state_dict())
        twin.load_memory_state_dict(self.memory_state_dict())
        return twin.train(self.training)


class ForgetsInSnapshots(GRUEncoder):
    def memory_state_dict(self):
        state = super().memory_state_dict()
        return {name: torch.zeros_like(value) for name, value in state.items()}


class SharesSnapshots(GRUEncoder):
    """The snapshot moves on with the memory."""

    def memory_state_dict(self):
        return dict(self._memory or {})


class Forgets(GRUEncoder):
    def parallel(self, x, step_index, starts):
        return super().parallel(x, step_index, torch.ones_like(starts))

    def advance(self, x, step_index, starts, memory):
        return super().advance(x, step_index, torch.ones_like(starts), memory)


class SlotOffByOne(CacheStep):
    def __init__(self, entries, age, **settings):
        super().__init__(entries, age, **settings)
        self.place = self.place - (age > 3).long().unsqueeze(1)


class FoldsOnce(GRUEncoder):
    """Acts with the weights it had at its first step."""

    folded = None

    def advance(self, x, step_index, starts, memory):
        if self.folded is None:
            self.folded = self.out.weight.detach().clone()
        current, self.out.weight.data = self.out.weight.data, self.folded
        context = super().advance(x, step_index, starts, memory)
        self.out.weight.data = current
        return context


class FoldsByVersion(FoldsOnce):
    """Notices updates in place, but not those through ``.data``."""

    version = None

    def advance(self, x, step_index, starts, memory):
        if self.version != self.out.weight._version:
            self.folded, self.version = None, self.out.weight._version
        return super().advance(x, step_index, starts, memory)


class PositionOffByOne(TransformerEncoder):
    def advance(self, x, step_index, starts, memory):
        return super().advance(x, step_index + 1, starts, memory)


DEFECTS = [
    (WritesMore, "entries", "adds or removes"),
    (ChangesInputs, "entries", "changes its inputs"),
    (WrongShape, "entries", "writes 'context' of shape"),
    (RecordsGraph, "entries", "records a graph"),
    (LooksAhead, "causality", "depend on what follows"),
    (LooksOneStepAhead, "causality", "depend on what follows"),
    (LooksAheadForStarts, "causality", "depend on what follows"),
    (SeesPadding, "padding", "amount of left padding"),
    (SeesPaddingValues, "padding", "what padding holds"),
    (MixesRows, "rows", "the parallel pass"),
    (MixesActingRows, "rows", "acting"),
    (ResetsAllRows, "rows", "acting"),
    (IgnoresStarts, "reset", "the parallel pass"),
    (IgnoresActingStarts, "reset", "acting"),
    (ResetsNothing, "reset", r"reset_memory\(\)"),
    (CopiesItsMemory, "copying", "copy.deepcopy"),
    (CopiesItsCache, "copying", "copy.deepcopy"),
    (ForgetsInSnapshots, "copying", "snapshot"),
    (SharesSnapshots, "copying", "snapshot"),
    (Forgets, "memory", "do not depend on the timestep before"),
    (PositionOffByOne, "parity", "acting differs from the parallel pass"),
    (FoldsOnce, "parity", "after an update of weights in place"),
    (FoldsByVersion, "parity", "through .data"),
]


@pytest.mark.parametrize(
    ("defect", "law", "sentence"), DEFECTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_defect_is_caught_under_the_name_of_its_law(defect, law: str, sentence: str) -> None:
    torch.manual_seed(0)
    sizes = SMALL if issubclass(defect, TransformerEncoder) else {"hidden_size": 8, "out_features": 7}
    with pytest.raises(AssertionError, match=f"{defect.__name__} breaks the {law} law: .*{sentence}"):
        check_trajectory_encoder(defect(5, **sizes))


def test_a_cache_slot_off_by_one_breaks_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yamame.trajectory.transformer.CacheStep", SlotOffByOne)
    with pytest.raises(AssertionError, match="TransformerEncoder breaks the parity law"):
        check_trajectory_encoder(ENCODERS["transformer"]())


def test_a_mask_that_looks_ahead_breaks_causality(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(starts, *, window, sinks):
        return torch.ones(1, 1, starts.shape[1], starts.shape[1], dtype=torch.bool)

    monkeypatch.setattr("yamame.trajectory.attention.visibility", everything)
    with pytest.raises(AssertionError, match="TransformerEncoder breaks the causality law"):
        check_trajectory_encoder(ENCODERS["transformer"]())


def test_an_encoder_called_memoryless_must_not_remember() -> None:
    with pytest.raises(AssertionError, match="memory law: outputs of an encoder without memory depend"):
        check_trajectory_encoder(ENCODERS["gru"](), has_memory=False)


def test_the_message_names_place_size_and_tolerance() -> None:
    with pytest.raises(AssertionError, match=r"\(row \d+, timestep \d+: off by \S+e[-+]\d+, allowed 1e-05\)"):
        check_trajectory_encoder(MixesRows(5, hidden_size=8, out_features=7))


class NaNAfterReset(GRUEncoder):
    def advance(self, x, step_index, starts, memory):
        return super().advance(x, step_index, starts, memory) * torch.nan


def test_nan_never_counts_as_equal() -> None:
    with pytest.raises(AssertionError, match="off by inf"):
        check_trajectory_encoder(NaNAfterReset(5, hidden_size=8, out_features=7))
