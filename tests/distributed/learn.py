"""A learner of small agents on given batches, alone or as one of several ranks:
``python learn.py FOLDER``.

Reads ``batches.pt``, a list of batches for every case; writes ``<world>-<rank>.pt``. It computes in
float64: in float32 the order of a sum decides now and then on which side of its activation's kink a
unit lies, and gradients jump.
"""

import sys
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from yamame import conf_dir, distributed
from yamame.actions import distributions
from yamame.runs.build import build_agent, build_collector, build_env, build_learner
from yamame.training.guard import NonFiniteGuard
from yamame.training.seeding import seed_everything

TINY = (
    "debug=tiny",
    "logger=none",
    "packing=null",
    "agent.loss.num_target_critics=2",
    "agent.critic.num_critics=2",
)
TINY += ("schedule.warmup_updates=0", "schedule.num_envs=8", "env.time_limit=20")
TRANSFORMER, GRU = ("encoder.dropout=0",), ("encoder=gru", "encoder.hidden_size=16")
CASES = {
    "transformer, maze": (*TINY, *TRANSFORMER),
    "gru, maze": (*TINY, *GRU),
    "transformer, box": (*TINY, *TRANSFORMER, "env=wind", "relabel=none"),
    "gru, box": (*TINY, *GRU, "env=wind", "relabel=none"),
}
"""All critics are in every target and nothing is dropped: what is left to chance differs between
ranks.
"""


class Shelf:
    def __init__(self):
        self.trajectories = []

    def extend(self, data):
        self.trajectories += list(data.unbind(0))


def built(overrides, folder=None):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=list(overrides))
    seed_everything(0)
    env = build_env(cfg, num_envs=8, seed=0)
    agent = build_agent(cfg, env)
    return cfg, env, agent, build_learner(cfg, agent, guard=NonFiniteGuard(folder))


def batches(overrides, num):
    """Batches of eight right-padded trajectories of different lengths."""
    cfg, env, agent, _ = built(overrides)
    shelf = Shelf()
    collector = build_collector(cfg, env=env, policy=agent.policy(), replay=shelf, exploration=None)
    while len(shelf.trajectories) < 8 * num:
        collector.collect(256)
    longest = max(len(one) for one in shelf.trajectories)
    whole = torch.stack([padded(one, longest) for one in shelf.trajectories[: 8 * num]])
    shorter = torch.arange(whole.shape[1]) < torch.randint(2, longest, (len(whole), 1))
    whole["mask"] &= shorter.unsqueeze(-1)
    return list(whole.split(8))


def padded(one, length):
    return (
        torch.cat([one, one[:1].expand(length - len(one)).clone().zero_()])
        if len(one) < length
        else one
    )


def learn(overrides, given, states=None, folder=None):
    """Gradients, metrics and the state after every update, each from one of ``states`` where they
    are given.
    """
    _, _, agent, learner = built(overrides, folder)
    told = []
    for number, batch in enumerate(given):
        if states is not None and number > 0:
            learner.loss.load_state_dict(states[number - 1])
        batch = batch.apply(lambda value: value.double() if value.is_floating_point() else value)
        share = batch[distributed.rank() :: distributed.world_size()]
        evaluated = learner.evaluate(share.clone()) if number == 0 else {}
        metrics = learner.update(share.clone())
        gradients = {n: p.grad.clone() for n, p in agent.named_parameters() if p.grad is not None}
        state = {n: v.clone() for n, v in learner.loss.state_dict().items()}
        told.append(
            {"metrics": metrics, "evaluated": evaluated, "gradients": gradients, "state": state}
        )
    return told


def compute_in_float64():
    """Makes float64 of what asks for float32 by default, by ``float()`` or by
    ``dtype=torch.float32``.
    """
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    torch.float32 = torch.float64


def main(folder):
    torch.set_num_threads(1)
    compute_in_float64()
    distributions.TanhNormalDistribution.rsample = lambda self, shape=(): self.mode
    alone = folder / "1-0.pt"
    states = {}
    if alone.exists():
        states = {case: [one["state"] for one in told] for case, told in torch.load(alone).items()}
    with distributed.process_group():
        told = {}
        for case, given in torch.load(folder / "batches.pt", weights_only=False).items():
            told[case] = learn(
                CASES[case.partition(":")[0]],
                given,
                states.get(case),
                folder / str(distributed.world_size()) / case,
            )
        torch.save(told, folder / f"{distributed.world_size()}-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
