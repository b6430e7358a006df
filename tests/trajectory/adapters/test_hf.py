"""Models of the library transformers as memory: the laws of encoders, what is refused, what a
folder may do.
"""

import json
import pickle

import pytest
import torch
from yamame.checks import UsageError
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import HFEncoder

transformers = pytest.importorskip("transformers", reason="needs pip install 'yamame[hf]'")

SMALL = {"d_model": 8, "num_heads": 2, "num_layers": 2}
KINDS = {
    "gpt2": {},
    "llama": {"num_key_value_heads": 1},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "gpt_neox": {},
    "gemma": {"head_dim": 6},
    "bert": {},
}


def small(model_type="gpt2", *, settings=None, **options):
    torch.manual_seed(0)
    return HFEncoder(3, model_type=model_type, settings=settings, **{**SMALL, **options})


def one_episode(num_envs, length):
    is_init = torch.zeros(num_envs, length, dtype=torch.bool)
    is_init[:, 0] = True
    return torch.randn(num_envs, length, 3), torch.arange(length).expand(num_envs, length), is_init


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_every_kind_keep_the_laws(kind):
    check_trajectory_encoder(small(kind, settings=KINDS[kind]))


def test_what_acting_remembers_ends_at_the_context_length():
    encoder = small("llama", num_layers=1, context_length=4).eval()
    x, _, is_init = one_episode(2, 9)
    contexts = []
    for changed in (None, 4, 5):  # the last of the nine sees the timesteps 5 to 8
        seen = x.clone()
        if changed is not None:
            seen[:, changed] += 1.0
        memory = encoder.init_memory(2)
        with torch.no_grad():
            for t in range(9):
                context, memory = encoder.step(seen[:, t], encoder.grow(memory), is_init[:, t])
        contexts.append(context)
    assert memory["keys"].shape == (2, 1, 2, 4, 4)
    assert torch.equal(contexts[1], contexts[0])
    assert (contexts[2] - contexts[0]).abs().max() > 1e-4


def test_a_step_reads_nothing_back(nothing_read_back):
    encoder = small().eval()
    memory = encoder.grow(encoder.init_memory(2))
    with torch.no_grad(), nothing_read_back():
        for first in (True, False):
            _, memory = encoder.step(torch.randn(2, 3), memory, torch.full((2,), first))


def test_all_weights_learn_and_there_are_none_for_tokens():
    encoder = small()
    encoder.parallel(*one_episode(2, 5)).pow(3).sum().backward()
    assert [
        name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()
    ] == [
        "model.wpe.weight"  # has gradients only at the positions that occur
    ] * int(not encoder.model.wpe.weight.grad.any())
    assert not [
        name for name, _ in encoder.named_parameters() if "wte" in name or "embed_tokens" in name
    ]


def test_learnt_positions_end():
    encoder = small(settings={"n_positions": 4})
    with pytest.raises(UsageError, match="step_index must be below 4 positions of settings, got 5"):
        encoder.parallel(*one_episode(1, 6))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gtp2", {}, "model_type must be a model of the library transformers, got 'gtp2'"),
        (
            "mamba",
            {},
            "model_type must be of a Transformer, which has num_attention_heads, got 'mamba'",
        ),
        ("bloom", {}, "model_type must "),
        ("t5", {}, "model_type must "),
        ("gpt2", {"d_model": 9}, "d_model must be a multiple of num_heads 2, got 9"),
        (
            "gpt2",
            {"settings": {"n_embd": 16}},
            "settings must hold fields .* no argument sets, got .'n_embd'.",
        ),
        ("gpt2", {"settings": {"droput": 0.1}}, "settings must hold fields .* got .'droput'."),
        ("gpt2", {"settings": {"resid_pdrop": "much"}}, "settings must fit gpt2, got .*much"),
        (
            "mistral",
            {"context_length": None},
            "context_length must be at most sliding_window 4096 .* got None",
        ),
        (
            "llama",
            {
                "settings": {
                    "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
                }
            },
            "rope_parameters must not depend on how long other sequences are",
        ),
    ],
)
def test_what_cannot_keep_the_laws_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=f"HFEncoder: {message}") as raised:
        small(kind, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"quantization_config": {"quant_method": "gptq"}},
        {"attn_implementation": "someone/kernels"},
        {"_attn_implementation": "someone/kernels"},
        {"name_or_path": "someone/model"},
        {"vocab_size": 10},
        {"dtype": "float16"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_are_of_the_layers_and_fetch_nothing(settings):
    with pytest.raises(ValueError, match="HFEncoder: settings must hold fields"):
        small(settings=settings)


# A folder with weights.


@pytest.fixture
def folder(tmp_path):
    """A model for language as the library writes it, with the layers of `small` and tokens of its
    own.
    """
    torch.manual_seed(7)
    sizes = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
    }
    config = transformers.LlamaConfig(**sizes, vocab_size=11, initializer_range=0.2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_weights_of_a_folder_are_those_that_the_layers_begin_with(folder, capfd):
    encoder = small("llama", path=str(folder))
    whole = transformers.LlamaForCausalLM.from_pretrained(folder).model.state_dict()
    capfd.readouterr()
    again = small("llama", path=str(folder))
    assert capfd.readouterr() == ("", "")
    del whole["embed_tokens.weight"]
    assert encoder.model.state_dict().keys() == whole.keys()
    assert all(
        torch.equal(value, whole[name]) for name, value in encoder.model.state_dict().items()
    )
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in whole.items())
    assert not torch.equal(
        small("llama").model.norm.weight + 0, encoder.model.layers[0].mlp.up_proj.weight[0]
    )
    check_trajectory_encoder(pickle.loads(pickle.dumps(encoder)))


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_folder_that_holds_another_model_is_refused_by_what_differs(folder):
    edit_config(folder, rms_norm_eps=0.1)
    with pytest.raises(ValueError, match=r"path must .* config.json has \{'rms_norm_eps': 0.1\}"):
        small("llama", path=str(folder))
    small("llama", path=str(folder), settings={"rms_norm_eps": 0.1})
    with pytest.raises(ValueError, match=r"path must .* config.json has .*'hidden_size': 8"):
        small("llama", path=str(folder), d_model=16, settings={"rms_norm_eps": 0.1})


def test_a_folder_that_is_not_whole_is_refused(folder, tmp_path):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for path in ("gpt2", str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(ValueError, match="HFEncoder: path must be a local folder"):
            small("llama", path=path)
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="HFEncoder: path must be a local folder") as raised:
        small("llama", path=str(folder))
    assert "\n" not in str(raised.value)
    from safetensors.torch import load, save

    state = load(content)
    del state["model.norm.weight"]
    weights.write_bytes(save(state, {"format": "pt"}))
    with pytest.raises(ValueError, match=r"path must hold all weights, .* it lacks norm\.weight"):
        small("llama", path=str(folder))


def test_neither_code_nor_pickles_of_a_folder_are_run(folder, tmp_path):
    mark = tmp_path / "MARK"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nModel = Config = object\n")
    edit_config(folder, auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})
    small("llama", path=str(folder))  # whose own code is the library's
    edit_config(folder, model_type="evil")
    with pytest.raises(ValueError, match="HFEncoder: path must be"):
        small("llama", path=str(folder))
    edit_config(folder, model_type="llama")
    (folder / "model.safetensors").unlink()

    class Evil:
        def __reduce__(self):
            return exec, (f"open({str(mark)!r}, 'w').close()",)

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="HFEncoder: path must be"):
        small("llama", path=str(folder))
    (folder / "adapter_config.json").write_text("{}")
    assert not mark.exists()
