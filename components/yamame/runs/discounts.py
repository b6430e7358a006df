"""Discount factors ``auto`` of a run as numbers, in the configuration that the run saves."""

from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent.discounts import AUTO, discount_horizon, resolve_gammas
from yamame.cli.nodes import with_changes
from yamame.cli.sections import AnyConfig
from yamame.files.identity import computed
from yamame.runs.run import Run

_KEY = "agent.gammas"


def with_gammas(run: Run, env: EnvBase) -> AnyConfig:
    """Write the discount factors of ``agent.gammas: auto`` into the configuration of a run.

    Call it before the agent is built. Whoever loads the agent later, without its environment or
    with a different one, reads the numbers. A resumed run keeps those of its checkpoint.

    Args:
        run: The run; its ``cfg`` and ``config`` are changed.
        env: Environment of training.

    Returns:
        ``run.cfg``, with numbers.
    """
    if run.cfg.agent.gammas != AUTO:
        return run.cfg

    def numbers() -> list[float]:
        if run.resumed:
            return resolve_gammas(run.checkpoints.read_config()["agent"]["gammas"])
        return resolve_gammas(AUTO, discount_horizon(env.observation_spec))

    # Only rank 0 reads checkpoints.
    gammas = distributed.on_rank0(numbers)
    run.cfg = with_changes(run.cfg, {"agent": {"gammas": gammas}})
    # In place: the guard against NaN holds the same mapping.
    run.config.update(computed(run.config, _KEY, gammas))
    run.checkpoints.set_config(run.config)
    return run.cfg
