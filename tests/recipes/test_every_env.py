"""Every choice of the command line trains: two updates of a tiny agent, until the summary."""

import json
from pathlib import Path

import pytest
from yamame import conf_dir

CONF = conf_dir()
RUNS = [
    # Environments that need nothing, each with choices of other groups.
    "env=active_tmaze agent=naive encoder=transformer_naive",
    "env=bandits encoder=linear_recurrent exploration=none timestep_encoder=mlp",
    "env=dark_key_to_door env.time_limit=40 agent=amago2 agent/returns=binned agent.returns.labels=hl_gauss",
    "env=dark_key_to_door env.time_limit=40 encoder=lstm agent.loss.cloning_filter=exponential agent.loss.n_step=3",
    "env=frozenlake relabel=none encoder=gru agent.loss.discrete_gradient=straight_through",
    "env=gym env.id=Blackjack-v1 evaluation.num_envs=3 encoder=gru_selective",
    "env=gym env.id=Pendulum-v1 exploration=gaussian env.time_limit=20 trials=repeated trials.num_trials=2",
    "env=mazerunner agent=amago relabel=rarity encoder=window exploration=bilevel goal_encoder=mlp",
    "env=mazerunner +ablation=hidden_instruction relabel=all exploration=epsilon_greedy",
    "env=mazerunner +ablation=single_goal relabel=all_or_nothing",
    "env=mazerunner +ablation=[no_filtered_bc,no_multigamma,no_relabel,no_stabilisers]",
    "env=mazerunner +ablation=[no_memory,separate] relabel=hide_future_goals",
    "env=mazerunner +ablation=separate encoder=transformer agent/returns=popart",
    "env=package_delivery relabel=single_goal optimizer=adamw replay=disk collector=sync",
    "env=package_delivery relabel=some agent=separate timestep_encoder=auto",
    "env=tmaze agent=bc exploration=edges hardware=cpu optimizer=muon",
    *("env=tmaze encoder=rsm", "env=tmaze encoder=memo"),
    "env=wind agent.box_distribution=beta",
    "env=wind agent=amago2 callbacks=early_stopping",
    "env=wind agent=separate encoder=memoryless callbacks=cost_limit",
    "env=tmaze encoder=hf",
    # Environments and encoders of other packages; nothing else is tested with these alone.
    *("env=crafter goal_encoder=token", "env=minigrid", "env=multi_domain", "env=popgym", "encoder=mamba"),
    *("env=atari env.time_limit=40", "env=half_cheetah_vel env.time_limit=40"),
    "env=metaworld env.time_limit=20",
    *("env=anymdp env.num_actions=3 env.num_tasks=16 env.time_limit=20", "env=memory_gym"),
    "env=minihack env.time_limit=40",
]
ELSEWHERE = {"collector/ray", "debug/tiny", "env/gym_goals", "hardware/gpu", "logger/mlflow", "logger/none"}
ELSEWHERE |= {"launcher/local", "launcher/slurm", "sweeper/optuna"}
ELSEWHERE |= {"suite/popgym", *(f"reproduce/rsm/{path.stem}" for path in CONF.glob("reproduce/rsm/*"))}
ELSEWHERE |= {f"data/{name}" for name in ("hdf5", "minari", "none", "npz", "runs", "torchrl")}
"""Choices of all runs here, and of tests of their own."""


def choices(arguments: str) -> set[str]:
    """What a command line chooses, as ``group/name``."""
    pairs = [text.lstrip("+").split("=", 1) for text in arguments.split()]
    named = [(group, name) for group, names in pairs for name in names.strip("[]").split(",")]
    return {f"{group}/{name}" for group, name in named if (CONF / group / f"{name}.yaml").is_file()}


def test_every_choice_is_trained_with():
    every = {str(path.relative_to(CONF).with_suffix("")) for path in CONF.glob("*/**/*.yaml")}
    every = {choice for choice in every if not choice.startswith(("experiment/", "ablation/reset/"))}
    assert every - ELSEWHERE == set().union(*map(choices, RUNS))


@pytest.mark.parametrize("arguments", RUNS)
def test_two_updates_of_a_tiny_agent(arguments, runner, skip_if_missing):
    status, _, err = runner("train")("debug=tiny", "logger=none", "run.name=tiny", *arguments.split())
    if status != 0:
        assert len(err.strip().splitlines()) == 1
        skip_if_missing(err.strip())
        pytest.fail(err)
    summary = json.loads(Path("runs/tiny/summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("FINISHED", 2)
    assert summary["return_mean"] is not None
