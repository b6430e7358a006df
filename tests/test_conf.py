"""The YAML files and the code say the same: every choice composes, every key is a parameter, no
default drifts.
"""

import importlib.util
import inspect
from contextlib import nullcontext
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.cli.command_line import read_command_line
from yamame.cli.explain import check_choices
from yamame.cli.help import describe_fields
from yamame.cli.nodes import check, plain, targets
from yamame.cli.settings import CONFIGS
from yamame.cli.validation import SettingsError, parameters_of, validated
from yamame.files.config import flatten

CONF = conf_dir()
CHOICES = sorted(str(path.relative_to(CONF).with_suffix("")) for path in CONF.rglob("*/*.yaml"))
COMPOSED_ELSEWHERE = (
    "experiment",
    "ablation",
    "launcher",
    "sweeper",
    "hardware",
    "suite",
    "reproduce",
    "compare",
)
"""Groups of which `test_ablations.py` composes and checks every choice, those of packages that may
be missing, what sets keys of other groups (`recipes/test_api.py`), and those of other recipes
(`recipes/test_leaderboard.py`)."""
APPENDED = ("ablation",)
"""Groups that no main file has in its defaults list, so that they are added:
``+ablation=no_memory``.
"""
PARTS = ("base", "quiet")
"""Files beside the main ones that those build on."""
MAIN = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem not in PARTS)


@cache
def composed(config: str, *overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(config, overrides=list(overrides))


def chosen(choice: str) -> str:
    """The override that makes a choice, ``group/name`` or ``group/group/name``."""
    group, _, name = choice.rpartition("/")
    return f"{'+' if group.split('/')[0] in APPENDED else ''}{group}={name}"


def target_of(path: str):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


ON_PURPOSE = {"split": "train", "held_out": 16, "num_layers": 1}
"""A recipe trains on one side of the tasks, and holds trajectories out for its regulator; a class,
and a run from before there were sides, plays all, and a buffer alone has no regulator. A GRU has
one layer in the setting for all environments, two alone.
"""


def drifted(node: dict) -> list[str]:
    """Keys of a node whose value is not the default in the signature, where that has one."""
    parameters = parameters_of(target_of(node["_target_"]))
    wrong = []
    for key, value in node.items():
        if key in ("_target_", "_partial_", "_convert_") or isinstance(value, dict):
            continue
        default = parameters[key].default
        default = list(default) if isinstance(default, tuple) else default
        if default not in (inspect.Parameter.empty, value) and ON_PURPOSE.get(key) != value:
            wrong.append(f"{key}: {value!r} is not {default!r}")
    return wrong


def test_there_are_the_groups_that_the_command_line_promises():
    parts = "env encoder timestep_encoder agent relabel replay collector exploration"
    promised = f"{parts} optimizer logger experiment debug"
    assert set(promised.split()) <= {path.name for path in CONF.iterdir() if path.is_dir()}
    assert "train" in MAIN


def columns() -> list[tuple[str, ...]]:
    """Choices of different groups, each in one of as few configurations as there are choices of the
    largest group.
    """
    groups: dict[str, list[str]] = {}
    for choice in CHOICES:
        if choice.split("/")[0] not in COMPOSED_ELSEWHERE:
            groups.setdefault(choice.rpartition("/")[0], []).append(choice)
    return [tuple(filter(None, column)) for column in zip_longest(*groups.values())]


@pytest.mark.parametrize("choices", columns(), ids="+".join)
def test_every_choice_composes_and_its_keys_are_parameters(choices):
    check(composed("train", *map(chosen, choices), "data.path=a"))


def test_no_choice_is_left_out():
    """Composing takes a tenth of a second, so what test_ablations.py composes and checks is not
    composed again.
    """
    known = [choice for column in columns() for choice in column]
    elsewhere = [choice for choice in CHOICES if choice.split("/")[0] in COMPOSED_ELSEWHERE]
    assert sorted([*known, *elsewhere]) == CHOICES
    assert len(elsewhere) > 40


@pytest.mark.parametrize(
    ("choice", "package"),
    [
        ("launcher=local", "yamame_local"),
        ("launcher=slurm", "hydra_submitit_launcher"),
        ("sweeper=optuna", "hydra_optuna_sweeper"),
    ],
)
def test_what_starts_a_sweep_is_chosen_in_hydra_alone(choice, package):
    pytest.importorskip(f"hydra_plugins.{package}")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = compose("train", overrides=[choice], return_hydra_config=True)
    group, _, _ = choice.partition("=")
    assert package in chosen.hydra[group]._target_
    assert flatten(plain(composed("train", choice))) == flatten(plain(composed("train")))


def test_the_check_refuses_a_key_that_is_no_parameter():
    with pytest.raises(ValueError, match=r"encoder\.bogus"):
        check(composed("train", "+encoder.bogus=1"))


@pytest.mark.parametrize("choices", [(), *columns()], ids="+".join)
def test_values_equal_the_defaults_of_the_signature_unless_the_file_is_a_variant(choices):
    config = plain(composed("train", *map(chosen, choices), "data.path=a"))
    ours = [(key, node) for key, node in targets(config) if node["_target_"].startswith("yamame")]
    assert ours
    original = [choice for choice in choices if not is_variant(CONF / f"{choice}.yaml")]
    groups = tuple(f"{choice.rpartition('/')[0].replace('/', '.')}." for choice in original)
    wrong = {
        key: drifted(node) for key, node in ours if not choices or f"{key}.".startswith(groups)
    }
    assert not {key: text for key, text in wrong.items() if text}


def is_variant(path: Path) -> bool:
    """Whether a file builds on another choice of its group and lists differences only."""
    defaults = OmegaConf.load(path).get("defaults", [])
    return any(isinstance(entry, str) and entry != "_self_" for entry in defaults)


def test_a_drifted_default_is_noticed():
    node = {"_target_": "yamame.trajectory.TransformerEncoder", "num_heads": 7}
    assert drifted(node) == ["num_heads: 7 is not 8"]


@pytest.mark.parametrize(
    "path", sorted(CONF.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONF))
)
def test_every_file_says_in_a_comment_what_it_is(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# ")


def test_an_environment_without_goals_turns_relabelling_off_and_an_explicit_choice_wins():
    assert composed("train", "env=tmaze").relabel.strategy == "none"
    assert composed("train", "env=tmaze", "relabel=all").relabel.strategy == "all"
    assert composed("train").relabel.strategy == "some"


def test_the_naive_agent_has_no_stabilisers_one_gamma_and_two_critics():
    config = composed("train", "agent=naive")
    assert len(config.agent.gammas) == 1
    assert config.agent.critic.num_critics == 2
    stabilisers = ("norm_attention", "norm_feedforward", "head_scaling", "sigma_reparam")
    assert not any(config.encoder[name] for name in stabilisers)
    assert composed("train", "agent=naive", "encoder=gru").encoder._target_.endswith("GRUEncoder")


def test_the_second_agent_classifies_returns_and_has_nothing_of_popart():
    agent = composed("train", "agent=amago2").agent
    assert agent.returns._target_.endswith("BinnedReturns")
    assert "enabled" not in agent.returns
    assert (agent.loss.online_coeff, agent.loss.cloning_coeff, agent.loss.num_action_samples) == (
        0.0,
        1.0,
        3,
    )
    assert composed("train", "agent=amago2", "agent/returns=popart").agent.returns.enabled
    assert "enabled" not in composed("train", "agent/returns=binned").agent.returns


def test_the_separate_agent_is_recurrent_unless_an_encoder_is_chosen():
    config = composed("train", "agent=separate")
    assert config.encoder._target_.endswith("GRUEncoder")
    assert (list(config.agent.gammas), config.agent.multi_gamma) == ([0.99], False)
    assert config.agent.critic.num_critics == 2
    assert config.agent.loss.cloning_coeff == 0.0
    chosen_encoder = composed("train", "agent=separate", "encoder=transformer").encoder
    assert chosen_encoder._target_.endswith("TransformerEncoder")


def test_cloning_has_neither_critics_nor_a_filter_nor_several_policies():
    agent = composed("train", "agent=bc").agent
    assert (agent.critic.num_critics, agent.multi_gamma, agent.loss.cloning_filter) == (
        0,
        False,
        "none",
    )
    assert (agent.loss.online_coeff, agent.loss.critic_coeff, agent.loss.cloning_coeff) == (
        0.0,
        0.0,
        1.0,
    )


QUICK = [("tmaze_10000", "encoder=gru"), ("crafter", "agent=separate")]
SLOW = [("crafter", "encoder=gru"), ("tmaze_10000", "agent=separate")]
SLOW += [
    (name, choice)
    for name in ("mazerunner_15_k1", "popgym")
    for choice in ("encoder=gru", "agent=separate")
]


@pytest.mark.parametrize(
    ("experiment", "choice"),
    [*QUICK, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW)],
)
def test_a_recurrent_encoder_in_a_preset_of_a_transformer_says_what_to_drop_and_then_composes(
    experiment, choice
):
    choices = [f"experiment={experiment}", choice]
    with pytest.raises(ValueError, match=r"encoder\.\w+: .*GRUEncoder") as raised:
        check(composed("train", *choices), overridden=[])
    _, _, remedy = str(raised.value).partition("add ")
    assert len(remedy.split()) > 1
    config = check(composed("train", *choices, *remedy.split()))
    assert config["encoder"]["_target_"].endswith("GRUEncoder")


@pytest.mark.parametrize("main", MAIN)
def test_the_settings_of_a_main_file_are_those_that_are_declared_and_its_defaults_are_allowed(main):
    needed = {
        "replay_batch": ["bundle=a"],
        "export": ["run=a", "path=b"],
        "offline": ["data.path=a"],
        "import_amago": ["amago.weights=a", "amago.path=b"],
    }
    needed |= {key: ["run=a"] for key in ("evaluate", "play", "serve", "sync")}
    given = needed.get(main, [])
    cfg = composed(main, *given)
    config = plain(cfg)
    check(cfg, CONFIGS[main])
    validated(CONFIGS[main], config, overridden=list(config))  # no key without a field
    required = [name for name, field in CONFIGS[main].model_fields.items() if field.is_required()]
    assert set(required) <= config.keys()


def test_the_page_of_settings_is_that_of_the_models():
    path = Path(__file__).parents[1] / "tools" / "settings_page.py"
    spec = importlib.util.spec_from_file_location("settings_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run python tools/settings_page.py"


@pytest.mark.parametrize("main", MAIN)
def test_every_setting_has_a_description(main):
    bare = [key for key, text in describe_fields(CONFIGS[main]).items() if not text]
    assert bare == []


def test_the_variables_of_mlflow_choose_the_store_unless_the_command_line_does(monkeypatch):
    def stores(*typed):
        return [
            composed.__wrapped__("train", *(f"logger.{key}" for key in typed)).logger,
            composed.__wrapped__("report", *(f"store.{key}" for key in typed)).store,
        ]

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    expected = ("sqlite:///mlflow.db", "yamame")
    assert [(node.tracking_uri, node.experiment) for node in stores()] == [expected] * 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:word@host:5000/a?b=c,d")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "my mazes")
    expected = ("https://user:word@host:5000/a?b=c,d", "my mazes")
    assert [(node.tracking_uri, node.experiment) for node in stores()] == [expected] * 2
    for name in ("evaluate", "play"):
        assert composed.__wrapped__(name, "run=a").tracking_uri == expected[0]
    typed = stores("tracking_uri=sqlite:///other.db", "experiment=other")
    assert [(node.tracking_uri, node.experiment) for node in typed] == [
        ("sqlite:///other.db", "other")
    ] * 2


def test_a_setting_that_is_not_declared_is_noticed():
    config = plain(composed("train", "+schedule.patience=3", "+surprise=1"))
    with pytest.raises(SettingsError) as raised:
        validated(CONFIGS["train"], config, overridden=list(config))
    keys = sorted(problem.key for problem in raised.value.problems)
    assert keys == ["schedule.patience", "surprise"]


def test_a_value_in_place_of_a_section_is_named_before_what_it_breaks():
    with pytest.raises(ValueError, match=r"^checkpoint: must be a mapping .*, got true$"):
        check(composed("train", "checkpoint=true"), CONFIGS["train"])  # replay.keep is below it


def test_what_recipes_have_in_common_stands_in_one_file():
    base, *own = (
        flatten(OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml")))
        for name in ("base", "train", "ppo", "distill", "offline")
    )
    assert base["seed"] == 0
    for values in own:
        twice = [key for key in values.keys() & base.keys() if values[key] == base[key]]
        assert [key for key in twice if not key.startswith("defaults.")] == []


def names_discounts(name: str) -> bool:
    """Return True if an experiment, one it builds on, or the agent it chooses names numbers."""
    settings = OmegaConf.load(CONF / "experiment" / f"{name}.yaml")
    if "gammas" in settings.get("agent", {}):
        return True
    for entry in settings.get("defaults", []):
        if isinstance(entry, str):
            if entry != "_self_" and names_discounts(entry):
                return True
        elif "override /agent" in entry:
            agent = OmegaConf.load(CONF / "agent" / f"{entry['override /agent']}.yaml")
            return agent.get("gammas", "auto") != "auto"
    return False


def test_the_experiments_of_papers_keep_their_discounts_whatever_the_default_is():
    experiments = [path.stem for path in (CONF / "experiment").glob("*.yaml")]
    # Not of a paper: presets for one core, tasks for the default agent, and the base of some.
    rest = {name for name in experiments if name.startswith(("cpu_", "xland_"))}
    rest |= {name for name in experiments if name.endswith("_task")} | {"dark_key_to_door_small"}
    of_papers = [name for name in experiments if name not in rest]
    assert len(of_papers) > 25
    assert [name for name in of_papers if not names_discounts(name)] == []
    assert not any(names_discounts(name) for name in rest)


def test_another_agent_brings_its_discounts_to_an_experiment_of_a_paper():
    assert composed("train", "experiment=amago_defaults", "agent=naive").agent.gammas == [0.99]
    assert len(composed("train", "experiment=amago_defaults").agent.gammas) > 1


@pytest.mark.parametrize("preset", ["tmaze_400", "rsm_dark_key_to_door"])
def test_presets_of_train_choose_no_agent_for_other_recipes(preset):
    for recipe in ("ppo", "distill"):
        own = composed(recipe).agent
        agent = composed(recipe, f"experiment={preset}").agent
        assert agent.loss._target_ == own.loss._target_
        assert agent.critic == {**own.critic, "hidden_size": agent.critic.hidden_size}
        assert agent.loss.get("cloning_coeff") == own.loss.get("cloning_coeff")
    assert composed("train", f"experiment={preset}").agent.critic.num_critics == 4
    assert composed("distill", f"experiment={preset}", "agent=amago").agent.critic.num_critics == 2


def test_a_recipe_with_an_agent_of_its_own_has_no_choices_of_agents():
    for recipe, groups in (("ppo", {"agent"}), ("distill", set())):
        line = read_command_line(["agent=naive"], str(CONF), recipe)
        assert line.fixed_groups == groups
        message = r"^agent: there are no choices here, .*agent=naive$"
        with pytest.raises(UsageError, match=message) if groups else nullcontext():
            check_choices(line)
