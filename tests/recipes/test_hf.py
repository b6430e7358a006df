"""Runs with a model of the library transformers: they train, go on exactly, and are played without
its folder.
"""

import json
import shutil

import pytest
import torch
import yamame
from yamame.runs.trained import load_trained

transformers = pytest.importorskip("transformers", reason="needs pip install 'yamame[hf]'")

TINY = (
    "debug=tiny",
    "logger=none",
    "env=tmaze",
    "env.length=8",
    "encoder=hf",
    "encoder.model_type=llama",
)
TINY += (
    "schedule.anneal_lr=false",
    "exploration.anneal_steps=60000",
    "encoder.d_model=8",
    "encoder.num_heads=2",
    "encoder.num_layers=1",
)


def test_a_run_goes_on_exactly_and_is_evaluated_without_the_folder_that_it_began_with(
    runner, tmp_path, components, differing, monkeypatch
):
    sizes = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
    }
    config = transformers.LlamaConfig(**sizes, vocab_size=3)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "mine")
    tiny = (*TINY, f"encoder.path={tmp_path / 'mine'}")
    train = runner("train")
    assert train(*tiny, "run.name=whole", "budget.updates=4")[0] == 0
    assert train(*tiny, "run.name=parts")[0] == 0
    status, _, errors = train(*tiny, "run.name=parts", "budget.updates=4", "resume=true")
    assert (status, errors) == (0, "")
    whole, parts = (components(tmp_path / "runs" / name) for name in ("whole", "parts"))
    assert whole["progress"]["updates"] == 4
    assert (
        differing(whole, parts, skip=("/progress/curve",)) == []
    )  # the first part ended with an evaluation
    shutil.rmtree(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert yamame.evaluate("run=runs/whole", "num_episodes=2")["score"] is not None
    trained = load_trained(tmp_path / "runs/whole", checkpoint="last")
    agent = trained.build_agent(trained.build_env(num_envs=1, seed=0))
    saved = torch.cat([value.flatten().float() for value in whole["agent"].values()])
    assert torch.equal(torch.cat([v.flatten().float() for v in agent.state_dict().values()]), saved)
    status, _, errors = train(*tiny, "run.name=new")
    assert (status, errors.count("\n")) == (2, 1)
    assert "path must be a local folder" in errors
    assert json.loads((tmp_path / "runs/whole/summary.json").read_text())["status"] == "FINISHED"
