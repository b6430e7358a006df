"""One setting of learning: experiments for one core follow it, those of papers do not."""

import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.cli.replaced import FORMER_CHOICES
from yamame.files.config import flatten

CONF = conf_dir()
EXPERIMENTS = {path.stem: path for path in sorted((CONF / "experiment").glob("*.yaml"))}
OTHER_DEFAULTS = {
    "train.yaml": {
        "budget.minutes": 77.0,
        "schedule.num_envs": 7,
        "schedule.steps_per_iteration": 77,
        "schedule.batch_timesteps": 77,
        "schedule.updates_per_step": 0.7,
        "schedule.regulator.target": 7.0,
        "schedule.learning_starts": 777,
        "schedule.learning_starts_episodes": 7,
        "schedule.average_decay": 0.7,
        "schedule.autocast": "bfloat16",
    },
    "encoder/transformer.yaml": {"num_layers": 7, "ff_factor": 7, "dropout": 0.7},
    "agent/amago.yaml": {
        "gammas": [0.7],
        "critic.num_critics": 7,
        "loss.n_step": 7,
        "loss.target_tau": 0.7,
    },
    "optimizer/muon.yaml": {"lr": 0.7, "matrix_lr": 0.7},
}
"""Other values of all learning settings, by their file."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Copy of the YAML files with other defaults."""
    copy = tmp_path_factory.mktemp("changed") / "conf"
    shutil.copytree(CONF, copy)
    for name, values in OTHER_DEFAULTS.items():
        config = OmegaConf.load(copy / name)
        for key, value in values.items():
            assert OmegaConf.select(config, key) != value
            OmegaConf.update(config, key, value)
        OmegaConf.save(config, copy / name)
    return copy


def composed(conf: Path, *overrides: str) -> dict:
    with initialize_config_dir(str(conf), version_base="1.3"):
        return flatten(OmegaConf.to_container(compose("train", overrides=list(overrides))))


def bases(name: str) -> set[str]:
    """Experiments that an experiment builds on, itself included."""
    found = {name}
    for entry in OmegaConf.load(EXPERIMENTS[name]).get("defaults", []):
        if entry in EXPERIMENTS:
            found |= bases(entry)
    return found


@pytest.mark.parametrize("name", ["amago_defaults", "rsm_defaults", "metaworld_ml10", "tmaze_400"])
def test_an_experiment_of_a_paper_stays_as_it_is_when_defaults_change(changed, name):
    choice = f"experiment={name}"
    assert composed(changed, choice) == composed(CONF, choice)


@pytest.mark.parametrize("overrides", [(), ("experiment=cpu_tmaze",)])
def test_the_default_and_experiments_for_one_core_follow_them(changed, overrides):
    before, after = composed(CONF, *overrides), composed(changed, *overrides)
    given = {f"schedule.{key}" for key in ("num_envs", "updates_per_step", "regulator.target")}
    given |= {"encoder.num_layers", "agent.critic.num_critics", "agent.loss.target_tau"}
    given |= {"optimizer.matrix_lr"}
    assert given <= {key for key in after if after[key] != before.get(key)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_builds_on_those_of_a_paper_or_has_an_environment_and_a_budget(name):
    config = OmegaConf.load(EXPERIMENTS[name])
    if bases(name) & {"amago_defaults", "rsm_defaults"}:
        assert not name.startswith("cpu_")
        return
    assert set(config) <= {"defaults", "env", "evaluation", "budget", "expected"}
    assert set(config.get("evaluation", {})) <= {"env"}
    overridden: set[str] = set()
    for entry in config.get("defaults", []):
        if OmegaConf.is_dict(entry):
            overridden |= set(entry)
    # A goal that is hidden is relabelled by an environment of tasks.
    assert overridden <= {"override /env", "override /relabel"}


def test_choices_of_earlier_versions_are_gone():
    for choice in FORMER_CHOICES:
        group, _, name = choice.partition("=")
        assert not (CONF / group / f"{name}.yaml").exists()
