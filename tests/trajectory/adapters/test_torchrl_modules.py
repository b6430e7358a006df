"""Backbones of TorchRL's `TransformerModule` as encoders, and encoders as its backbones: on a
stand-in with the same contract, and on TorchRL's own where it has them.
"""

import copy
import math

import pytest
import torch
import torchrl.modules
import yamame
from tensordict import TensorDict
from torch import nn
from torchrl.modules import set_recurrent_mode
from yamame.checks import ArgumentError
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import (
    DeltaNetEncoder,
    FFMEncoder,
    GRUEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MemoEncoder,
    MemorylessEncoder,
    MLSTMEncoder,
    RSMEncoder,
    TorchRLBackbone,
    TorchRLEncoder,
    TransformerEncoder,
    WindowEncoder,
    causal_transformer,
    segment_positions,
)

needs_torchrl = pytest.mark.skipif(
    not hasattr(torchrl.modules, "TransformerModule"), reason="needs torchrl 0.15"
)


class Backbone(nn.Module):
    """One layer of causal attention with learned positions, by the contract."""

    num_layers, num_heads = 1, 1

    def __init__(self, in_features, *, size=8, max_seq_len=20):
        super().__init__()
        self.head_dim, self.max_seq_len = size, max_seq_len
        self.embed = nn.Linear(in_features, size)
        self.table = nn.Embedding(max_seq_len, size)
        self.qkv = nn.Linear(size, 3 * size)
        self.norm = nn.LayerNorm(size)

    def new_kv_cache(self, batch_size, *, device=None, dtype=None):
        shape = (batch_size, self.max_seq_len, self.head_dim)
        return tuple(self.qkv.weight.new_zeros(shape, device=device).detach() for _ in range(2))

    def reset_kv_cache(self, kv_cache, mask):
        for part in kv_cache:
            part.masked_fill_(mask.view(-1, 1, 1), 0)
        return kv_cache

    def forward(self, features, positions, mask=None, kv_cache=None):
        hidden = self.embed(features) + self.table(positions)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        if kv_cache is not None:
            row = torch.arange(len(features))
            for stored, new in zip(kv_cache, (key, value), strict=True):
                stored[row, positions.squeeze(1)] = new.squeeze(1).detach()
            key, value = kv_cache
            mask = (torch.arange(self.max_seq_len) <= positions).unsqueeze(1)
        elif mask is None:
            mask = torch.ones(*features.shape[:2], features.shape[1]).bool().tril()
        scores = query @ key.mT / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return self.norm(hidden + scores @ value), kv_cache


class Named(Backbone):
    """The cache as a dictionary of dictionaries."""

    def new_kv_cache(self, *args, **options):
        key, value = super().new_kv_cache(*args, **options)
        return {"layer": {"k": key, "v": value}}

    def reset_kv_cache(self, kv_cache, mask):
        super().reset_kv_cache((kv_cache["layer"]["k"], kv_cache["layer"]["v"]), mask)
        return kv_cache

    def forward(self, features, positions, mask=None, kv_cache=None):
        parts = None if kv_cache is None else (kv_cache["layer"]["k"], kv_cache["layer"]["v"])
        return super().forward(features, positions, mask, parts)[0], kv_cache


class SeesEverything(Backbone):
    def forward(self, features, positions, mask=None, kv_cache=None):
        everything = None if mask is None else torch.ones_like(mask)
        return super().forward(features, positions, everything, kv_cache)


class NeverResets(Backbone):
    """What came before stays where the new episode has not yet written, and is seen."""

    def reset_kv_cache(self, kv_cache, mask):
        return kv_cache

    def forward(self, features, positions, mask=None, kv_cache=None):
        output, cache = super().forward(features, positions, mask, kv_cache)
        seen = 0 if kv_cache is None else kv_cache[1].sum((1, 2)).view(-1, 1, 1)
        return output + seen, cache


class CountsRows(Backbone):
    def new_kv_cache(self, batch_size, **options):
        return (*super().new_kv_cache(batch_size, **options), batch_size)


@pytest.mark.parametrize("kind", [Backbone, Named])
def test_a_backbone_keeps_the_laws_of_encoders(kind):
    torch.manual_seed(0)
    check_trajectory_encoder(TorchRLEncoder(3, backbone=kind(3)))
    check_trajectory_encoder(TorchRLEncoder(3, backbone=kind))


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (SeesEverything, "equal outputs"),
        (NeverResets, "equal outputs"),
        (CountsRows, "tensors of as many rows"),
        (nn.Linear, "have forward, new_kv_cache"),
    ],
)
def test_a_backbone_without_the_contract_is_refused(kind, condition):
    torch.manual_seed(0)
    backbone = nn.Linear(3, 3) if kind is nn.Linear else kind(3)
    with pytest.raises(ArgumentError, match=condition):
        TorchRLEncoder(3, backbone=backbone)


def test_memory_stays_when_weights_change_and_ends_at_the_longest_episode():
    torch.manual_seed(0)
    encoder = TorchRLEncoder(3, backbone=Backbone(3, max_seq_len=6)).eval()
    x = torch.randn(2, 6, 3)
    for t in range(6):
        starts = torch.full((2, 1), t == 0)
        encoder(TensorDict({"features": x[:, t], "is_init": starts}, [2]))
        if t == 2:
            with torch.no_grad():
                encoder.backbone.norm.bias.add_(1.0)
    assert encoder.memory["position"].tolist() == [6, 6]
    with pytest.raises(ArgumentError, match="at most max_seq_len 6"):
        encoder(TensorDict({"features": x[:, 0], "is_init": torch.zeros(2, 1).bool()}, [2]))
    # A start clears the history, so an episode after it may be as long again.
    encoder.memory["position"] -= 1
    encoder(TensorDict({"features": x[:, 0], "is_init": torch.ones(2, 1).bool()}, [2]))
    assert encoder.memory["position"].tolist() == [1, 1]


ENCODERS = {
    "transformer": lambda: TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1),
    "gru": lambda: GRUEncoder(3, hidden_size=8, out_features=8),
    "lru": lambda: LRUEncoder(3, d_model=8),
    "deltanet": lambda: DeltaNetEncoder(3, d_model=8),
    "rsm": lambda: RSMEncoder(3, d_model=8, num_heads=2, segment_length=4, dropout=0.0),
    "window": lambda: WindowEncoder(3, window=4, d_model=8),
    "memoryless": lambda: MemorylessEncoder(3, d_model=8),
}


MEMORIES = {
    **ENCODERS,
    "long window": lambda: TransformerEncoder(
        3, d_model=8, num_heads=2, num_layers=1, context_length=36, window=35
    ),
    "memo": lambda: MemoEncoder(3, d_model=8, num_heads=2, segment_length=4, dropout=0.0),
    "lstm": lambda: LSTMEncoder(3, hidden_size=8, out_features=8),
    "ffm": lambda: FFMEncoder(3, d_model=8),
    "mlstm": lambda: MLSTMEncoder(3, d_model=8),
    "mingru": lambda: LinearRecurrentEncoder(3, d_model=8, positive=True),
    "linear": lambda: LinearRecurrentEncoder(3, d_model=8),
    "torchrl": lambda: TorchRLEncoder(3, backbone=Named(3, max_seq_len=50)),
}


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_is_a_backbone_whose_steps_equal_its_windows(name):
    torch.manual_seed(0)
    encoder = ENCODERS[name]().eval()
    backbone = TorchRLBackbone(encoder)
    starts = torch.zeros(3, 12).bool()
    starts[:, 0] = True
    starts[1, 5] = starts[2, 9] = True
    x = torch.randn(3, 12, 3)
    position = segment_positions(starts)
    segment = starts.cumsum(1)
    mask = (segment.unsqueeze(2) == segment.unsqueeze(1)).tril()

    window, nothing = backbone(x, position, mask=mask)
    assert nothing is None
    assert torch.equal(window, encoder.parallel(x, position, starts))
    cache = backbone.new_kv_cache(3, device=x.device)
    steps = []
    for t in range(12):
        cache = backbone.reset_kv_cache(cache, starts[:, t])
        context, cache = backbone(x[:, t : t + 1], position[:, t : t + 1], kv_cache=cache)
        steps.append(context)
    assert torch.allclose(torch.cat(steps, 1), window, atol=1e-5)
    assert encoder.memory is None

    blind = torch.eye(12).bool().expand(3, 12, 12)
    with pytest.raises(ArgumentError, match="mask"):
        backbone(x, position, mask=blind)
    with pytest.raises(ArgumentError, match="be 1 with a cache"):
        backbone(x, position, kv_cache=cache)


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("num_steps", [3, 40])
@torch.no_grad()
def test_a_reset_row_is_that_of_a_fresh_cache_and_the_others_stay(name, num_steps):
    """40 steps are more than a cache has slots for at first. No position of 0 hides the past."""
    torch.manual_seed(0)
    backbone = TorchRLBackbone(MEMORIES[name]().eval())
    x = torch.randn(4, num_steps + 2, 3)

    def act(cache, t):
        position = torch.full((4, 1), t)
        return backbone(x[:, t : t + 1], position, kv_cache=cache)

    cache = backbone.new_kv_cache(4, device=x.device)
    for t in range(num_steps):
        _, cache = act(cache, t)
    fresh = backbone.new_kv_cache(4, device=x.device)
    for mask in (
        torch.tensor([False, True, False, True]),
        torch.ones(4).bool(),
        torch.zeros(4).bool(),
    ):
        reset, new, old = backbone.reset_kv_cache(cache.clone(), mask), fresh.clone(), cache.clone()
        for t in (num_steps, num_steps + 1):
            context, reset = act(reset, t)
            from_fresh, new = act(new, t)
            from_old, old = act(old, t)
            assert torch.allclose(context[mask], from_fresh[mask], atol=1e-6)
            assert torch.equal(context[~mask], from_old[~mask])
            if name != "memoryless":
                assert not torch.allclose(from_fresh, from_old, atol=1e-3)


@torch.no_grad()
def test_a_reset_clears_nan():
    backbone = TorchRLBackbone(GRUEncoder(3, hidden_size=8, out_features=8))
    cache = backbone.new_kv_cache(2, device="cpu")
    _, cache = backbone(torch.full((2, 1, 3), torch.nan), torch.zeros(2, 1).long(), kv_cache=cache)
    cache = backbone.reset_kv_cache(cache, torch.tensor([True, False]))
    context, _ = backbone(torch.zeros(2, 1, 3), torch.ones(2, 1).long(), kv_cache=cache)
    assert context.isfinite().flatten(1).all(1).tolist() == [True, False]


@pytest.mark.parametrize("name", ["transformer", "gru", "rsm", "deltanet"])
def test_there_and_back_is_the_encoder_itself(name):
    torch.manual_seed(0)
    encoder = ENCODERS[name]().eval()
    again = TorchRLEncoder(3, backbone=TorchRLBackbone(copy.deepcopy(encoder))).eval()
    check_trajectory_encoder(again)
    batch = TensorDict({"features": torch.randn(2, 9, 3)}, [2, 9])
    with set_recurrent_mode(True), torch.no_grad():
        expected = encoder(batch.clone())["context"]
        assert torch.equal(again(batch.clone())["context"], expected)


def test_a_backbone_of_the_user_trains_from_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "ownlab.py").write_text(
        "from yamame.trajectory import GRUEncoder, TorchRLBackbone\n\n\n"
        "def make(in_features, *, width):\n"
        "    return TorchRLBackbone(GRUEncoder(in_features, hidden_size=width,"
        " out_features=width))\n"
    )
    conf = tmp_path / "conf" / "encoder"
    conf.mkdir(parents=True)
    (conf / "own.yaml").write_text(
        "_target_: yamame.trajectory.TorchRLEncoder\n_partial_: true\n"
        "backbone: {_target_: ownlab.make, _partial_: true, width: 8}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = yamame.train(
        *("env=tmaze", "env.length=8", "encoder=own", "trust=[ownlab.]", "debug=tiny"),
        *("logger=none", f"run.root={tmp_path}", "run.name=mine"),
        config_dir=str(tmp_path / "conf"),
    )
    assert run.summary["status"] == "FINISHED"


@pytest.mark.skipif(hasattr(torchrl.modules, "CausalTransformer"), reason="it is there")
def test_an_older_torchrl_is_named():
    with pytest.raises(ValueError, match=r"torchrl 0\.15 or later must be installed, run: "):
        causal_transformer(3)


@needs_torchrl
def test_the_transformer_of_torchrl_keeps_the_laws():
    torch.manual_seed(0)
    make = causal_transformer(3, d_model=16, num_heads=2, context_length=20)
    check_trajectory_encoder(TorchRLEncoder(3, backbone=make))


@needs_torchrl
@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_acts_within_the_module_of_torchrl(name):
    torch.manual_seed(0)
    encoder = ENCODERS[name]().eval()
    module = torchrl.modules.TransformerModule(
        transformer=TorchRLBackbone(encoder), in_key="features", out_key="context"
    )
    starts = torch.zeros(2, 6, 1).bool()
    starts[:, 0] = starts[1, 3] = True
    batch = TensorDict({"features": torch.randn(2, 6, 3), "is_init": starts}, [2, 6])
    with set_recurrent_mode(True):
        window = module(batch.clone())["context"]
    steps = [module(batch[:, t].clone())["context"] for t in range(6)]
    assert torch.allclose(torch.stack(steps, 1), window, atol=1e-5)
