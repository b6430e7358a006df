"""CPU time of a decision, beside that of the policy alone: pytest -m slow -s <this file>."""

import time
from statistics import median

import pytest
import torch
from yamame.deploy import DeployedAgent
from yamame.evaluation.held_out import evaluation_mode, fresh_copy

REMEMBERED, MEASURED = 100, 200


def taken(call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def every_other(entries: dict) -> dict:
    return {key: value[::2] for key, value in entries.items()}


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 64])
@pytest.mark.parametrize("encoder", ["transformer", "gru"])
def test_a_decision_costs_little_more_than_the_policy(subject, encoder, num):
    torch.set_num_threads(1)
    sizes = (
        ("d_model=128", "num_heads=8")
        if encoder == "transformer"
        else ("hidden_size=128", "out_features=128")
    )
    wide = [
        f"{part}.hidden_size=128" for part in ("timestep_encoder", "agent.actor", "agent.critic")
    ]
    made = subject(
        encoder, *(f"encoder.{size}" for size in sizes), *wide, "env.time_limit=1000", num_envs=num
    )
    agent, policy = DeployedAgent(made.saved, greedy=True), fresh_copy(made.agent.policy())
    names, times = list(range(num)), {"policy": [], "agent": [], "shuffled": [], "half": []}
    shuffled, halved = (DeployedAgent(made.saved, greedy=True) for _ in range(2))
    for each in (agent, shuffled, halved):
        each.reset(sessions=names)
    with evaluation_mode(0, greedy=True):
        timestep = made.env.reset()
        for step in range(REMEMBERED + MEASURED):
            shown = {key: timestep[key].numpy() for key in agent.observation_spec.keys()}
            given = {"reward": [0.0] * num} if step else {}
            calls = {
                "policy": lambda t=timestep: policy(t),
                "agent": lambda s=shown, g=given: agent.act(s, sessions=names, **g),
                "shuffled": lambda s=shown, g=given: shuffled.act(
                    s, sessions=names[::2] + names[1::2], **g
                ),
                "half": lambda s=shown: halved.act(
                    every_other(s), reward=[0.0] * len(names[::2]), sessions=names[::2]
                ),
            }
            seconds = {name: taken(call) for name, call in calls.items()}
            if step >= REMEMBERED:
                for name, value in seconds.items():
                    times[name].append(value)
            timestep = made.env.step_and_maybe_reset(timestep)[1]
    middle = {name: median(values) * 1e3 for name, values in times.items()}
    print(
        f"\n{encoder}, {num}:",
        ", ".join(f"{name} {value:.2f} ms" for name, value in middle.items()),
    )
    assert middle["agent"] < 2.0 * middle["policy"] + 1.0
