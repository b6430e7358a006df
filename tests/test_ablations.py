"""Every ablation takes away what it says and nothing else, from every experiment."""

from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.cli.nodes import check, instantiate
from yamame.files.config import flatten

CONF = conf_dir()
ABLATIONS = sorted(path.stem for path in (CONF / "ablation").glob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
STABILISERS = (
    "norm_attention",
    "norm_feedforward",
    "head_scaling",
)  # sigma_reparam is on in experiments alone
CHANGED = {
    "hidden_instruction": {
        "relabel.hide_future_goals": True,
        "goal_encoder.hide_future_goals": True,
    },
    "no_filtered_bc": {"agent.loss.cloning_coeff": 0.0},
    "no_multigamma": {"agent.multi_gamma": False},
    "no_relabel": {"relabel.strategy": "none"},
    "no_stabilisers": {
        **{f"encoder.{name}": False for name in STABILISERS},
        "encoder.activation": "gelu",
    },
    "separate": {"agent.loss._target_": "yamame.losses.SeparateREDQLoss"},
    "single_goal": {"relabel.single_goal": True, "goal_encoder.single_goal": True},
}
"""What an ablation changes in the full agent; `no_memory` has another encoder, see below."""


@cache
def configuration(*overrides: str) -> dict:
    """The whole configuration, checked: every key is a parameter of its target."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return check(compose("train", overrides=list(overrides)))


def difference(*overrides: str, ablation: str) -> dict:
    """The keys that ablations change or add, with their new values; removed ones are None."""
    full, reduced = (
        flatten(configuration(*overrides, *extra)) for extra in ([], [f"+ablation={ablation}"])
    )
    return {
        key: reduced.get(key)
        for key in full.keys() | reduced.keys()
        if (key in full, full.get(key)) != (key in reduced, reduced.get(key))
    }


def test_every_ablation_is_described_here():
    assert set(ABLATIONS) == {*CHANGED, "no_memory"}


@pytest.mark.parametrize("ablation", CHANGED)
def test_an_ablation_differs_from_the_full_agent_in_what_it_says_and_nothing_else(ablation):
    assert difference(ablation=ablation) == CHANGED[ablation]


def test_without_memory_only_the_encoder_differs_and_is_as_wide_as_the_heads():
    """In the full agent, and in one experiment of all whose encoders have the same keys and heads
    one width.
    """

    def parts(config: dict) -> tuple:
        return (
            frozenset(config["encoder"]),
            config["encoder"]["_target_"],
            config["agent"]["actor"]["hidden_size"],
        )

    alike = {parts(configuration()): []}
    for name in EXPERIMENTS:
        alike.setdefault(parts(configuration(f"experiment={name}")), [f"experiment={name}"])
    assert len(alike) > 1
    for chosen in alike.values():
        differing = {key.split(".")[0] for key in difference(*chosen, ablation="no_memory")}
        assert differing == {"encoder"}, chosen
        config = configuration(*chosen, "+ablation=no_memory")
        assert config["encoder"]["_target_"] == "yamame.trajectory.MemorylessEncoder"
        assert (
            instantiate(config["encoder"])(8).out_features
            == config["agent"]["actor"]["hidden_size"]
        )


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_ablations_win_over_every_experiment_and_what_they_describe_can_be_built(experiment):
    chosen, every = (
        f"experiment={experiment}",
        f"[{','.join(CHANGED)}]",
    )  # they change different keys
    expected = {key: value for changed in CHANGED.values() for key, value in changed.items()}
    config = configuration(chosen, f"+ablation={every}")
    flat = flatten(config)
    assert {key: flat[key] for key in expected} == expected
    allowed = {
        *expected,
        "encoder.sigma_reparam",
        "agent.loss.online_coeff",
    }  # switched on where an experiment has no online term
    # Without relabelling, the whole section is another one.
    allowed |= {key for key in flat | flatten(configuration(chosen)) if key.startswith("relabel.")}
    changed = set(difference(chosen, ablation=every))
    if flatten(configuration(chosen))["encoder._target_"] != flat["encoder._target_"]:
        changed = {
            key for key in changed if not key.startswith("encoder.")
        }  # the ablation's is a Transformer
    assert changed <= allowed
    assert flat["agent.loss.online_coeff"] == 1.0
    assert not flat["encoder.sigma_reparam"]
    assert instantiate(config["encoder"])(8).out_features == config["encoder"]["d_model"]
    for node in (config["goal_encoder"], config["relabel"], config["agent"]["returns"]):
        instantiate(node)


def test_the_experiments_of_the_paper_have_what_the_ablation_takes_away_and_the_naive_agent_lacks():
    assert configuration("experiment=tmaze_400")["encoder"]["sigma_reparam"]
    naive = configuration("experiment=tmaze_400", "agent=naive")["encoder"]
    assert not any(naive[name] for name in (*STABILISERS, "sigma_reparam"))


def test_an_experiment_whose_encoder_keys_mean_nothing_without_memory_is_among_them():
    assert configuration("experiment=tmaze_10000")["encoder"]["checkpoint_layers"]
    with pytest.raises(ValueError, match=r"encoder\.\w+: .*MemorylessEncoder"):
        configuration("experiment=tmaze_10000", "encoder=memoryless")
