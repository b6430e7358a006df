"""Muon moves the hidden matrices of an agent, told by their roles, whatever sizes its outputs and
inputs have.
"""

import pytest
import torch
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.runs.build import build_agent, build_env, build_learner

SMALL = ("optimizer=muon", "encoder.num_layers=1", "agent.critic.num_critics=2")
OWN = """
import torch
from tensordict import TensorDict
from torch import nn
from yamame.heads import ActorHead
from yamame.trajectory import TrajectoryEncoder


class Own(TrajectoryEncoder):
    parameter_roles = {"mix": "hidden", "slots": "table"}

    def __init__(self, in_features, *, size=64):
        super().__init__(in_features, size)
        self.embed = nn.Linear(in_features, size)
        self.mix = nn.Parameter(torch.randn(size, size) / size)
        self.slots = nn.Parameter(torch.randn(40, size))

    def init_memory(self, num_envs, *, capacity=None, device=None):
        return TensorDict({"state": self.slots.new_zeros(num_envs, self.out_features)}, [num_envs])

    def step(self, x, memory, is_init, step_index=None):
        state = memory["state"].masked_fill(is_init.unsqueeze(-1), 0.0)
        state = torch.tanh(self.embed(x) + state @ self.mix + self.slots.mean(0))
        return state, TensorDict({"state": state}, memory.batch_size)


class Head(ActorHead):
    parameter_roles = {"first_named": "output"}

    def __init__(self, in_features, *, action_space, num_gammas, **sizes):
        super().__init__(in_features, action_space=action_space, num_gammas=num_gammas, **sizes)
        size = num_gammas * action_space.num_params
        self.mlp = None
        self.first_named = nn.Linear(64, size)
        self.trunk = nn.Linear(in_features, 64)

    def forward(self, context):
        params = self.first_named(self.trunk(context).relu())
        return params.unflatten(-1, (self.num_gammas, self.action_space.num_params))
"""


def built(*overrides, change=lambda cfg: None):
    """An agent, its optimizer, and the names of the parameters that Muon moves."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[*SMALL, *overrides])
    change(cfg)
    agent = build_agent(cfg, build_env(cfg, num_envs=2, seed=0))
    optimizer = build_learner(cfg, agent).optimizer
    names = {parameter: name for name, parameter in agent.named_parameters()}
    groups = [group for group in optimizer.param_groups if "num_steps" in group]
    return agent, optimizer, {names[parameter] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize(
    ("env", "few", "many"),
    [
        (
            "env=tmaze",
            "agent.gammas=[0.9,0.99]",
            "agent.gammas=[0.1,0.9,0.95,0.97,0.99,0.995,0.999,0.9995]",
        ),
        ("env=tmaze", "agent/returns=popart", "agent/returns=binned"),
        ("env=bandits", "env.num_arms=3", "env.num_arms=40"),
        ("env=wind", "agent/returns=popart", "agent/returns=binned"),  # critics that read actions
    ],
)
def test_what_muon_moves_does_not_depend_on_sizes_of_outputs_and_inputs(env, few, many):
    matrices = [built(env, sizes)[2] for sizes in (few, many)]
    assert matrices[0] == matrices[1]
    assert len(matrices[0]) > 5


@pytest.mark.parametrize("sizes", ["agent/returns=popart", "agent/returns=binned"])
def test_last_layers_of_actor_and_critics_move_by_adamw(sizes):
    agent, _, matrices = built("env=bandits", sizes)
    outputs = {"actor.mlp.4.weight", "critic.ensemble.layers.4.weight"}
    assert outputs <= {name for name, _ in agent.named_parameters()}
    assert not outputs & matrices
    assert {"actor.mlp.2.weight", "critic.ensemble.layers.2.weight"} <= matrices


@pytest.mark.parametrize(
    ("overrides", "tables"),
    [
        (
            ["encoder.positions=learned", "encoder.num_positions=128"],
            {"trajectory_encoder.positions.weight"},
        ),
        (
            ["encoder=rsm", "encoder.num_slots=40"],
            {"trajectory_encoder.queries", "trajectory_encoder.start"},
        ),
        (["encoder=memo", "encoder.num_slots=40"], {"trajectory_encoder.queries"}),
        (
            ["env=mazerunner", "goal_encoder=token", "+goal_encoder.embedding_size=32"],
            {"timestep_encoder.goal_encoder.sequence.tokens.weight"},
        ),
    ],
)
def test_learnt_tables_move_by_adamw(overrides, tables):
    agent, _, matrices = built("env=tmaze", *overrides)
    assert tables <= {name for name, _ in agent.named_parameters()}
    assert not tables & matrices


def test_linear_layers_of_another_library_are_hidden_and_its_tables_are_not():
    pytest.importorskip("transformers")
    _, _, matrices = built("env=tmaze", "encoder=hf")
    layers = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert {f"trajectory_encoder.model.h.0.{layer}.weight" for layer in layers} <= matrices
    assert "trajectory_encoder.model.wpe.weight" not in matrices


def test_rows_of_a_table_that_are_rarely_reached_move_less_than_the_others():
    agent, optimizer, _ = built(
        "env=tmaze", "encoder.positions=learned", "encoder.num_positions=128"
    )
    table = agent.trajectory_encoder.positions.weight
    generator = torch.Generator().manual_seed(0)
    moved = torch.zeros(len(table))
    for update in range(150):
        before = table.detach().clone()
        table.grad = torch.randn(table.shape, generator=generator)
        if update % 50:
            table.grad[:16] = 0.0
        optimizer.step()
        moved += (table.detach() - before).square().mean(1).sqrt()
    rarely, often = moved[:16].mean(), moved[16:].mean()
    assert rarely < 0.6 * often  # by Muon 0.84: it blows up what little is left of a momentum
    assert rarely > 0.0


def test_roles_that_a_users_own_encoder_and_head_state_are_kept(own_module, capsys):
    own_module("stated", OWN)

    def change(cfg):
        cfg.encoder = {"_target_": "stated.Own", "_partial_": True}
        cfg.agent.actor = {"_target_": "stated.Head", "_partial_": True}

    _, _, matrices = built("env=tmaze", "trust=[stated.]", change=change)
    assert {
        "trajectory_encoder.embed.weight",
        "trajectory_encoder.mix",
        "actor.trunk.weight",
    } <= matrices
    assert not {"trajectory_encoder.slots", "actor.first_named.weight"} & matrices
    assert "stated" not in capsys.readouterr().err


def test_an_optimizer_from_outside_is_given_the_agent_if_it_asks_for_it(own_module):
    own_module(
        "asking",
        "import torch\n\n\nclass Asking(torch.optim.SGD):\n"
        "    def __init__(self, params, module):\n"
        "        super().__init__(params, lr=0.1)\n"
        "        self.kind = type(module).__name__\n",
    )

    def change(cfg):
        cfg.optimizer = {"_target_": "asking.Asking"}

    _, optimizer, _ = built("env=tmaze", "trust=[asking.]", change=change)
    assert optimizer.kind == "InContextAgent"


def test_by_size_last_layers_are_matrices_as_in_earlier_runs():
    wide, narrow = (
        built("env=tmaze", "optimizer.smallest=32", f"agent.gammas={gammas}")[2]
        for gammas in ("[0.1,0.5,0.9,0.95,0.97,0.98,0.99,0.995]", "[0.9,0.99]")
    )
    assert wide - narrow == {"actor.mlp.4.weight", "critic.ensemble.layers.4.weight"}
