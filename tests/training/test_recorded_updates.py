"""Recorded updates: nothing in them is read back or baked in, few are kept, and they train as
ordinary ones do.
"""

import copy
from contextlib import nullcontext
from functools import cache

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.execution.capturing import capturing, recording
from yamame.execution.recorded_updates import make_capturable, refuse_obstacles
from yamame.execution.recorder import Compiled
from yamame.files.checkpoint import Checkpointer
from yamame.replay import Relabel, SequencePacking, pack
from yamame.runs.build import build_agent, build_env, build_learner
from yamame.training.guard import NonFiniteGuard
from yamame.training.learner import Learner
from yamame.training.prefetch import with_num_segments
from yamame.trajectory import attention

SMALL = [
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "encoder.num_layers=1",
    "timestep_encoder.hidden_size=16",
    "timestep_encoder.out_size=16",
    "agent.actor.hidden_size=16",
    "agent.critic.hidden_size=16",
    "schedule.warmup_updates=10",
    # Where bfloat16 is multiplied, it is the default, and rounds away what the laws compare.
    "schedule.autocast=null",
]
ACTIONS = {"discrete": [], "continuous": ["env=wind"]}
LENGTHS = (31, 12, 9, 25, 6)
"""Of the trajectories of a batch: five of them fit into three rows."""


@cache
def composed(*choices):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", overrides=["optimizer=adamw", *choices])


def configured(*overrides):
    other_encoder = any(text.startswith(("encoder=", "agent=separate")) for text in overrides)
    small = [text for text in SMALL if not (other_encoder and text.startswith("encoder."))]
    values = [text for text in (*small, *overrides) if "." in text.split("=")[0]]
    choices = [text for text in overrides if text not in values]
    return OmegaConf.merge(composed(*choices), OmegaConf.from_dotlist(values))


def sequences(cfg, seed, *, counted=False, packing=None):
    """A relabelled and packed batch, in which memories begin inside sequences; the same shape for
    every seed.
    """
    torch.manual_seed(seed)
    rollout = build_env(cfg, num_envs=5, seed=seed).rollout(30, break_when_any_done=False)
    batch = pack(rollout, split=False)
    if "goal" in batch.keys():
        relabelled = Relabel("all")(batch)
        batch[:, : relabelled.shape[1]] = relabelled
        # The first action is allowed everywhere, the others here and there.
        batch["action_mask"] = torch.rand(5, 31, 5) < torch.tensor([1.0, 0.7, 0.7, 0.7, 0.7])
    batch["is_init"][:, 0] = True
    batch["mask"] = (torch.arange(31) < torch.tensor(LENGTHS).unsqueeze(1)).unsqueeze(-1)
    packed = (packing or SequencePacking())(batch)
    assert packed["is_init"][:, 1:].any()
    return with_num_segments(packed) if counted else packed


def learner_of(cfg, *, device="cpu"):
    torch.manual_seed(0)
    cfg.device = "cpu"
    env = build_env(cfg, num_envs=2, seed=0)
    cfg.device = device
    return build_learner(cfg, build_agent(cfg, env))


def one_hot(index, num_classes):
    """`torch.nn.functional.one_hot` as it is on a GPU, where the host does not look at the
    classes.
    """
    return torch.zeros(*index.shape, num_classes, dtype=torch.int64).scatter_(
        -1, index.unsqueeze(-1), 1
    )


class OnlyOn(TorchDispatchMode):
    """Fails at operations with a tensor on another device, as copies from the host are."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [
            value for value in tree_leaves((args, kwargs, out)) if isinstance(value, torch.Tensor)
        ]
        if any(value.device.type != self.device for value in tensors):
            raise AssertionError(
                f"{func} in what is recorded has a tensor that is not on {self.device}"
            )
        return out


@pytest.mark.parametrize(
    ("actions", "queries", "setting"),
    [
        ("discrete", 8, "schedule.autocast=null"),
        ("continuous", 64, "schedule.autocast=null"),
        ("discrete", 64, "schedule.autocast=bfloat16"),
        ("continuous", 8, "schedule.autocast=bfloat16"),
        ("discrete", 64, "encoder.sigma_reparam=true"),
        ("continuous", 8, "encoder.sigma_reparam=true"),
    ],
)
def test_a_recorded_update_reads_nothing_back(
    monkeypatch, nothing_read_back, actions, queries, setting
):
    if queries < 64:  # attention in blocks, computed again in the backward pass
        monkeypatch.setattr(attention, "_FEWEST_QUERIES", queries)
        monkeypatch.setattr(attention, "_LARGEST_MASK", 0)
    check_that_nothing_is_read_back(
        monkeypatch, nothing_read_back, configured(*ACTIONS[actions], setting)
    )


@pytest.mark.parametrize("choice", ["encoder=lstm", "agent=separate"])
def test_a_recorded_update_of_a_recurrent_encoder_reads_nothing_back(
    monkeypatch, nothing_read_back, choice
):
    check_that_nothing_is_read_back(monkeypatch, nothing_read_back, configured(choice))


def check_that_nothing_is_read_back(monkeypatch, nothing_read_back, cfg):
    learner, batch = learner_of(cfg), sequences(cfg, 0)
    make_capturable(learner.optimizer)
    learner.update(batch)
    monkeypatch.setattr(nn.functional, "one_hot", one_hot)
    with recording(), nothing_read_back():
        learner._step(learner._gradients(batch)["grad_norm"])
    with pytest.raises(AssertionError, match="in what is recorded"), nothing_read_back():
        learner._gradients(batch)  # checks arguments
    with (
        recording(),
        pytest.raises(AssertionError, match="in what is recorded"),
        nothing_read_back(),
    ):
        learner.update(batch)  # the guard looks at the loss


@cache
def on_meta(*overrides):
    """A learner and a batch where there are no numbers to read."""
    cfg = configured(*overrides, "optimizer.fused=false")
    batch = sequences(cfg, 0, counted=True).to("meta")
    learner = learner_of(cfg, device="meta")
    learner.precision = nullcontext  # there is no autocast to a meta device
    return learner, batch


@pytest.mark.parametrize(
    "overrides",
    [
        *ACTIONS.values(),
        ["agent=amago2"],
        ["agent=bc"],
        ["agent=naive"],
        ["agent/returns=binned"],
        ["encoder.window=8", "encoder.positions=rotary"],
        ["encoder.positions=learned", "encoder.num_positions=40"],
        ["encoder=window"],
    ],
    ids=" ".join,
)
def test_a_recorded_update_needs_no_data_and_nothing_of_the_host(monkeypatch, overrides):
    monkeypatch.setattr(
        torch.Tensor, "is_set_to", lambda self, other: self is other
    )  # which has no meta version
    learner, batch = on_meta(*overrides)
    batch = batch.exclude("num_segments")
    with recording():
        learner._gradients(batch)  # what does not change is copied to the device once
        with OnlyOn("meta"):
            norm = learner._gradients(batch)["grad_norm"]
            nn.utils.clip_grads_with_norm_(learner._parameters(), 1.0, norm)
            learner.loss.update_targets()
        # An optimizer that is not capturable counts its steps on the host.
        with pytest.raises(AssertionError, match="is not on meta"), OnlyOn("meta"):
            learner.optimizer.step()


@pytest.mark.parametrize(
    "overrides",
    [
        *ACTIONS.values(),
        ["agent=amago2"],
        ["agent=bc"],
        ["agent=naive"],
        ["agent=separate"],
        ["agent/returns=binned"],
        ["encoder.window=8", "encoder.positions=rotary"],
        ["encoder=gru"],
        ["encoder=lstm"],
        ["encoder=linear_recurrent"],
        ["encoder=lru"],
        ["encoder=deltanet"],
        ["encoder=memoryless"],
        ["encoder=window"],
    ],
    ids=" ".join,
)
def test_off_the_cpu_an_ordinary_update_reads_nothing_back_before_the_guard_does(overrides):
    learner, batch = on_meta(*overrides)
    metrics = learner._gradients(batch)
    with pytest.raises(RuntimeError, match="meta"):
        learner.guard.accepts({"loss": metrics["loss"]})
    if not any(
        name in " ".join(overrides)
        for name in ("linear_recurrent", "lru", "deltanet", "memoryless", "=window")
    ):
        with pytest.raises(RuntimeError, match="meta"):
            learner._gradients(batch.exclude("num_segments"))


def gradients(learner, batch):
    loss = learner._gradients(batch)["loss"]
    return [
        loss,
        *(p.grad for p in learner.optimizer.param_groups[0]["params"] if p.grad is not None),
    ]


@pytest.mark.parametrize("actions", ACTIONS)
def test_a_recorded_update_repeats_on_another_batch_what_an_ordinary_one_computes(
    monkeypatch, actions
):
    cfg = configured(*ACTIONS[actions])
    learner, one, other = learner_of(cfg), sequences(cfg, 0), sequences(cfg, 1)
    learner.update(one)
    monkeypatch.setattr(nn.functional, "one_hot", one_hot)
    state = copy.deepcopy(learner.loss.state_dict())
    keys = list(one.keys(True, True))

    def again(function, *args):
        """From the same statistics, with the same draws for dropout, actions and critics."""
        learner.loss.load_state_dict(state)
        learner.optimizer.zero_grad()
        torch.manual_seed(7)
        return [value.clone() for value in function(*args)]

    def compute(values):
        return gradients(learner, TensorDict(dict(zip(keys, values, strict=True)), one.batch_size))

    with recording():
        traced = make_fx(compute)([one[key] for key in keys])
    assert capturing() is False
    expected, first = again(gradients, learner, other), again(gradients, learner, one)
    found = again(traced, [other[key] for key in keys])
    # Positions come from a table or are computed, with vector instructions or without: a last bit.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (first[0] - expected[0]).abs() > 1e-2


def test_the_branches_taken_while_recording_give_the_same_numbers(monkeypatch):
    cfg = configured("encoder.dropout=0")
    learner, batch = learner_of(cfg), sequences(cfg, 0)
    batch["is_init"][:, 1:], batch["mask"][:] = False, True  # one memory for every row
    batch["action_mask"][:] = True
    learner.update(batch)
    state, found = copy.deepcopy(learner.loss.state_dict()), []
    for queries in (64, 8, 64):
        monkeypatch.setattr(attention, "_FEWEST_QUERIES", queries)
        monkeypatch.setattr(attention, "_LARGEST_MASK", 2**25 if queries == 64 else 0)
        learner.loss.load_state_dict(state)
        torch.manual_seed(7)
        with recording() if len(found) < 2 else nullcontext():
            found.append([value.clone() for value in gradients(learner, batch)])
    # Attention with a mask, with one for a few queries at a time, and causal without any: sums in
    # another order.
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], found[2], rtol=1e-4, atol=1e-5)


def state_of(network):
    """All parameters and buffers, those of target networks included."""
    parts = network.modules()
    return [value for part in parts for value in (*part.parameters(False), *part.buffers(False))]


class Rerun:
    """Records on a CPU: a replay calls the function again, and leaves its results where the first
    call did.
    """

    def __init__(self, *state):
        self.state, self.warmed, self.records, self.replays = state, 0, [], 0
        self.waits = []  # how much was recorded when it was called

    def warm(self, function):
        assert not capturing()
        result = function()
        self.warmed += result is not None  # the first half of an update
        return result

    def wait(self):
        self.waits.append(len(self.records))

    def record(self, function, *, reads=()):
        assert capturing()
        tensors = [
            value for part in self.state for value in tree_leaves(part()) if torch.is_tensor(value)
        ]
        before, rng = [value.detach().clone() for value in tensors], torch.get_rng_state()
        results = function()
        with torch.no_grad():
            for value, old in zip(tensors, before, strict=True):
                value.copy_(old)
        torch.set_rng_state(rng)
        self.records.append(function)

        def replay():
            self.replays += 1
            for key, value in function().items():
                results[key].copy_(value)

        return replay, results


def graphed(learner, **options):
    """The learner, recording without a GPU."""
    state = (
        learner.loss.state_dict,
        lambda: [list(s.values()) for s in learner.optimizer.state.values()],
    )
    recorder = Rerun(*state)
    learner._recorded = learner._record(recorder, **options)
    return recorder


def parameters(learner):
    return torch.cat([value.detach().flatten() for value in learner.loss.parameters()])


class SixOfSeven:
    """A guard that accepts six updates and refuses one."""

    def __init__(self):
        self.count = 0

    def accepts(self, metrics):
        self.count += 1
        return self.count % 7 != 0

    def refuse(self, metrics, *, step, evidence):
        pass


@pytest.mark.parametrize("actions", ACTIONS)
def test_recorded_and_ordinary_updates_train_alike(actions):
    cfg = configured(*ACTIONS[actions])
    batches = [sequences(cfg, seed) for seed in range(3)]
    batches += [*(batch[:2] for batch in batches), batches[0]]
    learners, metrics = (learner_of(cfg), learner_of(cfg)), ([], [])
    recorder = graphed(learners[1], warmup=2)
    start = parameters(learners[0])
    for learner, seen in zip(learners, metrics, strict=True):
        torch.manual_seed(3)
        learner.guard = SixOfSeven()
        for step in range(21):
            made = learner.update(batches[step % 7])
            assert bool(made) == (step % 7 != 6)
            seen.append([float(made.get(key, 0.0)) for key in ("loss", "grad_norm")])
    assert (recorder.warmed, len(recorder.records)) == (4, 4)
    # A learning rate that is a tensor has the precision of the weights.
    torch.testing.assert_close(
        parameters(learners[1]), parameters(learners[0]), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        torch.tensor(metrics[1]), torch.tensor(metrics[0]), rtol=1e-4, atol=1e-5
    )
    assert (parameters(learners[0]) - start).abs().max() > 1e-3


PADDED = SequencePacking(row_multiple=4, length_multiple=24)


@pytest.mark.parametrize("choice", ["encoder=transformer", "encoder=gru"])
def test_padded_batches_train_alike_whether_they_are_recorded_or_not(choice):
    cfg = configured(choice)
    batches = [sequences(cfg, seed, counted=True, packing=PADDED) for seed in range(3)]
    assert {tuple(batch.shape) for batch in batches} == {(4, 48)}
    assert {batch["num_segments"] for batch in batches} == {5}
    learners, losses = (learner_of(cfg), learner_of(cfg)), ([], [])
    recorder, start = graphed(learners[1], warmup=1), parameters(learners[0])
    for learner, seen in zip(learners, losses, strict=True):
        torch.manual_seed(3)
        seen.extend(float(learner.update(batches[step % 3])["loss"]) for step in range(6))
    assert recorder.replays == 2 * 5
    torch.testing.assert_close(
        parameters(learners[1]), parameters(learners[0]), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-4, atol=1e-5
    )
    assert (parameters(learners[0]) - start).abs().max() > 1e-3
    # What the host says is believed: as if no memory began inside of a sequence.
    batch, terms = batches[0].copy().set_non_tensor("num_segments", 4), []
    for told in (batches[0], batch):
        torch.manual_seed(3)
        with recording():
            terms.append(float(learners[0]._gradients(told)["loss"].detach()))
    assert abs(terms[0] - terms[1]) > 1e-3


def compiled_loss(learner, **options):
    """What `Learner` makes of its loss if it compiles."""
    return Compiled(lambda batch: dict(learner.loss(batch).items()), name="it", **options)


COMPILED = {
    "divided": ([], {}),
    "not counted": ([], {"counted": False}),
    "undivided": (["env=wind", "agent/returns=binned", "encoder.dropout=0"], {"whole": True}),
    "window": (
        ["env=wind", "encoder.window=8", "encoder.positions=rotary", "agent/returns=binned"],
        {},
    ),
    "linear": (["agent=amago2", "encoder=linear_recurrent"], {}),
    "last timesteps": (["agent=bc", "encoder=window"], {}),
    "memoryless": (["agent=naive", "encoder=memoryless"], {}),
    "sigma": (
        ["encoder.sigma_reparam=true", "encoder.positions=learned", "encoder.num_positions=40"],
        {},
    ),
    "gru": (["encoder=gru"], {}),
    "separate": (["agent=separate"], {}),
    "separate transformers": (["agent=separate", "encoder=transformer"], {}),
    "lower precision": (["schedule.autocast=bfloat16"], {}),
}
OFTEN = ("divided", "undivided")


# Of torch's own code while it compiles a function that says how it is differentiated.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "case",
    [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in COMPILED],
)
def test_the_loss_compiles_as_one_graph_with_the_same_terms_and_gradients(case):
    (overrides, options), graphs = COMPILED[case], []
    cfg = configured(*overrides)
    learner = learner_of(cfg)
    one, other = (sequences(cfg, seed, counted=options.get("counted", True)) for seed in (0, 1))
    if "whole" in options:
        for batch in (one, other):
            batch["is_init"][:, 1:], batch["mask"][:] = False, True
            batch.set_non_tensor("num_segments", len(batch))

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    ordinary, compiled = learner.loss, compiled_loss(learner, backend=backend, warmup=0)
    state = copy.deepcopy(learner.loss.state_dict())
    for batch in (one, other, one):
        found = []
        for function in (ordinary, compiled):
            learner.loss.load_state_dict(state)
            torch.manual_seed(7)
            learner._compute = function
            found.append([value.clone() for value in gradients(learner, batch)])
        # Where the number of segments is not known, what is compiled makes a mask: sums in another
        # order.
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
        assert len(graphs) == 1
    assert len(found[0]) > 20


def test_a_compiled_loss_is_what_recorded_updates_record():
    learners, losses, graphs = (sloped(), sloped()), ([], []), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    recorder, learner = graphed(learners[1]), learners[1]
    learner._compute = compiled_loss(learner, backend=backend)
    for learner, seen in zip(learners, losses, strict=True):
        for step in range(8):
            seen.append(float(learner.update(of_size(2, 1.0 + step))["loss"]))
            # The second of the three ordinary updates is the first that is compiled.
            assert len(graphs) == (learner is learners[1] and step > 0)
    assert (recorder.warmed, recorder.replays) == (3, 2 * 5)
    assert losses[0] == pytest.approx(losses[1])
    assert len(set(losses[0])) == 8


class Slope(nn.Module):
    """Pulls a weight down by the mean of ``batch["x"]``."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, batch):
        return TensorDict({"loss_a": batch["x"].mean() * self.weight})


def sloped(loss=None, **options):
    loss = Slope() if loss is None else loss
    optimizer = torch.optim.AdamW(loss.parameters(), lr=0.1, fused=True)
    guard = NonFiniteGuard(patience=100)
    return Learner(loss, optimizer, max_grad_norm=1.0, warmup_updates=4, guard=guard, **options)


def of_size(size, value=1.0):
    return TensorDict({"x": torch.full((size,), value)})


def test_a_structure_is_recorded_once_after_its_ordinary_updates():
    learner = sloped()
    recorder = graphed(learner, warmup=3)
    for count in range(1, 8):
        assert set(learner.update(of_size(2))) == {"loss_a", "loss", "grad_norm"}
        assert recorder.warmed == min(count, 3)
        assert len(recorder.records) == (2 if count > 3 else 0)
    assert recorder.replays == 2 * 4
    learner.update(of_size(3))
    learner.update(of_size(2).double())
    assert (recorder.warmed, len(recorder.records)) == (5, 2)


def test_the_first_recording_alone_is_told(capsys):
    learner = sloped()
    graphed(learner, warmup=1)
    learner.update(of_size(2))
    assert capsys.readouterr().err == ""
    for size in (2, 3, 3):
        learner.update(of_size(size))
    assert capsys.readouterr().err.count("Learner: records updates as CUDA graphs") == 1


def test_what_is_done_meanwhile_comes_while_the_recorded_loss_is_computed():
    learner, seen = sloped(), []
    recorder = graphed(learner, warmup=1)
    for _ in range(3):
        learner.update(of_size(2), meanwhile=lambda: seen.append(recorder.replays))
    assert seen == [
        0,
        1,
        3,
    ]  # of two replays each, one up to the gradients and one that moves the weights


def test_updates_that_are_not_made_are_no_warm_up_and_move_nothing():
    learner = sloped()
    recorder = graphed(learner, warmup=1)
    for _ in range(3):
        assert learner.update(of_size(2, torch.nan)) == {}
    assert (recorder.warmed, recorder.records) == (3, [])
    learner.update(of_size(2))
    moved, rate = learner.loss.weight.item(), learner.optimizer.param_groups[0]["lr"].item()
    assert learner.update(of_size(2, torch.nan)) == {}
    assert len(recorder.records) == 2
    assert (learner.loss.weight.item(), learner.optimizer.param_groups[0]["lr"].item()) == (
        moved,
        rate,
    )
    assert moved < 1.0


def test_the_one_unused_for_longest_gives_way_and_begins_anew():
    learner = sloped()
    recorder = graphed(learner, warmup=1, limit=2)

    def make(size, *, warmed, recorded):
        before = recorder.warmed, len(recorder.records)
        learner.update(of_size(size))
        assert (recorder.warmed - before[0], (len(recorder.records) - before[1]) // 2) == (
            warmed,
            recorded,
        )

    for size in (1, 2):
        make(size, warmed=1, recorded=0)
        make(size, warmed=0, recorded=1)
    make(1, warmed=0, recorded=0)
    make(3, warmed=1, recorded=0)
    assert recorder.waits == []
    make(3, warmed=0, recorded=1)  # in the place of 2
    make(1, warmed=0, recorded=0)
    make(2, warmed=1, recorded=0)
    make(2, warmed=0, recorded=1)  # in the place of 3
    make(1, warmed=0, recorded=0)
    # The device may still run what is dropped: it is waited for, before anything new is recorded.
    assert recorder.waits == [4, 6]


def test_metrics_are_not_overwritten_by_the_next_update():
    learner = sloped()
    graphed(learner, warmup=1)
    made = [learner.update(of_size(2, value))["loss"] for value in (1.0, 2.0, 3.0, 4.0)]
    assert len({float(loss) for loss in made}) == 4
    assert float(made[3]) > float(made[2]) > float(made[1])


def test_the_learning_rate_of_a_capturable_optimizer_follows_the_same_schedule():
    rates, learners = ([], []), (sloped(total_updates=9), sloped(total_updates=9))
    make_capturable(learners[1].optimizer)
    kept = learners[1].optimizer.param_groups[0]["lr"]
    for learner, seen in zip(learners, rates, strict=True):
        for _ in range(12):
            learner.update(of_size(2))
            seen.append(float(learner.optimizer.param_groups[0]["lr"]))
    assert learners[1].optimizer.param_groups[0]["lr"] is kept  # a graph reads where it was
    assert rates[1] == pytest.approx(rates[0], rel=1e-6)
    assert len(set(rates[0])) > 5
    torch.testing.assert_close(learners[1].loss.weight, learners[0].loss.weight)


@pytest.mark.parametrize("before", [True, False])
def test_a_resumed_learner_goes_on_with_tensors_of_its_own(tmp_path, before):
    saved, resumed = sloped(), sloped()
    if before:
        graphed(saved, warmup=1)
    for _ in range(5):
        saved.update(of_size(2))
    path = Checkpointer(tmp_path / "checkpoints").save(saved.components(), step=5)
    recorder = graphed(resumed, warmup=1)
    for _ in range(3):
        resumed.update(of_size(2))
    Checkpointer(tmp_path / "checkpoints").load(resumed.components(), which=path)
    group = resumed.optimizer.param_groups[0]
    assert torch.is_tensor(group["lr"])
    assert group["capturable"]
    warmed = recorder.warmed
    for _ in range(5):
        for learner in (saved, resumed):
            learner.update(of_size(2))
        assert float(group["lr"]) == pytest.approx(float(saved.optimizer.param_groups[0]["lr"]))
        torch.testing.assert_close(resumed.loss.weight, saved.loss.weight)
    assert recorder.warmed == warmed + 1  # what was recorded before is of no use


def test_without_a_gpu_recording_is_refused():
    with pytest.raises(UsageError, match=r"schedule\.cuda_graph:? must be false on cpu"):
        learner_of(configured("schedule.cuda_graph=true"))


def test_what_cannot_be_recorded_is_refused():
    learner = learner_of(configured("encoder.checkpoint_layers=true"))
    with pytest.raises(ValueError, match="cuda_graph must be false with checkpoint_layers"):
        refuse_obstacles("cuda_graph", learner.loss, learner.optimizer)
    learner = learner_of(configured())
    refuse_obstacles("cuda_graph", learner.loss, learner.optimizer)
    with pytest.raises(ValueError, match="cuda_graph must be false with SGD"):
        refuse_obstacles(
            "cuda_graph", learner.loss, torch.optim.SGD(learner.loss.parameters(), lr=0.1)
        )


@pytest.mark.parametrize(
    ("override", "obstacle"),
    [
        ("encoder.checkpoint_layers=true", "checkpoint_layers"),
        ("encoder=gru", "GRUEncoder"),
        ("encoder=lstm", "LSTMEncoder"),
        ("agent=separate", "GRUEncoder"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_the_key_of_its_setting(override, obstacle):
    message = rf"schedule\.compile:? must be false with {obstacle}"
    with pytest.raises(UsageError, match=message):
        learner_of(configured("schedule.compile=true", override))


def test_other_updates_are_compiled():
    assert learner_of(configured("schedule.compile=true"))._compute.__class__ is Compiled
    assert learner_of(configured())._compute.__class__ is not Compiled


@pytest.fixture
def record(monkeypatch, tape):
    """Lets a learner record as on a GPU, where no line of its code runs in a replay; returns the
    recorder.
    """
    monkeypatch.setattr(nn.functional, "one_hot", one_hot)
    # An optimizer tells the profiler when it begins, which is nothing that a tape can repeat.
    monkeypatch.setattr(torch.autograd.profiler, "record_function", lambda *_: nullcontext())

    def record(learner, recorder=None):
        recorder = tape() if recorder is None else recorder
        learner._recorded = learner._record(recorder, warmup=1)
        return recorder

    return record


MUON = ("optimizer=muon", "optimizer.smallest=8")
DECLARED = {
    "transformer": [],
    "sigma": [
        "encoder.sigma_reparam=true",
        "encoder.positions=rotary",
        "schedule.average_decay=0.9",
    ],
    "learned positions": ["encoder.positions=learned", "encoder.num_positions=40"],
    "window": ["encoder.window=8", "encoder.sinks=1"],
    "gru": ["encoder=gru"],
    "linear": ["encoder=linear_recurrent"],
    "muon": MUON,
    "last timesteps": ["encoder=window"],
    "memoryless": ["encoder=memoryless"],
    "rsm": ["encoder=rsm", "encoder.jitter=0"],
    "wind": ["env=wind", *MUON, "schedule.average_decay=0.9"],
    "token goals": ["goal_encoder=token"],
    "amago2": ["agent=amago2", "agent/returns=binned"],
    "clones": ["agent=bc"],
    "naive": ["agent=naive"],
    "separate": ["agent=separate", "encoder=transformer", "encoder.sigma_reparam=true"],
}
QUICK = ("sigma", "wind")


@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in DECLARED],
)
def test_replays_train_as_ordinary_updates_and_read_what_is_declared(record, monkeypatch, case):
    # In bfloat16, a last bit of a gradient would move Muon's weights a thousand times more.
    monkeypatch.setattr("yamame.training.muon.multiplies_bfloat16", lambda device: False)
    cfg, recorder, losses = configured(*DECLARED[case]), None, ([], [])
    batches, learners = (
        [sequences(cfg, seed) for seed in (0, 1)],
        (learner_of(cfg), learner_of(cfg)),
    )
    for learner, seen in zip(learners, losses, strict=True):
        started = [value.data_ptr() for value in state_of(learner.loss)]
        for step in range(8):
            if learner is learners[1] and step in (0, 4):
                recorder = record(learner, recorder)
            if learner is learners[1]:
                learner.evaluate(batches[1 - step % 2])  # of which no recording may notice anything
            torch.manual_seed(step)
            seen.append(float(learner.update(batches[step % 2])["loss"]))
    assert (recorder.warmed, recorder.records, recorder.replays) == (4, 4, 12)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        parameters(learners[1]), parameters(learners[0]), rtol=1e-3, atol=1e-5
    )
    # What is recorded later, with other weights and another learning rate, bakes in the same
    # numbers. As texts, because one of them is NaN.
    assert repr(recorder.numbers[2:]) == repr(recorder.numbers[:2])
    memory = [value.data_ptr() for value in state_of(learner.loss)]
    learner.evaluate(batches[0])
    learner.loss.load_state_dict(learners[0].loss.state_dict())
    learner.loss.eval().train()
    assert [value.data_ptr() for value in state_of(learner.loss)] == memory == started


def test_weights_prepared_before_a_replay_do_not_act_after_it(record):
    from yamame.trajectory.sigma import sigma_layers

    cfg = configured(*DECLARED["sigma"])
    learner, batch = learner_of(cfg), sequences(cfg, 0)
    recorder = record(learner)
    for _ in range(3):
        learner.update(batch)
    layer = sigma_layers(learner.averaged.network)[0]
    x = torch.ones(1, layer.weight.shape[1])

    with torch.no_grad():
        learner.averaged.network.prepare_to_act()
        prepared, replays = layer(x), recorder.replays
        learner.update(batch)
        assert recorder.replays > replays
        found = layer(x)
        learner.averaged.network.prepare_to_act()
        torch.testing.assert_close(found, layer(x))
        assert not torch.equal(found, prepared)


class Falling(Slope):
    """A slope that falls, as a number of Python."""

    factor = 1.0

    def forward(self, batch):
        return TensorDict({"loss_a": self.factor * batch["x"].mean() * self.weight})

    def update_targets(self):
        self.factor *= 0.9


class Held(Slope):
    """Reads a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.held = torch.ones(())

    def forward(self, batch):
        return TensorDict({"loss_a": self.held * batch["x"].mean() * self.weight})


def test_a_number_that_changes_and_a_tensor_that_is_not_declared_are_found(record):
    learner, recorder = sloped(loss=Falling()), None
    for _ in range(2):
        recorder = record(learner, recorder)
        for _ in range(3):
            learner.update(of_size(2))
    assert repr(recorder.numbers[2:]) != repr(recorder.numbers[:2])
    learner = sloped(loss=Held())
    record(learner)
    learner.update(of_size(2))
    with pytest.raises(AssertionError, match="neither declared nor made in the capture"):
        learner.update(of_size(2))


def test_a_replay_that_is_refused_leaves_its_evidence_whatever_was_recorded_last(tmp_path, record):
    learner = sloped()
    learner.guard = NonFiniteGuard(tmp_path, patience=100)
    record(learner)
    for size in (2, 2, 3, 3):
        assert set(learner.update(of_size(size))) == {"loss_a", "loss", "grad_norm"}
    for size in (2, 3):
        assert learner.update(of_size(size, torch.nan)) == {}
        bundles = sorted((tmp_path / "nonfinite").glob("*"))
        assert len(bundles) == size - 1, "no evidence is kept"


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", ["null", "bfloat16"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_on_a_gpu_recorded_and_ordinary_updates_train_alike(actions, autocast):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    cfg = configured(*ACTIONS[actions], f"schedule.autocast={autocast}")
    batches = [sequences(cfg, seed) for seed in range(3)]
    batches = [part.to("cuda") for batch in batches for part in (batch, batch[:2])]
    ends, losses = [], []
    for cuda_graph in (False, True):
        cfg.schedule.cuda_graph = cuda_graph
        learner = learner_of(cfg, device="cuda")
        start = parameters(learner)
        torch.manual_seed(3)
        made = [learner.update(batches[step % 6]) for step in range(24)]
        losses.append(torch.stack([metrics["loss"] for metrics in made]))
        ends.append(parameters(learner))
    assert learner._recorded.num_recordings == 2
    # The same kernels on the same draws; a gradient that is all rounding moves a weight
    # nevertheless, by any sign. In bfloat16 more of them are, and sums have no fixed order.
    share, tolerance = (0.01, 0.01) if autocast == "null" else (0.05, 0.2)
    assert (ends[1] - ends[0]).norm() < share * (ends[0] - start).norm()
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(losses[1][:6], losses[0][:6], rtol=0.02, atol=0.02)
