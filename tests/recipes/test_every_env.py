"""Every choice of the configurations trains: two updates of a tiny agent, until the summary."""

import pytest
import yamame
from yamame.checks import UsageError

CONF = yamame.conf_dir()
RUNS = [
    # Environments that need nothing, each with choices of other groups; those with goals have the
    # ways to relabel.
    "env=active_tmaze env.length=8 agent=naive encoder=transformer_naive",
    "env=bandits env.time_limit=9 trials=none encoder=memo exploration=none evaluation.num_envs=3",
    "env=bandits env.time_limit=9 encoder=transformer_deep agent=amago_paper",
    "env=bandits env.time_limit=9 encoder=ffm",
    "env=bandits env.time_limit=9 encoder=mingru",
    "env=dark_key_to_door env.time_limit=9 encoder=rsm "
    "agent.loss.cloning_filter=exponential agent.loss.n_step=3",
    "env=frozenlake relabel=none encoder=gru agent.loss.discrete_gradient=straight_through",
    "env=gym env.id=Blackjack-v1 encoder=deltanet",
    "env=gym env.id=Pendulum-v1 env.time_limit=5 trials=repeated agent=separate "
    "exploration=gaussian encoder=mlstm",
    "env=mazerunner env.time_limit=9 agent=amago relabel=rarity encoder=window "
    "exploration=bilevel goal_encoder=mlp",
    "env=mazerunner env.time_limit=9 "
    "+ablation=[hidden_instruction,no_filtered_bc,no_multigamma] relabel=all "
    "encoder=lstm exploration=epsilon_greedy",
    "env=mazerunner env.time_limit=9 +ablation=[single_goal,no_stabilisers] "
    "relabel=all_or_nothing agent=amago2 "
    "agent/returns=binned agent.returns.labels=hl_gauss",
    "env=mazerunner env.time_limit=9 +ablation=[no_memory,separate] relabel=hide_future_goals",
    "env=package_delivery env.time_limit=9 +ablation=[no_relabel,separate] relabel=some "
    "encoder=transformer "
    "agent/returns=popart timestep_encoder=auto",
    "env=package_delivery env.time_limit=9 relabel=single_goal optimizer=adamw replay=disk "
    "collector=sync "
    "encoder=linear_recurrent timestep_encoder=mlp",
    "env=tmaze env.length=8 agent=bc exploration=edges hardware=cpu optimizer=muon encoder=lru",
    "env=tmaze env.length=8 encoder=gru_rounded",
    "env=wind env.time_limit=9 agent.box_distribution=beta encoder=memoryless",
    "env=wind env.time_limit=9 agent=amago2 encoder=gru_selective callbacks=early_stopping",
    "env=xland relabel=tasks env.achieved=true env.reward=success env.trial_end=reset_step "
    "env.size=6 env.trial_limit=9 encoder=gru",
    # Environments and encoders of other packages; nothing else is tested with these alone.
    *("env=crafter goal_encoder=token", "env=minigrid", "env=multi_domain", "env=popgym"),
    *("env=tmaze encoder=hf", "env=tmaze encoder=mamba", "env=tmaze encoder=torchrl"),
    *("env=atari env.time_limit=40", "env=half_cheetah_vel env.time_limit=40"),
    "env=metaworld env.time_limit=20",
    *("env=anymdp env.num_actions=3 env.num_tasks=16 env.time_limit=20", "env=memory_gym"),
    "env=minihack env.time_limit=40",
    "env=jax",
]
ELSEWHERE = {
    "collector/ray",
    "debug/tiny",
    "env/gym_goals",
    "hardware/gpu",
    "logger/mlflow",
    "logger/none",
}
ELSEWHERE |= {"launcher/local", "launcher/slurm", "sweeper/optuna"}
ELSEWHERE |= {
    *(f"suite/{path.stem}" for path in CONF.glob("suite/*")),
    *(str(path.relative_to(CONF).with_suffix("")) for path in CONF.glob("reproduce/**/*.yaml")),
    *(f"compare/{path.stem}" for path in CONF.glob("compare/*")),
}
ELSEWHERE |= {
    f"data/{name}" for name in ("hdf5", "lerobot", "minari", "none", "npz", "runs", "torchrl")
}
ELSEWHERE |= {"curriculum/none", "curriculum/plr", "data/amago", "hydra/launcher/local"}
"""Choices of all runs here, and of tests of their own."""


def choices(arguments: str) -> set[str]:
    """What a command line chooses, as ``group/name``."""
    pairs = [text.lstrip("+").split("=", 1) for text in arguments.split()]
    named = [(group, name) for group, names in pairs for name in names.strip("[]").split(",")]
    return {f"{group}/{name}" for group, name in named if (CONF / group / f"{name}.yaml").is_file()}


def test_every_choice_is_trained_with():
    every = {str(path.relative_to(CONF).with_suffix("")) for path in CONF.glob("*/**/*.yaml")}
    every = {
        choice for choice in every if not choice.startswith(("experiment/", "ablation/reset/"))
    }
    assert every - ELSEWHERE == set().union(*map(choices, RUNS))


@pytest.mark.parametrize("arguments", RUNS)
def test_two_updates_of_a_tiny_agent(arguments, monkeypatch, tmp_path, skip_if_missing):
    monkeypatch.chdir(tmp_path)
    try:
        run = yamame.train(
            "debug=tiny", "logger=none", "evaluation.video_frames=1", *arguments.split()
        )
    except UsageError as error:
        skip_if_missing(str(error))
        raise
    assert (run.summary["status"], run.summary["updates"]) == ("FINISHED", 2)
    assert run.summary["return_mean"] is not None
