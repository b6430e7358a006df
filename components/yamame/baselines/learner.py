"""Protocol of learners of other libraries, which are compared with an agent on a suite."""

from collections.abc import Callable
from typing import Protocol

from tensordict import TensorDictBase
from torchrl.envs import EnvBase


class LearningTask(Protocol):
    """A task of a suite, with the seed and the budget of a run.

    Attributes:
        seed: Seed of the run.
    """

    seed: int

    def build_env(self, num_envs: int) -> EnvBase:
        """Build the training environment, the same as an agent is trained in.

        It is closed when the run ends.

        Args:
            num_envs: Number of envs N in the batch.
        """

    def goes_on(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        *,
        env_steps: int,
        updates: int,
    ) -> bool:
        """Return whether budget is left. Evaluations that are due are made here.

        Args:
            policy: Present policy, as for `yamame.evaluation.evaluate`: it writes ``action`` into a
                TensorDict ``[N]``, and starts anew where ``is_init`` is set. A copy of it acts. It
                should sample unless TorchRL's exploration type is ``DETERMINISTIC``.
            env_steps: Environment steps so far, over all envs.
            updates: Gradient updates so far.
        """


class Learner(Protocol):
    """Learner that is compared with an agent (``compare`` of ``yamame leaderboard``).

    One object is built for each task and seed.
    """

    def learn(self, task: LearningTask) -> None:
        """Learn a task until `LearningTask.goes_on` returns False.

        Call it at least once between two updates.
        """
