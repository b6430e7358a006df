"""Import an agent that AMAGO's own code (version 3.3) has trained, as a folder for every recipe.

    yamame import_amago amago.weights=demo/ckpts/latest/policy.pt amago.path=agents/demo
    yamame import_amago amago.weights=demo/ckpts/training_states/demo_epoch_50
        amago.path=agents/demo amago.max_seq_len=128 env=gym env.id=CartPole-v1

The environment is that of the agent, with AMAGO's names of observations; options of the environment
and of evaluations are those of recipes/train.py. All sizes are read from the weights, activations,
discount factors and the like from AMAGO's config.txt nearby, or from amago.gin.Class.argument.
What cannot be imported is named in one line. Files are read, never executed.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("import_amago", without_sweeps="an agent is imported once")

# isort: split
import shlex
from contextlib import closing
from pathlib import Path

from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.training_settings import ImportAmagoConfig
from yamame.deploy import Interface, import_amago
from yamame.deploy.folder import write_folder
from yamame.files.trusted import own_modules
from yamame.runs.build import build_env
from yamame.system.installed import recipe_command
from yamame.system.messages import print_stdout


def import_agent(cfg: ImportAmagoConfig) -> None:
    """Run the recipe."""
    path = Path(cfg.amago.path)
    check_new(path, overwrite=cfg.amago.overwrite)
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
    write_folder(saved, path)
    steps = next_steps(cfg)
    print_stdout("\n".join(["next:", *(f"  {step}" for step in steps)]))
    print_stdout(path)


def check_new(path: Path, *, overwrite: bool) -> None:
    """Check that a folder is new or empty, or may be overwritten."""
    is_used = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if is_used and not overwrite:
        remedy = "replace the agent in it with amago.overwrite=true or choose another amago.path"
        raise UsageError(f"{path} exists", key="amago.path", remedy=remedy)


def next_steps(cfg: ImportAmagoConfig) -> list[str]:
    """Return commands that evaluate, show and serve the agent."""
    run = f"run={cfg.amago.path}"
    # Only commands that build the environment name its modules.
    packages = dict.fromkeys([*cfg.trust, *own_modules(plain(cfg.env))])
    trust = [f"trust=[{','.join(packages)}]"] if packages else []
    arguments = {"evaluate": [run, *trust], "play": [run, *trust], "serve": [run]}
    return [f"{recipe_command(name)} {shlex.join(given)}" for name, given in arguments.items()]


if __name__ == "__main__":
    main(import_agent, config_name="import_amago", needs_store=False)
