"""An action distribution as a `torch.distributions.Distribution`, for whatever of TorchRL asks for one."""

from collections.abc import Callable

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from yamame.actions.spaces import ActionSpace


class TorchDistribution(torch.distributions.Distribution):
    """The distribution of an `ActionSpace` behind PyTorch's interface: batch shape ``[*]``, event shape ``[A]``.

    Made for ``distribution_class`` of TensorDict's ``ProbabilisticTensorDictModule``, with the action space among
    ``distribution_kwargs``: so TorchRL's policy-gradient losses work on every action space. It speaks encoded
    actions. Arguments are not validated.

    Args:
        params: Policy parameters ``[*, P]``.
        action_mask: As `ActionSpace.distribution` takes it.
        action_space: What an action is.

    >>> from torchrl.data import Categorical
    >>> distribution = TorchDistribution(torch.zeros(2, 3), action_space=ActionSpace(Categorical(3)))
    >>> distribution.batch_shape, distribution.event_shape, distribution.sample((5,)).shape
    (torch.Size([2]), torch.Size([3]), torch.Size([5, 2, 3]))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (the base class declares it so)
    has_rsample = True

    def __init__(
        self, params: Tensor, action_mask: Tensor | None = None, *, action_space: ActionSpace
    ) -> None:
        self._distribution = action_space.distribution(params, action_mask)
        super().__init__(params.shape[:-1], Size([action_space.encoded_size]), validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The greedy encoded action ``[*, A]``."""
        return self._distribution.mode()

    deterministic_sample = mode

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:  # type: ignore[override]
        """Draws ``[*sample_shape, *, A]`` with a gradient, see `ActionDistribution.rsample`."""
        return self._draw(self._distribution.rsample, sample_shape)

    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:  # type: ignore[override]
        """Draws ``[*sample_shape, *, A]``."""
        return self._draw(self._distribution.sample, sample_shape)

    def _draw(self, draw: Callable[[], Tensor], sample_shape: Size | tuple[int, ...]) -> Tensor:
        draws = [draw() for _ in range(Size(sample_shape).numel())]
        return torch.stack(draws).reshape(*sample_shape, *draws[0].shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[*]`` of an encoded action."""
        return self._distribution.log_prob(value)

    def entropy(self) -> Tensor:
        """Entropy ``[*]`` in nats, exact or by quadrature."""
        return self._distribution.entropy()
