"""Train a custom module with the multi-gamma loss: python loss_over_own_module.py [updates].

Prints the loss.
"""

import sys

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from yamame.actions import action_space_from_spec
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.losses import MultiGammaREDQLoss
from yamame.replay import Relabel, pack
from yamame_envs import MazeRunner


def main(updates: int = 200) -> None:
    """Learn from random walks whose goals are replaced by cells that they reached."""
    env = MazeRunner(num_envs=16)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), transform=Relabel("all"), batch_size=8
    )
    buffer.extend(pack(env.rollout(100, break_when_any_done=False)))

    space = action_space_from_spec(env.action_spec, batch_dims=1)
    gammas = [0.9, 0.99]
    # Any module that writes a context may stand here; this one has no memory.
    layers = nn.Sequential(nn.Linear(6, 64), nn.ReLU())
    encoder = TensorDictModule(layers, ["observation"], ["context"])
    actor = ActorHead(64, action_space=space, num_gammas=2)
    critic = make_critic(64, action_space=space, gammas=gammas)
    loss = MultiGammaREDQLoss(encoder, actor, critic, PopArt(2), action_space=space, gammas=gammas)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    for update in range(updates):
        output = loss(buffer.sample())
        # The output holds metrics as well, without this prefix.
        total = sum(value for name, value in output.items() if name.startswith("loss_"))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        loss.update_targets()
        if update % 20 == 0:
            print(update, f"{total.item():.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
