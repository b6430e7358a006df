"""What a configuration says of an agent is what is built."""

import pytest
import torch
import yamame
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.actions import BetaDistribution, TanhNormalDistribution
from yamame.agent import InContextAgent
from yamame.checks import UsageError
from yamame.losses import MultiGammaREDQLoss, SeparateREDQLoss
from yamame.replay import SequencePacking, pack
from yamame.runs.build import build_agent, build_env, build_learner, build_transform


def built(*overrides: str) -> tuple[InContextAgent, MultiGammaREDQLoss]:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=list(overrides))
    agent = build_agent(cfg, build_env(cfg, num_envs=2, seed=0))
    return agent, build_learner(cfg, agent).loss


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        (["env=tmaze"], 34),
        (["env=mazerunner", "env.time_limit=70"], 71),
        (["env=mazerunner", "env.time_limit=70", "context_length=50"], 51),
        (["env=mazerunner", "env.time_limit=70", "context_length=50", "window=null"], 71),
    ],
)
def test_packing_is_told_how_long_what_it_packs_may_be(overrides, longest):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[*overrides, "packing.length_multiple=64"])
    *_, packing = build_transform(cfg, build_env(cfg, num_envs=2, seed=0)).transforms
    assert (type(packing), packing.longest, packing.length_multiple) == (
        SequencePacking,
        longest,
        64,
    )


def test_packing_that_takes_no_length_is_told_none(own_module):
    source = "from torchrl.envs import Transform\n\n\nclass Loose(Transform):\n    pass\n"
    own_module("loosely", source)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=["trust=[loosely.]"])
    cfg.packing = {"_target_": "loosely.Loose"}
    *_, packing = build_transform(cfg, build_env(cfg, num_envs=2, seed=0)).transforms
    assert type(packing).__name__ == "Loose"


def test_without_multi_gamma_the_acting_discount_is_the_only_one():
    agent, loss = built("agent.gammas=[0.5,0.9,0.97]")
    assert agent.gammas == (0.5, 0.9, 0.97)
    agent, loss = built("agent.gammas=[0.5,0.9,0.97]", "agent.multi_gamma=false")
    assert agent.gammas == (0.97,)
    assert agent.actor.num_gammas == loss.gammas.numel() == 1


@pytest.mark.parametrize("choice", ["agent=separate", "+ablation=separate"])
def test_a_loss_for_separate_encoders_gets_them(choice):
    agent, loss = built(choice)
    assert isinstance(loss, SeparateREDQLoss)
    assert agent.critic_encoder is not None
    agent, loss = built()
    assert not isinstance(loss, SeparateREDQLoss)
    assert agent.critic_encoder is None


def test_cloning_has_no_critic():
    agent, loss = built("agent=bc")
    assert agent.critic is None
    assert {name for name in loss.out_keys if name.startswith("loss_")} == {"loss_cloning"}
    assert built("agent=amago")[0].critic is not None


@pytest.mark.parametrize(
    ("overrides", "family"),
    [(["agent.box_distribution=beta"], BetaDistribution), ([], TanhNormalDistribution)],
)
def test_the_family_of_continuous_policies_is_a_setting(overrides, family):
    agent, _ = built("env=wind", *overrides)
    assert agent.action_space._family is family


WRONG = """
from torch import nn
from yamame.trajectory import MemorylessEncoder

class TooWide(MemorylessEncoder):
    def __init__(self, in_features):
        super().__init__(in_features)
        self.out_features += 1
"""


def small_config():
    overrides = ["env=mazerunner", "encoder=memoryless", "trust=[mylab.]"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", overrides=overrides)


def build_all(cfg):
    build_env(cfg, num_envs=2, seed=0, held_out=True)
    env = build_env(cfg, num_envs=2, seed=0)
    return build_learner(cfg, build_agent(cfg, env))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("env.size", 8, r"env\.size: must be .*, got 8"),
        ("evaluation.env.size", 8, r"evaluation\.env\.size: must be .*, got 8"),
        ("schedule.average_decay", 2, r"schedule\.average_decay: must be .*, got 2"),
        ("schedule.max_grad_norm", -1, r"schedule\.max_grad_norm: must be .*, got -1"),
        ("agent.probability_floor", 7, r"agent\.probability_floor: must be .*, got 7"),
        ("encoder", {"_target_": "mylab.TooWide"}, r"encoder: must return .*, got \[1"),
        ("optimizer.lr", -1, r"optimizer\.lr: must be .*, got -1"),
    ],
)
def test_an_error_of_a_part_names_the_key_of_the_setting(own_module, key, value, message):
    own_module("mylab", WRONG)
    cfg = small_config()
    if isinstance(value, dict):
        value = {**value, "_partial_": True}
    OmegaConf.update(cfg, key, value, merge=False, force_add=True)
    with pytest.raises(UsageError, match=rf"^{message}"):
        build_all(cfg)


def test_the_configuration_of_these_errors_is_right_without_them():
    build_all(small_config())


def test_relabelling_without_goals_names_the_group_and_the_environment():
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=["env=tmaze", "relabel=some"])
    env = build_env(cfg, num_envs=2, seed=0)
    with pytest.raises(UsageError, match=r"^relabel: .*TMaze has no goals .*relabel=none"):
        build_transform(cfg, env)


SHAPED = """
from yamame.replay.gather import BatchTransform


class Shaped(BatchTransform):
    def __init__(self, bonus=1.0):
        super().__init__(in_keys=[("next", "reward")], out_keys=[("next", "reward")])
        self.bonus = bonus

    def forward(self, tensordict):
        reward = tensordict["next", "reward"]
        return tensordict.copy().set(("next", "reward"), reward + self.bonus)


class NeedsGoals(Shaped):
    needs_goals = True
"""


def test_a_class_outside_of_the_package_edits_trajectories_without_goals(own_module):
    own_module("shaped", SHAPED)
    cfg = yamame.compose("env=tmaze", "trust=[shaped.]")
    env = build_env(cfg, num_envs=2, seed=0)
    batch = pack(env.rollout(3))

    def transformed(target):
        OmegaConf.update(cfg, "relabel", {"_target_": target}, merge=False)
        return build_transform(cfg, env)(batch.clone())["next", "reward"]

    assert torch.equal(transformed("shaped.Shaped"), batch["next", "reward"] + 1.0)
    with pytest.raises(UsageError, match=r"^relabel: .*TMaze has no goals .*'NeedsGoals'"):
        transformed("shaped.NeedsGoals")
