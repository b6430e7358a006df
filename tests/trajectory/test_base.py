"""What every trajectory encoder has from its base: keys, modes, starts and the life of the acting
memory.
"""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import LossModule
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import (
    DeltaNetEncoder,
    GRUEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MemoEncoder,
    MemorylessEncoder,
    RSMEncoder,
    TrajectoryEncoder,
    TrajectoryKeys,
    TransformerEncoder,
    WindowEncoder,
    segment_positions,
    segment_starts,
    separate_memory,
)

MAKE = {
    "transformer": lambda **kw: TransformerEncoder(
        3, d_model=8, num_heads=2, num_layers=2, dropout=0.0, **kw
    ),
    "gru": lambda **kw: GRUEncoder(3, hidden_size=8, num_layers=2, out_features=8, **kw),
    "lstm": lambda **kw: LSTMEncoder(3, hidden_size=8, num_layers=2, out_features=8, **kw),
    "linear_recurrent": lambda **kw: LinearRecurrentEncoder(3, d_model=8, **kw),
    "lru": lambda **kw: LRUEncoder(3, d_model=8, **kw),
    "deltanet": lambda **kw: DeltaNetEncoder(3, d_model=8, num_layers=1, **kw),
    "rsm": lambda **kw: RSMEncoder(3, d_model=8, num_heads=2, dropout=0.0, segment_length=4, **kw),
    "memo": lambda **kw: MemoEncoder(
        3, d_model=8, num_heads=2, dropout=0.0, segment_length=4, jitter=0.0, **kw
    ),
    "window": lambda **kw: WindowEncoder(3, window=5, d_model=8, **kw),
    "memoryless": lambda **kw: MemorylessEncoder(3, d_model=8, **kw),
}
REMEMBERING = [name for name in MAKE if name != "memoryless"]


class CountingEnv(EnvBase):
    """Four envs that show nothing but their number of steps."""

    def __init__(self) -> None:
        super().__init__(batch_size=torch.Size([4]))
        self.observation_spec = Composite(count=Unbounded((4, 1)), shape=(4,))
        self.action_spec, self.reward_spec = Unbounded((4, 1)), Unbounded((4, 1))

    def _reset(self, tensordict=None, **kwargs):
        return TensorDict({"count": torch.zeros(4, 1)}, [4])

    def _step(self, tensordict):
        flag = torch.zeros(4, 1, dtype=torch.bool)
        return TensorDict(
            {"count": torch.ones(4, 1), "reward": torch.zeros(4, 1), "done": flag}, [4]
        )

    def _set_seed(self, seed):
        return seed


every = pytest.mark.parametrize("name", MAKE)
remembering = pytest.mark.parametrize("name", REMEMBERING)


def rows(num_rows: int, *, start: bool, step: int = 0, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    return TensorDict(
        {
            "features": torch.randn(num_rows, 3, generator=generator),
            "is_init": torch.full((num_rows, 1), start),
            "step_index": torch.full((num_rows, 1), step),
        },
        [num_rows],
    )


def context(encoder: TrajectoryEncoder, td: TensorDict) -> torch.Tensor:
    return encoder(td.clone())["context"]


def sequence(encoder: TrajectoryEncoder, td: TensorDict) -> torch.Tensor:
    with torch.no_grad(), set_recurrent_mode(True):
        return context(encoder, td)


def test_starts_and_positions_agree_with_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    is_init = torch.rand(20, 15, generator=generator) < 0.2
    mask = torch.rand(20, 15, generator=generator) < 0.7
    starts = segment_starts(mask.shape, is_init, mask, device=mask.device)
    positions = segment_positions(starts)
    for b in range(20):
        position = -1
        for t in range(15):
            real, before = bool(mask[b, t]), t > 0 and bool(mask[b, t - 1])
            begins = t == 0 or (real and (bool(is_init[b, t]) or not before))
            position = 0 if begins else position + 1
            assert bool(starts[b, t]) == begins
            assert int(positions[b, t]) == position


def test_without_is_init_and_mask_only_the_first_timestep_starts() -> None:
    starts = segment_starts(torch.Size((2, 3)), None, None, device=torch.device("cpu"))
    assert starts.tolist() == [[True, False, False]] * 2


@every
def test_missing_optional_keys_mean_one_whole_sequence(name: str) -> None:
    encoder = MAKE[name]().eval()
    features = torch.randn(2, 6, 3)
    full = TensorDict(
        {
            "features": features,
            "is_init": torch.zeros(2, 6, 1).bool(),
            "mask": torch.ones(2, 6, 1).bool(),
            "step_index": torch.arange(6).expand(2, 6).unsqueeze(-1),
        },
        [2, 6],
    )
    full["is_init"][:, 0] = True
    bare = TensorDict({"features": features}, [2, 6])
    assert torch.equal(sequence(encoder, full), sequence(encoder, bare))


def test_missing_step_index_counts_from_the_last_start_in_both_modes() -> None:
    encoder = MAKE["transformer"]().eval()
    is_init = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]]).bool().unsqueeze(-1)
    td = TensorDict({"features": torch.randn(2, 6, 3), "is_init": is_init}, [2, 6])
    told = td.clone().set("step_index", segment_positions(is_init.squeeze(-1)).unsqueeze(-1))
    shifted = told.clone().set("step_index", told["step_index"] + 1)
    acting = torch.stack([context(encoder, td[:, t]) for t in range(6)], 1)
    assert torch.equal(sequence(encoder, td), sequence(encoder, told))
    assert torch.allclose(acting, sequence(encoder, told), atol=1e-5)
    assert not torch.allclose(sequence(encoder, shifted), sequence(encoder, told), atol=1e-3)


@every
def test_a_step_without_is_init_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"Encoder: a step must have key 'is_init' .* got \['features'"
    ):
        MAKE[name]()(rows(2, start=True).exclude("is_init"))


@every
def test_a_plain_tensor_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"tensordict must be a TensorDict, got .*Tensor"):
        MAKE[name]()(torch.zeros(2, 3))


@every
def test_a_batch_without_features_is_refused_with_the_keys_it_has(name: str) -> None:
    encoder = MAKE[name]()
    batch = rows(2, start=True).exclude("features")
    for is_parallel in (True, False):
        with (
            set_recurrent_mode(is_parallel),
            pytest.raises(ValueError, match=r"'features'.*is_init"),
        ):
            encoder(batch)


@every
def test_keys_can_be_renamed_and_nested(name: str) -> None:
    keys = TrajectoryKeys(
        ("agent", "x"), ("agent", "t"), ("agent", "init"), ("agent", "real"), ("agent", "h")
    )
    torch.manual_seed(0)
    usual = MAKE[name]().eval()
    torch.manual_seed(0)
    renamed = MAKE[name](keys=keys).eval()
    assert renamed.in_keys == [("agent", "x"), ("agent", "t"), ("agent", "init")]
    assert renamed.out_keys == [("agent", "h")]
    td = TensorDict({"features": torch.randn(2, 5, 3), "mask": torch.ones(2, 5, 1).bool()}, [2, 5])
    td["mask"][1, :2] = False
    td["is_init"], td["step_index"] = torch.zeros(2, 5, 1).bool(), torch.arange(10).view(2, 5, 1)
    named = {"x": "features", "t": "step_index", "init": "is_init", "real": "mask"}
    nested = TensorDict({"agent": {new: td[old] for new, old in named.items()}}, [2, 5])
    with torch.no_grad(), set_recurrent_mode(True):
        found = renamed(nested)["agent", "h"]
    assert torch.equal(found, sequence(usual, td))


@every
def test_any_leading_shape_is_taken(name: str) -> None:
    encoder = MAKE[name]().eval()
    td = TensorDict({"features": torch.randn(2, 3, 4, 3)}, [2, 3, 4])
    assert torch.allclose(
        sequence(encoder, td), sequence(encoder, td.reshape(6, 4)).unflatten(0, (2, 3)), atol=1e-6
    )
    assert torch.allclose(sequence(encoder, td[0, 0]), sequence(encoder, td)[0, 0], atol=1e-6)
    acting = rows(6, start=True)
    expected = context(encoder, acting).unflatten(0, (2, 3))
    encoder.memory = None
    assert torch.allclose(context(encoder, acting.reshape(2, 3)), expected, atol=1e-6)
    encoder.memory = None
    assert torch.allclose(context(encoder, acting[0]), expected[0, 0], atol=1e-6)


@remembering
def test_memory_is_neither_parameter_nor_buffer_and_appears_at_the_first_step(name: str) -> None:
    encoder = MAKE[name]().eval()
    names = set(encoder.state_dict())
    assert encoder.memory is None
    sequence(encoder, TensorDict({"features": torch.randn(2, 5, 3)}, [2, 5]))
    assert encoder.memory is None
    encoder(rows(2, start=True))
    assert encoder.memory.batch_size == (2,)
    assert set(encoder.state_dict()) == names
    assert set(TensorDict.from_module(encoder).flatten_keys(".").keys()) == names


@remembering
def test_another_number_of_envs_is_refused_unless_all_of_them_start(name: str) -> None:
    encoder = MAKE[name]().eval()
    encoder(rows(2, start=True))
    before = encoder.memory.clone()
    mixed = rows(3, start=True)
    mixed["is_init"][1] = False
    with pytest.raises(
        ValueError, match=r"the number of envs must stay 2 until all .* start an episode .* got 3"
    ):
        encoder(mixed)
    assert (encoder.memory == before).all()
    context_of_three = context(encoder, rows(3, start=True))
    encoder.memory = None
    assert torch.equal(context_of_three, context(encoder, rows(3, start=True)))


@every
@pytest.mark.parametrize(
    ("num_x", "num_envs", "num_starts"), [(1, 5, 1), (3, 5, 5), (5, 1, 5), (5, 5, 1)]
)
def test_a_step_is_of_as_many_envs_as_its_memory(
    name: str, num_x: int, num_envs: int, num_starts: int
) -> None:
    encoder = MAKE[name]().eval()
    memory = encoder.grow(encoder.init_memory(num_envs))
    with pytest.raises(
        ValueError, match=rf"be of equally many envs.*got \({num_x}, {num_envs}, {num_starts}\)"
    ):
        encoder.step(torch.zeros(num_x, 3), memory, torch.ones(num_starts, dtype=torch.bool))


def test_a_cache_without_room_is_refused() -> None:
    encoder = MAKE["transformer"]()
    with pytest.raises(ValueError, match=r"slots of memory must be positive: grow\(memory\)"):
        encoder.step(torch.zeros(2, 3), encoder.init_memory(2), torch.ones(2, dtype=torch.bool))


@every
@torch.no_grad()
def test_a_reserved_memory_has_room_for_as_many_steps_as_were_asked_for(name: str) -> None:
    encoder, ordinary = (MAKE[name]().eval() for _ in range(2))
    ordinary.load_state_dict(encoder.state_dict())
    assert not encoder.reserve(1)  # there is no memory yet
    starts = torch.ones(2, dtype=torch.bool)
    for step in range(3):
        for each in (encoder, ordinary):
            context(each, rows(2, start=step == 0, step=step, seed=step))
    assert encoder.reserve(150)
    memory, shapes = encoder.memory, {key: value.shape for key, value in encoder.memory.items()}
    for step in range(3, 153):
        seen = rows(2, start=False, step=step, seed=step)
        found, memory = encoder.step(
            seen["features"], memory, ~starts, seen["step_index"].flatten()
        )
        torch.testing.assert_close(found, context(ordinary, seen))
    assert {key: value.shape for key, value in memory.items()} == shapes
    encoder.memory = memory
    assert encoder.reserve(1)
    grows = name in ("transformer", "memo")
    assert ({key: value.shape for key, value in ordinary.memory.items()} != shapes) <= grows


class MeanOfAll(TrajectoryEncoder):
    """A stranger's encoder whose memory has a length: the mean of all features, kept one by one."""

    def init_memory(self, num_envs, *, capacity=None, device=None):
        memory = {
            "seen": torch.zeros(num_envs, 0, 3, device=device),
            "count": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }
        return TensorDict(memory, [num_envs])

    def grow(self, memory):
        if memory["seen"].shape[1] > memory["count"].max():
            return memory
        larger = torch.nn.functional.pad(memory["seen"], (0, 0, 0, 1))
        return TensorDict({"seen": larger, "count": memory["count"]}, memory.batch_size)

    def step(self, x, memory, is_init, step_index=None):
        self.check_step(x, memory, is_init)
        count = memory["count"].masked_fill(is_init, 0)
        place = torch.arange(memory["seen"].shape[1])
        seen = torch.where(
            (place == count.unsqueeze(1)).unsqueeze(-1), x.unsqueeze(1), memory["seen"]
        )
        is_past = place > count.unsqueeze(1)
        seen = seen.masked_fill(is_past.unsqueeze(-1), 0)  # slots of the episode before
        mean = seen.sum(1) / (count + 1).unsqueeze(1)
        return mean, TensorDict({"seen": seen, "count": count + 1}, memory.batch_size)


def test_a_strangers_encoder_of_two_methods_and_a_growing_memory_keeps_the_laws() -> None:
    encoder = MeanOfAll(3, 3)
    check_trajectory_encoder(encoder)
    context(encoder, rows(2, start=True))
    assert encoder.reserve(1)
    assert not encoder.reserve(2)  # which cannot be told


@every
def test_a_nested_stream_cannot_touch_a_memory(name: str) -> None:
    encoder, undisturbed = MAKE[name]().eval(), MAKE[name]().eval()
    undisturbed.load_state_dict(encoder.state_dict())
    outputs = []
    for policy, disturbed in (
        (torch.nn.Sequential(encoder), True),
        (torch.nn.Sequential(undisturbed), False),
    ):
        steps = [context(policy[0], rows(2, start=t == 0, step=t, seed=t)) for t in range(4)]
        if disturbed:
            with torch.inference_mode(), separate_memory(policy):
                assert policy[0].memory is None
                context(policy[0], rows(5, start=True, seed=9))
        steps += [context(policy[0], rows(2, start=False, step=t, seed=t)) for t in range(4, 8)]
        outputs.append(torch.stack(steps))
    assert torch.equal(*outputs)


@remembering
def test_a_memory_is_the_callers_to_keep_and_a_step_is_a_function_of_it(name: str) -> None:
    encoder = MAKE[name]().eval()
    generator = torch.Generator().manual_seed(0)
    x, start = torch.randn(6, 3, 3, generator=generator), torch.zeros(3).bool()
    with torch.no_grad():
        memory = encoder.init_memory(3, capacity=8)
        for t in range(3):
            _, memory = encoder.step(x[t], encoder.grow(memory), start)
        branches = [memory.clone(), memory.clone()]
        for t in range(3, 6):
            for i, value in enumerate((x[t], -x[t])):
                output, branches[i] = encoder.step(value, encoder.grow(branches[i]), start)
        again = memory.clone()
        for t in range(3, 6):
            repeated, again = encoder.step(-x[t], encoder.grow(again), start)
    assert torch.equal(output, repeated)
    assert (branches[1] == again).all()
    assert not (branches[0] == again).all()
    assert encoder.memory is None


@every
def test_a_memory_may_live_in_the_tensordict_of_a_rollout(name: str) -> None:
    torch.manual_seed(0)
    kept = MAKE[name]().eval()
    carried = MAKE[name](keys=TrajectoryKeys(memory="state")).eval()
    carried.load_state_dict(kept.state_dict())
    assert "state" in carried.in_keys
    assert ("next", "state") in carried.out_keys
    td = TransformedEnv(CountingEnv(), carried.make_tensordict_primer()).reset()
    if name == "memoryless":
        assert "state" not in td
        return
    assert all((value == 0).all() for value in td["state"].values(True, True))
    for t in range(9):
        seen = rows(4, start=t == 0, step=t, seed=t)
        seen["is_init"][t % 4] = True
        td.update(seen)
        before = td["state"].clone()
        # Masked slots of a larger cache change the order of sums.
        assert torch.allclose(carried(td)["context"], context(kept, seen), atol=1e-6)
        assert (td["state"] == before).all()
        td["state"] = td["next", "state"]
    assert carried.memory is None
    with pytest.raises(
        ValueError, match=r"'state' must be in the tensordict of a step \(make_tensordict_primer"
    ):
        carried(rows(4, start=False))


@pytest.mark.parametrize("name", ["transformer", "memo"])
def test_a_memory_without_a_largest_size_stays_out_of_the_tensordict(name: str) -> None:
    keys = TrajectoryKeys(memory="state")
    with pytest.raises(
        ValueError,
        match=r"Encoder: keys.memory must be None, .* grows without end; set context_length",
    ):
        MAKE[name](keys=keys, context_length=None)
    MAKE[name](keys=keys, context_length=8)
    MAKE[name](context_length=None)


def test_an_encoder_that_does_not_declare_the_size_of_its_memory_is_refused_at_its_first_step():
    class Undeclared(TransformerEncoder):
        def limit_memory(self, length, setting):
            pass

    encoder = Undeclared(3, d_model=8, num_heads=2, keys=TrajectoryKeys(memory="state"))
    with pytest.raises(ValueError, match="Undeclared: memory must not grow; call limit_memory"):
        encoder(rows(2, start=True))


def test_the_primer_of_a_memory_in_the_module_adds_nothing() -> None:
    env = TransformedEnv(CountingEnv(), MAKE["gru"]().make_tensordict_primer())
    assert set(env.reset().keys()) == set(CountingEnv().reset().keys())


class OnlySteps(GRUEncoder):
    """As a user's own encoder may be: a step and a memory, and no parallel pass."""

    parallel, takes_num_segments = TrajectoryEncoder.parallel, False


def test_an_encoder_that_only_steps_is_trained_through_its_steps() -> None:
    torch.manual_seed(0)
    fast, slow = (
        GRUEncoder(3, hidden_size=8, out_features=8),
        OnlySteps(3, hidden_size=8, out_features=8),
    )
    slow.load_state_dict(fast.state_dict())
    td = TensorDict(
        {"features": torch.randn(4, 12, 3), "is_init": torch.rand(4, 12, 1) < 0.2}, [4, 12]
    )
    gradients = []
    for encoder in (fast, slow):
        with set_recurrent_mode(True):
            context(encoder, td).pow(2).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters()]))
    # two orders of the same float32 sums over 48 timesteps
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


@remembering
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_copies_start_empty_and_leave_the_original_its_memory(name: str, duplicate) -> None:
    encoder = MAKE[name]().eval()
    encoder(rows(2, start=True))
    twin = duplicate(encoder)
    assert twin.memory is None
    assert encoder.memory.batch_size == (2,)
    assert all(
        torch.equal(value, twin.state_dict()[key]) for key, value in encoder.state_dict().items()
    )


@remembering
def test_memory_survives_every_kind_of_weight_change(name: str) -> None:
    def loaded(encoder: TrajectoryEncoder) -> None:
        encoder.load_state_dict({key: value * 1.1 for key, value in encoder.state_dict().items()})

    def pushed(encoder: TrajectoryEncoder) -> None:
        TensorDict.from_module(encoder).data.mul_(1.1)

    def optimized(encoder: TrajectoryEncoder) -> None:
        sum(p.sum() for p in encoder.parameters()).backward()
        torch.optim.AdamW(encoder.parameters()).step()

    for change in (loaded, pushed, optimized):
        encoder = MAKE[name]().eval()
        encoder(rows(2, start=True))
        before = encoder.memory.clone()
        change(encoder)
        assert (before == encoder.memory).all()
        encoder(rows(2, start=False, step=1, seed=1))
        assert not (before == encoder.memory).all()


@remembering
def test_functional_weights_are_the_ones_that_act(name: str) -> None:
    encoder = MAKE[name]().eval()
    other = MAKE[name]().eval()
    td = TensorDict({"features": torch.randn(2, 5, 3)}, [2, 5])
    own, expected = sequence(encoder, td), sequence(other, td)
    with TensorDict.from_module(other).data.to_module(encoder):
        assert torch.equal(sequence(encoder, td), expected)
    assert torch.equal(sequence(encoder, td), own)


@remembering
def test_a_snapshot_continues_exactly(name: str) -> None:
    encoder = MAKE[name]().eval()
    for step in range(40):
        encoder(rows(2, start=step == 0, step=step, seed=step))
    snapshot = encoder.memory.clone()
    rest = [context(encoder, rows(2, start=False, step=t, seed=t)) for t in range(40, 80)]
    resumed = copy.deepcopy(encoder)
    resumed.memory = snapshot
    again = [context(resumed, rows(2, start=False, step=t, seed=t)) for t in range(40, 80)]
    assert torch.equal(torch.stack(rest), torch.stack(again))


@every
def test_steps_record_no_graph_and_work_in_and_out_of_inference_mode(name: str) -> None:
    encoder, plain = MAKE[name]().eval(), MAKE[name]().eval()
    plain.load_state_dict(encoder.state_dict())
    for step in range(70):
        td = rows(3, start=step == 0, step=step, seed=step)
        with torch.inference_mode(step % 2 == 0):
            found = context(encoder, td)
        assert not found.requires_grad
        assert torch.equal(found, context(plain, td))
    sequence_td = TensorDict({"features": torch.randn(2, 5, 3)}, [2, 5])
    with set_recurrent_mode(True):
        context(encoder.train(), sequence_td).sum().backward()


@every
def test_a_loss_module_gets_the_parallel_pass_by_itself(name: str) -> None:
    class Loss(LossModule):
        encoder: TrajectoryEncoder
        encoder_params: TensorDict
        target_encoder_params: TensorDict

        def __init__(self, encoder):
            super().__init__()
            self.convert_to_functional(encoder, "encoder", create_target_params=False)

        def forward(self, tensordict):
            with self.encoder_params.to_module(self.encoder, preserve_module_state=False):
                found = self.encoder(tensordict.clone())["context"]
            return TensorDict({"loss": found.pow(2).mean(), "context": found})

    torch.manual_seed(0)
    encoder = MAKE[name]()
    td = TensorDict({"features": torch.randn(2, 5, 3)}, [2, 5])
    expected = sequence(copy.deepcopy(encoder), td)
    loss = Loss(encoder)
    out = loss(td)
    assert torch.allclose(out["context"], expected, atol=1e-6)
    out["loss"].backward()
    gradients = [
        value.grad for value in loss.encoder_params.values(True, True) if value.requires_grad
    ]
    assert gradients
    assert all(gradient is not None for gradient in gradients)


@every
def test_reduced_precision_does_not_change_much(name: str) -> None:
    torch.manual_seed(0)
    encoder = MAKE[name]().eval()
    td = TensorDict(
        {"features": torch.randn(2, 40, 3), "is_init": torch.zeros(2, 40, 1).bool()}, [2, 40]
    )
    exact = sequence(encoder, td)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parallel = sequence(encoder, td)
        steps = torch.stack([context(encoder, td[:, t]) for t in range(40)], 1)
        with set_recurrent_mode(True):
            context(encoder.train(), td).float().sum().backward()
    # bfloat16 keeps 8 bits: errors of a few times 2^-8 on outputs of order one.
    for found in (parallel, steps):
        assert 1e-5 < (found - exact).abs().max() < 0.1
    encoder.eval()
    assert torch.isfinite(context(encoder, td[:, 0])).all()


@every
def test_a_whole_encoder_in_bfloat16_runs_in_both_modes(name: str) -> None:
    encoder = MAKE[name]().eval().bfloat16()
    td = TensorDict({"features": torch.randn(2, 6, 3).bfloat16()}, [2, 6])
    assert sequence(encoder, td).dtype == torch.bfloat16
    step = rows(2, start=True)
    assert (
        context(encoder, step.set("features", step["features"].bfloat16())).dtype == torch.bfloat16
    )


@every
def test_features_of_another_dtype_than_the_weights_are_refused(name: str) -> None:
    encoder = MAKE[name]().eval()
    batch = TensorDict({"features": torch.randn(2, 6, 3).double()}, [2, 6])
    step = rows(2, start=True)
    step["features"] = step["features"].double()
    for run, wrong in ((sequence, batch), (context, step)):
        with pytest.raises(ValueError, match=r"weights, torch\.float32, got torch\.float64"):
            run(encoder, wrong)
    # The control: in the dtype of both, the context has it, too.
    encoder.double()
    assert sequence(encoder, batch).dtype == torch.float64
    assert context(encoder, step).dtype == torch.float64


@every
def test_features_of_another_size_are_refused(name: str) -> None:
    encoder = MAKE[name]().eval()
    batch = TensorDict({"features": torch.randn(2, 6, 5)}, [2, 6])
    step = rows(2, start=True).set("features", torch.randn(2, 5))
    for run, wrong in ((sequence, batch), (context, step)):
        with pytest.raises(ValueError, match=r"must end in 3, the in_features of the encoder"):
            run(encoder, wrong)


@every
def test_keys_are_an_object(name: str) -> None:
    with pytest.raises(ValueError, match=r"keys must be TrajectoryKeys.*got 'memory'"):
        MAKE[name](keys="memory")


@pytest.mark.parametrize("make", [GRUEncoder, LSTMEncoder])
def test_recurrent_layers_read_sequences_in_float32_under_autocast_on_a_cpu(make) -> None:
    encoder, seen = make(3, hidden_size=8, out_features=4), []
    whole = encoder.function
    encoder.function = lambda *args: (
        seen.append((args[0].dtype, torch.is_autocast_enabled("cpu"))) or whole(*args)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sequence(encoder, TensorDict({"features": torch.randn(2, 5, 3).bfloat16()}, [2, 5]))
    assert seen == [(torch.float32, False)]
