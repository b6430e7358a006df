"""Every recipe runs on a GPU, with every choice of the command line, and ends where it ends on the
CPU.
"""

import math
from itertools import combinations

import pytest
import torch
import yamame
from yamame import conf_dir

CONF = conf_dir()
ON_POLICY = (
    "debug=tiny", "logger=none", "evaluation.num_episodes=2", "evaluation.max_steps=12",
    "evaluation.video_frames=1",
)  # fmt: skip
TINY = (
    *ON_POLICY, "schedule.anneal_lr=false", "exploration.anneal_steps=60000",
    "schedule.autocast=null", "optimizer=adamw",
)  # fmt: skip
NARROW = {
    "transformer": "encoder.d_model=16 encoder.num_layers=1 encoder.dropout=0",
    "gru": "encoder.hidden_size=16 encoder.out_features=16",
    "linear_recurrent": "encoder.d_model=16",
    "memoryless": "encoder.d_model=16",
    "hf": "encoder.d_model=16 encoder.num_heads=2 +encoder.settings.attn_pdrop=0 "
    "+encoder.settings.resid_pdrop=0"
    " +encoder.settings.embd_pdrop=0",
}
NARROW |= dict.fromkeys(("transformer_deep", "transformer_naive"), NARROW["transformer"])
NARROW |= {"window": NARROW["memoryless"]}
NARROW |= dict.fromkeys(("mingru", "lru", "ffm", "mlstm", "deltanet"), "encoder.d_model=16")
NARROW |= dict.fromkeys(
    ("rsm", "memo"),
    "encoder.d_model=16 encoder.dropout=0 encoder.segment_length=4 encoder.jitter=0",
)
NARROW |= dict.fromkeys(("lstm", "gru_selective", "gru_rounded"), NARROW["gru"])
"""Small networks without dropout, for which a GPU draws other numbers."""
SHORT = {
    "bandits": "env.time_limit=20", "dark_key_to_door": "env.time_limit=20",
    "mazerunner": "env.time_limit=20",
    "package_delivery": "env.time_limit=30", "wind": "env.time_limit=20", "tmaze": "env.length=12",
    "active_tmaze": "env.length=12", "frozenlake": "", "gym": "env.time_limit=20",
    "xland": "env.level=small env.num_trials=2 env.trial_limit=9",
}  # fmt: skip
"""Episodes of which some end."""
CHOICES = (
    "env=mazerunner encoder=transformer relabel=rarity goal_encoder=token exploration=bilevel",
    "env=mazerunner encoder=window relabel=hide_future_goals agent=separate "
    "goal_encoder=mlp timestep_encoder=auto",
    "env=mazerunner encoder=lstm relabel=all exploration=epsilon_greedy",
    "env=mazerunner encoder=memoryless relabel=some agent=amago agent/returns=popart",
    "env=mazerunner encoder=transformer_deep agent=amago_paper curriculum=plr "
    "curriculum.min_seeds=1",
    "env=package_delivery agent=naive encoder=transformer_naive relabel=all_or_nothing "
    "encoder.checkpoint_layers=true",
    "env=package_delivery encoder=gru_rounded relabel=single_goal packing=null",
    "env=dark_key_to_door encoder=linear_recurrent agent=amago2 agent/returns=binned",
    "env=tmaze encoder=gru_selective agent=bc exploration=edges",
    "env=active_tmaze encoder=rsm",
    "env=frozenlake encoder=transformer relabel=none encoder.window=8 encoder.sinks=1 "
    "encoder.positions=rotary",
    "env=wind encoder=transformer agent.box_distribution=beta encoder.sigma_reparam=true",
    "env=bandits trials=none curriculum=none encoder=memo exploration=none timestep_encoder=mlp",
    "env=gym env.id=Pendulum-v1 trials=repeated trials.num_trials=2 encoder=deltanet "
    "agent=separate exploration=gaussian",
    "env=tmaze encoder=hf",
    "env=xland encoder=gru relabel=tasks env.achieved=true env.reward=success "
    "env.trial_end=reset_step",
    "env=tmaze encoder=mingru",
    "env=tmaze encoder=mlstm",
    "env=bandits encoder=lru",
    "env=tmaze encoder=ffm",
)
GROUPS = (
    "agent", "agent/returns", "curriculum", "encoder", "exploration", "goal_encoder", "relabel",
    "timestep_encoder", "trials",
)  # fmt: skip
ENVS = (
    "active_tmaze", "bandits", "dark_key_to_door", "frozenlake", "mazerunner", "package_delivery",
    "tmaze", "wind", "xland",
)  # fmt: skip
AGENTS = ("amago", "amago2", "amago_paper", "bc", "naive", "separate")
PAIRS = []
for row, env in enumerate(ENVS):
    for column, encoder in enumerate(sorted(NARROW)):
        kind = AGENTS[(row + column) % len(AGENTS)]
        PAIRS.append((env, encoder, kind))
"""Every two of an environment, an encoder and an agent: all three would be six times as many."""


def narrowed(choice: str) -> list[str]:
    """The arguments of a choice, with a small encoder and short episodes."""
    chosen = dict(text.split("=", 1) for text in choice.split())
    return [*choice.split(), *NARROW[chosen["encoder"]].split(), *SHORT[chosen["env"]].split()]


DOOR = (*TINY, *narrowed("env=dark_key_to_door encoder=transformer"))
PPO = (*ON_POLICY, *narrowed("env=bandits encoder=gru"))
DISTILL = (*DOOR, "source.horizon=40", "source.subsample=2", "schedule.updates_per_iteration=1")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """The same computation in another order: a quarter of what the last update moves.

    A unit whose input is zero but for rounding may have the other slope, and then a few weights
    move otherwise.
    """
    assert one.keys() == other.keys()
    for name, value in one.items():
        differing = ~torch.isclose(value, other[name], rtol=1e-4, atol=3e-6)
        assert differing.sum() <= math.ceil(0.01 * value.numel()), name


def test_every_choice_and_native_environment_is_run():
    every = {f"{group}/{path.stem}" for group in GROUPS for path in (CONF / group).glob("*.yaml")}
    every |= {f"env/{name}" for name in ENVS}
    chosen = {text.replace("=", "/") for choice in CHOICES for text in choice.split()}
    # One has kernels of its own, the other needs a later TorchRL.
    assert every - chosen == {"encoder/mamba", "encoder/torchrl"}
    assert {path.stem for path in (CONF / "agent").glob("*.yaml")} == set(AGENTS)


def resumed(arguments, train, recipe="train"):
    """Two updates on the device, a checkpoint, and one more after it, which moves the weights."""
    run = (*arguments, "run.name=gpu", "device=cuda")
    begun = train(*run, "budget.updates=2", recipe=recipe)
    ended = train(*run, "budget.updates=3", "resume=true", recipe=recipe)
    with pytest.raises(AssertionError):
        assert_same(ended.weights, begun.weights)
    return ended


def assert_resumed_as_on_the_cpu(arguments, train, recipe="train") -> None:
    ended = resumed(arguments, train, recipe)
    expected = train(*arguments, "run.name=cpu", "device=cpu", "budget.updates=3", recipe=recipe)
    assert_same(ended.weights, expected.weights)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_run_on_the_device_ends_as_on_the_cpu(choice, train):
    arguments = [*TINY, *narrowed(choice)]
    if choice in CHOICES[::4]:
        assert_resumed_as_on_the_cpu(arguments, train)
        return
    found, expected = (
        train(*arguments, f"run.name={device}", f"device={device}", "budget.updates=3")
        for device in ("cuda", "cpu")
    )
    assert_same(found.weights, expected.weights)


def test_every_two_of_an_environment_an_encoder_and_an_agent_are_run_together():
    sizes = {"environment": len(ENVS), "encoder": len(NARROW), "agent": len(AGENTS)}
    for (one, size), (other, other_size) in combinations(sizes.items(), 2):
        columns = [list(sizes).index(name) for name in (one, other)]
        met = {tuple(pair[column] for column in columns) for pair in PAIRS}
        assert len(met) == size * other_size, (one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "encoder", "kind"), PAIRS)
def test_every_pair_is_resumed_and_ends_as_on_the_cpu(env, encoder, kind, train):
    choice = f"env={env} encoder={encoder}"
    assert_resumed_as_on_the_cpu([*TINY, f"agent={kind}", *narrowed(choice)], train)


GRAPHS = ("schedule.cuda_graph=true", "collector.cuda_graph=true")


@pytest.mark.parametrize("optimizer", ["muon", "adamw optimizer.fused=false"])
def test_a_run_that_goes_on_on_another_device_and_back_ends_as_on_the_cpu(
    optimizer, train, capsys, monkeypatch
):
    # In bfloat16, a last bit of a gradient would move Muon's weights a thousand times more.
    monkeypatch.setattr("yamame.training.muon.multiplies_bfloat16", lambda device: False)
    shape = ("packing.row_multiple=4", "packing.length_multiple=32", "schedule.average_decay=0.9")
    run = (*DOOR, *shape, *f"optimizer={optimizer}".split(), "run.name=moves", "resume=auto")
    train(*run, "device=cpu", "budget.updates=2")
    recorded = train(*run, "device=cuda", *GRAPHS, "budget.updates=10")
    assert recorded.launches
    train(*run, "device=cuda", "budget.updates=12")
    ended = train(*run, "device=cpu", "budget.updates=14")
    told = [line for line in capsys.readouterr().err.splitlines() if "other settings" in line]
    assert [("device: " in line, "cuda_graph: " in line) for line in told] == [
        (True, True),
        (False, True),
        (True, False),
    ]
    assert all(value.isfinite().all() for value in ended.weights.values())
    alone = (*DOOR, *shape, f"optimizer={optimizer.split()[0]}", "run.name=cpu")
    expected = train(*alone, "budget.updates=14")
    assert_same(ended.weights, expected.weights)


def test_a_distilled_run_that_was_resumed_on_the_device_ends_as_on_the_cpu(train):
    assert_resumed_as_on_the_cpu(DISTILL, train, recipe="distill")


def test_ppo_learns_and_is_resumed_on_the_device(train):
    # PPO looks less often there whether episodes have ended, and draws more actions than on the
    # CPU.
    ended = resumed(PPO, train, "ppo")
    assert all(value.isfinite().all() for value in ended.weights.values())


def test_what_is_done_with_a_run_is_done_on_the_device_as_on_the_cpu(train, play):
    trained = yamame.train(*DOOR, "run.name=trained", "device=cuda")
    scores = []
    for device in ("cuda", "cpu"):
        settings = (f"run={trained.path}", f"output=out/{device}", f"device={device}")
        ways = ("num_episodes=2", "control=true", "gammas=all", f"attention={device == 'cuda'}")
        scores.append(yamame.evaluate(*settings, *ways)["run"])
    assert scores[0] == scores[1]
    assert play(
        "play", f"run={trained.path}", "output=out", "device=cuda", "max_steps=5", "greedy=true"
    )
    data = ("data=runs", f"data.path={trained.path}")
    there, here = (
        train(*DOOR, *data, f"run.name={device}", f"device={device}", recipe="offline")
        for device in ("cuda", "cpu")
    )
    assert_same(there.weights, here.weights)


def test_a_run_in_lower_precision_keeps_finite_weights(train):
    settings = ("schedule.autocast=bfloat16", "collector.autocast=bfloat16", "device=cuda")
    weights = train(*DOOR, *settings, "run.name=a").weights
    assert all(value.isfinite().all() for value in weights.values())


def test_the_doctor_tries_a_run_on_the_device(play):
    assert "of the GPU's" in play("doctor", *DOOR, "measure.seconds=1", "device=cuda")
