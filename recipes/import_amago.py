"""Import an agent that AMAGO's own code (version 3.3) has trained, as a folder for every recipe.

    yamame import_amago amago.weights=demo/ckpts/latest/policy.pt amago.path=agents/demo
    yamame import_amago amago.weights=demo/ckpts/training_states/demo_epoch_50
        amago.path=agents/demo amago.max_seq_len=128 env=gym env.id=CartPole-v1

The environment is that of the agent, with AMAGO's names of observations; options of the environment
and of evaluations are those of recipes/train.py. All sizes are read from the weights, activations,
discount factors and the like from AMAGO's config.txt beside them, or from amago.gin.Class.argument.
What cannot be imported is named in one line. Files are read, never executed.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("import_amago", without_sweeps="an agent is imported once")

# isort: split
from contextlib import closing
from pathlib import Path

from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.training_settings import ImportAmagoConfig
from yamame.deploy import Interface, import_amago
from yamame.deploy.folder import write_folder
from yamame.runs.build import build_env


def import_agent(cfg: ImportAmagoConfig) -> None:
    """Run the recipe."""
    with closing(build_env(cfg, num_envs=1, seed=0)) as env:
        interface = Interface.of(env)
    config = plain(cfg)
    del config["amago"]
    saved = import_amago(
        cfg.amago.weights,
        interface=interface,
        config=config,
        gin=cfg.amago.config,
        typed=plain(cfg.amago.gin),
        max_seq_len=cfg.amago.max_seq_len,
    )
    print(write_folder(saved, Path(cfg.amago.path)))


if __name__ == "__main__":
    main(import_agent, config_name="import_amago", needs_store=False)
