"""Agents of AMAGO 3.3 compute here what they computed there; what cannot be imported is refused."""

import copy
import os
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yamame
from safetensors.torch import load_file
from torchrl.modules import set_recurrent_mode
from yamame.checks import UsageError
from yamame.deploy.amago.arguments import DEFAULTS
from yamame.deploy.amago.gin import Unread, parse_gin
from yamame.deploy.folder import write_folder

sys.path.insert(0, str(Path(__file__).parent))
import amago_recordings as recordings

sys.path.pop(0)
CASES = sorted(recordings.SPACES)
TOLERANCE = recordings.TOLERANCE
ACTOR = "actor.base.out_layer.weight"


@cache
def subject(case):
    """The content of an imported agent's file; tests must not change it."""
    return recordings.imported(case)


@cache
def computed(case):
    """Outputs of an imported agent for the inputs of its recording: stepwise, memories, whole."""
    agent = recordings.agent_of(subject(case))
    columns = recordings.recorded(case)
    return *recordings.stepwise(agent, columns), recordings.whole(agent, columns)


def largest_error(found, wanted):
    """Largest difference, relative where numbers are large."""
    assert found.shape == wanted.shape
    return float(((found - wanted).abs() / wanted.abs().clamp(min=1.0)).max())


@pytest.mark.parametrize("case", CASES)
def test_outputs_of_500_steps_are_those_of_amago(case):
    columns = recordings.recorded(case)
    steps, _, _ = computed(case)
    for name in ("policy", "normalized", "returns"):
        assert columns[name].std() > 0.01
        assert largest_error(steps[name], columns[name]) < TOLERANCE, name
    assert largest_error(steps["context"][9::10], columns["context"]) < TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_whole_sequences_are_those_of_amago(case):
    columns = recordings.recorded(case)
    _, _, whole = computed(case)
    for name, value in whole.items():
        assert largest_error(value[9::10], columns[f"whole_{name}"]) < TOLERANCE, name


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("gru")])
def test_hidden_states_are_those_of_amago(case):
    columns = recordings.recorded(case)
    _, memories, _ = computed(case)
    for memory, hidden in zip(memories, columns["hidden"], strict=True):
        assert largest_error(memory["hidden"], hidden.transpose(0, 1)) < TOLERANCE


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("transformer")])
def test_caches_are_those_of_amago(case):
    """AMAGO's cache is in the order of time, and drops its first slot when it is full."""
    columns = recordings.recorded(case)
    _, memories, _ = computed(case)
    memory = memories[-1]
    for stream, length in enumerate(columns["lengths"].tolist()):
        last = int(memory["position"][stream])
        slots = [position % recordings.LENGTH for position in range(last - length, last)]
        for name, other in (("keys", "keys"), ("values", "key_values")):
            own = memory[name][stream][:, :, slots]  # [layers, H, S, d]
            wanted = columns[other][:, stream, :length].transpose(1, 2)
            assert largest_error(own, wanted) < TOLERANCE


OTHER = [
    ("transformer_discrete", "agent.probability_clip", None),
    ("transformer_discrete", "encoder.context_length", recordings.LENGTH + 1),
    ("transformer_box", "agent.critic.round_gammas", False),
    ("transformer_box", "encoder.activation", "relu"),
    ("transformer_box", "agent.critic.activation", "gelu"),
    ("gru_discrete", "timestep_encoder.clip", 0.5),
    ("gru_bits", "agent.probability_floor", 0.01),
]


@pytest.mark.parametrize(("case", "key", "value"), OTHER)
def test_other_settings_compute_other_outputs(case, key, value):
    """The negative control of the recordings: each of AMAGO's conventions shows in them."""
    config = copy.deepcopy(subject(case).config)
    *parents, name = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    assert node[name] != value
    node[name] = value
    agent = recordings.agent_of(replace(subject(case), config=config))
    columns = recordings.recorded(case)
    steps, _ = recordings.stepwise(agent, columns)
    names = ("policy", "normalized")
    assert max(largest_error(steps[name], columns[name]) for name in names) > TOLERANCE


def test_a_folder_acts_as_the_policy_and_says_where_it_is_from(tmp_path):
    saved = subject("gru_discrete")
    agent = yamame.load(write_folder(saved, tmp_path / "mine"), greedy=True)
    columns = recordings.recorded("gru_discrete")
    given = {}
    for step in range(60):
        observation = {key: columns[key][step, 0].numpy() for key in ("a", "b")}
        action = int(agent.act(observation, **given))
        # The recorded stream has executed other actions than the greedy ones.
        assert action == int(columns["policy"][step, 0, -1].argmax()) or step
        given = {"reward": 0.5}
    assert agent.gammas == (0.9, 0.99, 0.999)
    assert agent.gamma == 0.999
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "AMAGO 3.3" in card
    assert "trained by Yamame" not in card
    loss = saved.config["agent"]["loss"]
    assert (loss["reward_multiplier"], loss["target_tau"]) == (10.0, 0.003)


def test_imported_weights_can_be_trained():
    agent = recordings.agent_of(subject("transformer_discrete")).train()
    columns = recordings.recorded("transformer_discrete")
    place = (slice(40), slice(None))
    entries = recordings.timesteps(agent, columns, place).transpose(0, 1).contiguous()
    with set_recurrent_mode(True):
        context = agent.encoder(entries)["context"]
    policy = agent.action_space.distribution(agent.actor(context))
    (policy.probs.square().sum() + agent.critic(context).square().sum()).backward()
    without = [name for name, value in agent.named_parameters() if value.grad is None]
    assert without == []


TYPED = [
    ("gru_discrete", {"Actor": {"activation": "adaptive"}}, "amago.gin.Actor.activation"),
    ("gru_discrete", {"Actor": {"activation": 3}}, "amago.gin.Actor.activation"),
    ("gru_discrete", {"Actor": {"depth": 3}}, "amago.gin.Actor.depth"),
    ("gru_discrete", {"Aktor": {"activation": "relu"}}, "amago.gin.Aktor.activation"),
    ("gru_discrete", {"FFTstepEncoder": {"hide_rl2s": True}}, "FFTstepEncoder.hide_rl2s"),
    ("gru_discrete", {"FFTstepEncoder": {"norm": "rmsnorm"}}, "FFTstepEncoder.norm"),
    ("gru_discrete", {"FFTstepEncoder": {"normalize_inputs": 1}}, "normalize_inputs"),
    ("gru_discrete", {"FFTstepEncoder": {"specify_obs_keys": ["c"]}}, "specify_obs_keys"),
    ("gru_discrete", {"Discrete": {"clip_prob_low": 2.0}}, "amago.gin.Discrete.clip_prob_low"),
    ("gru_discrete", {"Agent": {"popart": False}}, "Agent.popart: must be True"),
    ("gru_bits", {"Actor": {"continuous_dist_type": "Beta"}}, "Multibinary, as in the weights"),
    ("transformer_box", {"Actor": {"continuous_dist_type": "Multibinary"}}, "as in the weights"),
    ("gru_discrete", {"Agent": {"use_multigamma": False}}, "Agent.use_multigamma"),
    ("gru_discrete", {"Agent": {"critic_type": "NCriticsTwoHot"}}, "Agent.critic_type"),
    ("gru_discrete", {"GRUTrajEncoder": {"n_layers": 3}}, "GRUTrajEncoder.n_layers"),
    ("gru_discrete", {"GRUTrajEncoder": {"norm": None}}, "GRUTrajEncoder.norm"),
    ("transformer_box", {"TanhGaussian": {"std_low": 0.1}}, "TanhGaussian.std_low"),
    ("transformer_box", {"Actor": {"continuous_dist_type": "GMM"}}, "continuous_dist_type"),
    ("transformer_box", {"TformerTrajEncoder": {"pos_emb": "learnable"}}, "pos_emb"),
    ("transformer_box", {"FlashAttention": {"window_size": [4, 0]}}, "FlashAttention.window_size"),
]


@pytest.mark.parametrize(("case", "typed", "part"), TYPED)
def test_arguments_that_cannot_be_imported_are_named(case, typed, part):
    recordings.refused(case, part, typed=typed)


NUMBERS = {
    "Agent.reward_multiplier": ("1e999", "-1.0", "0", "-1e999", "1" + 400 * "0", "True"),
    "Agent.tau": ("-5.0", "0.0", "1.5", "1e999"),
    "Agent.n_step": ("-3", "0", "1.5", "1" + 400 * "0"),
    "Agent.online_coeff": ("-1.0", "1e999", "'a'"),
    "Agent.num_critics_td": ("0", "-2"),
    "Agent.gamma": ("1e999", "-1.0", "1.0"),
    "Multigammas.discrete": ("[0.9, 1e999]", "[0.9, '0.99']", "[0.9, -0.5]", "0.9"),
    "PopArtLayer.beta": ("1e999", "-0.1", "2.0"),
    "PopArtLayer.init_nu": ("0.0", "1e999"),
    "InputNorm.beta": ("-1.0",),
    "Actor.dropout_p": ("7.0", "-0.1", "1.0"),
    "Discrete.clip_prob_high": ("1.5", "1e999"),
    "TformerTrajEncoder.dropout_ff": ("7.0", "1e999"),
    "Experiment.max_seq_len": ("1000000000000000", "1e15", "-3", "0", "'a'", "True"),
    "Experiment.traj_save_len": ("0", "1e999", "1000000000000000"),
}


def config_with(folder, case, name, value):
    """The configuration of a recording, with another value of an argument."""
    text = (recordings.FOLDER / case / "config.txt").read_text()
    kept = [line for line in text.splitlines() if not line.startswith(f"{name} = ")]
    config = folder / "config.txt"
    config.write_text("\n".join([*kept, f"{name} = {value}"]) + "\n")
    return config


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_a_file_out_of_range_are_refused(tmp_path, name):
    case = "transformer_discrete"
    for value in NUMBERS[name]:
        config = config_with(tmp_path, case, name, value)
        recordings.refused(case, name.partition(".")[0], gin=config)
        if name == "Experiment.max_seq_len":
            recordings.refused(case, name, gin=config, max_seq_len=None)


@pytest.mark.parametrize("case", ["transformer_discrete", "gru_discrete"])
def test_no_number_of_a_file_may_be_infinite(tmp_path, case):
    unused = {"TanhGaussian", "Beta"}
    unused.add("GRUTrajEncoder" if case.startswith("transformer") else "TformerTrajEncoder")
    num_refused = 0
    for group, arguments in DEFAULTS.items():
        for argument, default in arguments.items():
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            if group in unused or not is_number:
                continue
            config = config_with(tmp_path, case, f"{group}.{argument}", "1e999")
            recordings.refused(case, group, "inf", gin=config)
            num_refused += 1
    assert num_refused > 20


def test_a_length_that_no_episode_has_is_refused():
    recordings.refused("transformer_box", "amago.max_seq_len", "at most", max_seq_len=10**15)


WITHOUT_FILE = [
    ({"FFTstepEncoder": {"specify_obs_keys": ["a"]}}, "env: must have"),
    ({"Agent": {"gamma": 1.0}}, "Agent.gamma"),
]


@pytest.mark.parametrize(("typed", "part"), WITHOUT_FILE)
def test_arguments_without_a_file_are_compared_with_the_weights(typed, part):
    given = {
        "FFTstepEncoder": {"specify_obs_keys": ["b"]},
        "Multigammas": {"discrete": [0.9, 0.99]},
    }
    assert recordings.imported("gru_discrete", gin=None, typed=given).weights
    recordings.refused("gru_discrete", part, gin=None, typed={**given, **typed})


@pytest.mark.parametrize(
    ("case", "typed", "value"),
    [
        ("transformer_box", {"TformerTrajEncoder": {"pos_emb": "fixed"}}, "'rope'"),
        ("gru_discrete", {"Agent": {"gamma": 0.99}}, "0.999"),
        ("gru_discrete", {"Multigammas": {"discrete": [0.9, 0.95]}}, "[0.9, 0.99]"),
    ],
)
def test_what_is_typed_must_not_contradict_the_file(case, typed, value):
    recordings.refused(case, "amago.gin.", value, "config.txt", "amago.config=null", typed=typed)
    ((group, ((name, _),)),) = ((group, tuple(given.items())) for group, given in typed.items())
    path = recordings.FOLDER / case / "config.txt"
    same = parse_gin(path.read_text(), "it")[f"{group}.{name}"]
    assert recordings.imported(case, typed={group: {name: same}}).weights


def test_a_transformer_needs_its_length():
    recordings.refused("transformer_box", "amago.max_seq_len", max_seq_len=None)
    assert subject("gru_bits").config["encoder"]["_target_"].endswith(".GRUEncoder")
    assert recordings.imported("gru_bits", max_seq_len=None).weights.keys()


def test_a_length_that_a_file_contradicts_is_refused(tmp_path, capsys):
    text = (recordings.FOLDER / "transformer_box" / "config.txt").read_text()
    config = tmp_path / "config.txt"

    def given(line):
        config.write_text(f"{text}\n{line}\n")
        return {"gin": config}

    recordings.refused(
        "transformer_box", "amago.max_seq_len: must be 40", **given("Experiment.max_seq_len = 40")
    )
    recordings.refused("transformer_box", "at most 47", **given("Experiment.traj_save_len = 47"))
    capsys.readouterr()
    for line in (
        "Experiment.max_seq_len = 48",
        "Experiment.max_seq_len = %N",
        "A.traj_save_len = 2",
    ):
        assert recordings.imported("transformer_box", **given(line)).weights
    found = recordings.imported(
        "transformer_box", max_seq_len=None, **given("Experiment.max_seq_len = 40")
    )
    assert found.config["context_length"] == 40


def test_a_length_beyond_the_table_of_positions_is_refused():
    table = "traj_encoder.tformer.position_embedding.embeddings.weight"
    holds = [case for case in CASES if table in load_file(weights_of(case))]
    assert holds == ["transformer_beta"]
    assert recordings.imported("transformer_beta", max_seq_len=500).weights
    recordings.refused("transformer_beta", "max_seq_len: must be at most 500", max_seq_len=501)
    typed = {"LearnablePosEmb": {"max_time_idx": 499}}
    recordings.refused(
        "transformer_beta", "max_time_idx: must be 500, as in the weights", typed=typed
    )


def weights_of(case):
    return recordings.FOLDER / case / "model.safetensors"


def test_what_is_assumed_is_printed(capsys):
    recordings.imported("gru_discrete")
    assert capsys.readouterr().err == ""
    recordings.imported("transformer_box")
    assert "amago.max_seq_len=48" in capsys.readouterr().err
    keys = {"FFTstepEncoder": {"specify_obs_keys": ["b"]}, "Multigammas": {"discrete": [0.9, 0.99]}}
    recordings.imported("gru_discrete", gin=None, typed=keys)
    (line,) = capsys.readouterr().err.splitlines()
    for part in ("amago.config", "Agent.gamma=0.999", "NCritics.activation='leaky_relu'"):
        assert part in line
    # Given, seen in the weights, or of other parts.
    for part in ("Multigammas", "specify_obs_keys", "Agent.popart", "pos_emb", "dist_type"):
        assert part not in line


def test_another_environment_is_refused():
    place = recordings.environment("gru_discrete")
    for case, part in (("transformer_discrete", "discrete, 3"), ("gru_bits", "bits, 3")):
        with pytest.raises(UsageError, match=rf"env: must have actions .*{part}"):
            yamame.deploy.import_amago(
                recordings.FOLDER / case,
                interface=place.interface,
                config=place.config,
                max_seq_len=4,
            )


GIN = [
    ("Agent.gamma = 0.999", "Agent.gamma = @fn()", "Agent.gamma must"),
    ("Actor.d_hidden = 16", "Actor.d_hidden = 17", "Actor.d_hidden must be 16"),
    ("Actor.n_layers = 2", "Actor.rank = 3", "Actor.rank"),
    ("PopArtLayer.beta = 0.0005", "MultiTaskAgent.gamma = 0.9", "MultiTaskAgent"),
    ("PopArtLayer.beta = 0.0005", "OwnTstepEncoder.symlog = True", "OwnTstepEncoder"),
    ("PopArtLayer.beta = 0.0005", "Experiment.agent_type = @OwnAgent", "must be Agent"),
    ("Actor.n_layers = 2", "Actor.n_layers", "Class.argument = value"),
    ("Actor.activation = 'leaky_relu'", "Actor.activation = " + "(" * 2000, "Actor.activation"),
    ("Actor.activation = 'leaky_relu'", "Actor.activation = '\x1b[2J'", "Actor.activation"),
    ("Actor.activation", "Actor.activation\udcff", "UTF-8"),
    ("Actor.n_layers = 2", "#" * 2**19, "bytes"),
]


@pytest.mark.parametrize(("old", "new", "part"), GIN)
def test_a_configuration_that_does_not_fit_is_named(tmp_path, old, new, part):
    text = (recordings.FOLDER / "gru_discrete" / "config.txt").read_text()
    assert old in text
    config = tmp_path / "config.txt"
    config.write_bytes(text.replace(old, new).encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        recordings.imported("gru_discrete", gin=config)
    message = str(caught.value)
    assert message.isprintable()
    assert part in message, message


def test_a_missing_or_strange_configuration_is_refused(tmp_path):
    recordings.refused("gru_bits", "amago.config", gin=tmp_path / "nowhere.txt")
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    recordings.refused("gru_bits", "link", gin=tmp_path / "link.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    recordings.refused("gru_bits", "pipe", gin=tmp_path / "pipe.txt")


def test_gin_is_read_and_not_executed(tmp_path):
    text = f"""
# Actor.activation = 'relu'
import os
A.b = __import__('os').mkdir('{tmp_path}/hacked')
amago.nets.A.c = \\
    {{'x': [1,
            2.5]}}
A.d = @amago.Other()
A.e = %MACRO
"""
    values = parse_gin(text, "it")
    assert values["A.c"] == {"x": [1, 2.5]}
    assert [type(values[name]) for name in ("A.b", "A.d", "A.e")] == [Unread] * 3
    assert not list(tmp_path.iterdir())


def test_bindings_of_scopes_are_not_read(capsys):
    text = "Agent.gamma = 0.9\nx/Agent.gamma = 0.3\nx/y/amago.Agent.tau = 1\n"
    assert parse_gin(text, "it") == {"Agent.gamma": 0.9}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("it: bindings of scopes are ignored: x/Agent.gamma, x/y/amago.Agent.tau")
    recordings.refused("gru_discrete", "x/Agent.gamma", typed={"x/Agent": {"gamma": 0.9}})


@pytest.mark.parametrize("value", ["0", "True", "1e400", "'text'", "[0.5]", "@a.B", "{'a': 1}"])
def test_names_of_observations_are_a_list(tmp_path, value):
    name = "FFTstepEncoder.specify_obs_keys"
    config = config_with(tmp_path, "gru_discrete", name, value)
    recordings.refused("gru_discrete", name, "list of names", gin=config)
