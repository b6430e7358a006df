"""Models of the library transformers as memory: the laws of every encoder, and where they come from."""

import copy

import pytest
import torch
from tensordict import TensorDict
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import HFEncoder

transformers = pytest.importorskip("transformers", reason="needs pip install 'yamame[hf]'")

LLAMA = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TINY = {
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": {**LLAMA, "num_key_value_heads": 1},
    "mistral": {**LLAMA, "num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {**LLAMA, "num_key_value_heads": 1},
}


@pytest.mark.parametrize("kind", TINY)
def test_it_keeps_the_laws_of_encoders(kind):
    torch.manual_seed(0)
    check_trajectory_encoder(HFEncoder(5, model_type=kind, settings=TINY[kind]))


def test_memory_of_fixed_length_forgets_the_oldest():
    torch.manual_seed(0)
    encoder = HFEncoder(3, model_type="llama", settings=TINY["llama"], context_length=4).eval()
    x = torch.randn(2, 9, 3)
    memory = encoder.init_memory(2)
    for t in range(9):
        is_init = torch.full((2,), t == 0)
        context, memory = encoder.step(x[:, t], encoder.grow(memory), is_init)
    assert memory["keys"].shape[3] == 4
    assert context.isfinite().all()


def test_all_weights_but_those_of_tokens_learn():
    encoder = HFEncoder(3, settings=TINY["gpt2"])
    starts = torch.zeros(2, 5, dtype=torch.bool)
    starts[:, 0] = True
    step = torch.arange(5).expand(2, 5)
    encoder.parallel(torch.randn(2, 5, 3), step, starts).square().mean().backward()
    still = [name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
    assert still == []
    assert encoder.num_layers == 2


def test_weights_come_from_a_folder_on_this_machine(tmp_path):
    torch.manual_seed(1)
    source = HFEncoder(3, settings=TINY["gpt2"])
    source.model.save_pretrained(tmp_path / "mine")
    loaded = HFEncoder(3, path=str(tmp_path / "mine"))
    learned = [(name, value) for name, value in source.model.named_parameters() if value.requires_grad]
    for name, value in learned:
        assert torch.equal(value, dict(loaded.model.named_parameters())[name]), name
    (tmp_path / "mine" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "mine" / "pytorch_model.bin")
    for path in (tmp_path / "mine", tmp_path / "nowhere", "gpt2"):
        with pytest.raises(ValueError, match="HFEncoder: path must be a folder with a model"):
            HFEncoder(3, path=str(path))


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [("gtp2", {}, "model_type and settings must be"), ("bert", {}, "model_type must be a causal model")],
)
def test_what_is_no_causal_model_is_refused(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        HFEncoder(3, model_type=kind, settings=settings)


def test_episodes_longer_than_the_table_of_positions_are_refused():
    encoder = HFEncoder(3, settings={**TINY["gpt2"], "n_positions": 4})
    starts = torch.zeros(1, 6, dtype=torch.bool)
    starts[:, 0] = True
    with pytest.raises(ValueError, match="step_index must be below 4, got 5"):
        encoder.parallel(torch.zeros(1, 6, 3), torch.arange(6)[None], starts)


def test_a_copy_acts_alike():
    encoder = HFEncoder(3, settings=TINY["gpt2"]).eval()
    other = copy.deepcopy(encoder)
    td = TensorDict({"features": torch.randn(4, 3), "is_init": torch.ones(4, 1).bool()}, [4])
    assert torch.equal(encoder(td.clone())["context"], other(td.clone())["context"])
