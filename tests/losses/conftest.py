from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical
from yamame.actions import ActionSpace
from yamame.heads import ActorHead, BinnedReturns, PopArt, make_critic
from yamame.losses import MultiGammaREDQLoss

GAMMAS = (0.5, 0.9, 0.97)
NUM_FEATURES, CONTEXT_SIZE = 5, 8
SPACES: dict[str, ActionSpace] = {
    "discrete": ActionSpace(Categorical(4)),
    "multi_discrete": ActionSpace(MultiCategorical([2, 3])),
    "multi_binary": ActionSpace(Binary(3)),
    "box": ActionSpace(Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0]))),
}


def _random_action(space: ActionSpace, size: Sequence[int]) -> Tensor:
    encoded = space.distribution(torch.randn(*size, space.num_params)).sample()
    return space.decode(encoded)


@pytest.fixture(params=list(SPACES))
def space(request: pytest.FixtureRequest) -> ActionSpace:
    """Return every kind of action space in turn."""
    return SPACES[request.param]


@pytest.fixture
def discrete() -> ActionSpace:
    return SPACES["discrete"]


@pytest.fixture
def make_batch() -> Callable[..., TensorDict]:
    """Return a maker of batches with padding, and terminations and starts inside of sequences."""

    def build(
        space: ActionSpace, *, num_sequences: int = 6, num_rows: int = 9, seed: int = 0
    ) -> TensorDict:
        torch.manual_seed(seed)
        size = (num_sequences, num_rows)
        lengths = torch.randint(3, num_rows + 1, (num_sequences, 1))
        lengths[0] = num_rows
        mask = torch.arange(num_rows) < lengths
        is_init = torch.rand(size) < 0.15
        is_init[:, 0] = True
        following = TensorDict(
            {
                "reward": torch.randn(*size, 1),
                "terminated": torch.rand(*size, 1) < 0.2,
                "truncated": torch.rand(*size, 1) < 0.2,
            },
            size,
        )
        batch = {
            "observation": torch.randn(*size, NUM_FEATURES),
            "action": _random_action(space, size),
            "mask": mask.unsqueeze(-1),
            "is_init": is_init.unsqueeze(-1),
            "next": following,
        }
        return TensorDict(batch, size)

    return build


@pytest.fixture
def make_loss() -> Callable[..., MultiGammaREDQLoss]:
    """Return a maker of losses whose target heads differ from the online ones."""

    def build(
        space: ActionSpace,
        *,
        gammas: Sequence[float] = GAMMAS,
        binned: bool = False,
        num_critics: int = 3,
        wrap_actor: Callable[[nn.Module], nn.Module] = lambda actor: actor,
        seed: int = 0,
        **settings: Any,
    ) -> MultiGammaREDQLoss:
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(NUM_FEATURES, CONTEXT_SIZE), nn.Tanh())
        returns = (
            BinnedReturns(len(gammas), num_bins=16) if binned else PopArt(len(gammas), decay=0.1)
        )
        heads = {"hidden_size": 16, "num_layers": 1}
        loss = MultiGammaREDQLoss(
            TensorDictModule(encoder, in_keys=["observation"], out_keys=["context"]),
            wrap_actor(
                ActorHead(CONTEXT_SIZE, action_space=space, num_gammas=len(gammas), **heads)
            ),
            make_critic(
                CONTEXT_SIZE,
                action_space=space,
                gammas=gammas,
                num_critics=num_critics,
                num_outputs=returns.num_outputs,
                **heads,
            ),
            returns,
            action_space=space,
            gammas=gammas,
            **settings,
        )
        with torch.no_grad():
            for target in loss._targets.parameters():
                target.add_(0.2 * torch.randn_like(target))
        return loss

    return build
