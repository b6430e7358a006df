"""Export a trained agent for programs that have neither its environment nor Hydra, or its data.

    yamame export run=runs/mine path=agents/mine              # a folder for yamame.load
    yamame export run=runs/mine path=mine.onnx greedy=true    # the acting step; or .pt2
    yamame export run=runs/mine path=models/mine mlflow=true  # an MLflow model
    yamame export run=runs/mine path=data/mine dataset=lerobot  # the trajectories in its replay

Checkpoints of earlier versions do not hold the agent's spaces. For them the environment is built.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("export")

# isort: split
from contextlib import closing
from pathlib import Path

from yamame.checks import at_source, require_setting
from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.settings import ExportConfig
from yamame.data import write_lerobot
from yamame.deploy import DeployedAgent, Interface, SavedAgent
from yamame.deploy.load import OldCheckpointError, from_checkpoint, read_saved
from yamame.deploy.mlflow_model import save_model
from yamame.deploy.sources import read_checkpoint
from yamame.files.paths import check_tree, inside
from yamame.replay import TrajectoryFollower
from yamame.runs.trained import load_trained

GRAPHS = (".pt2", ".onnx")


def export(cfg: ExportConfig) -> None:
    """Run the recipe."""
    path = Path(cfg.path)
    if cfg.dataset is not None:
        export_replay(cfg, path)
        return
    options = {"gamma": cfg.gamma, "greedy": cfg.greedy, "context_length": cfg.context_length}
    is_graph = path.suffix in GRAPHS
    is_folder = not (is_graph and cfg.mlflow)
    require_setting("path", str(path), is_folder, "be a folder with mlflow=true")
    with at_source(f"run={cfg.run}"):
        agent = DeployedAgent(saved_agent(cfg), trust=plain(cfg.trust), **options)
        if is_graph:
            agent.export(path, num_streams=cfg.num_streams)
        elif cfg.mlflow:
            save_model(agent, path)
        else:
            agent.save_pretrained(path, small=cfg.small)
    print(path)


def export_replay(cfg: ExportConfig, path: Path) -> None:
    """Write the trajectories in the replay of a run as a dataset."""
    agent_only = {"checkpoint": "best", "trust": [], "mlflow": False, "small": False}
    agent_only |= {"greedy": None, "gamma": None, "context_length": None, "num_streams": 1}
    ignored = [key for key, default in agent_only.items() if getattr(cfg, key) != default]
    condition = "be null with settings of an agent: it exports trajectories"
    remedy = f"remove {', '.join(ignored)}"
    require_setting("dataset", cfg.dataset, not ignored, condition, remedy=remedy)
    is_folder = path.suffix not in GRAPHS
    require_setting("path", str(path), is_folder, "be a folder with dataset=lerobot")
    is_outside = not path.resolve().is_relative_to(Path(cfg.run).resolve())
    require_setting("path", str(path), is_outside, f"lie outside of run={cfg.run}")
    has_replay = (Path(cfg.run) / "replay").is_dir()
    condition = "be the directory of a run with a folder replay"
    require_setting("run", cfg.run, has_replay, condition)
    with at_source(f"run={cfg.run}"):
        folder = inside(cfg.run, "replay")
        check_tree(folder)
        replay = TrajectoryFollower(folder)
        # The run may have been copied, or written by a machine that failed.
        replay.verify()
        write_lerobot(path, replay)
    print(path)


def saved_agent(cfg: ExportConfig) -> SavedAgent:
    """Read the agent of a run; build its environment if the file is of an earlier version."""
    where = {"checkpoint": cfg.checkpoint, "tracking_uri": cfg.tracking_uri}
    try:
        return read_saved(cfg.run, **where)
    except OldCheckpointError:
        trained = load_trained(cfg.run, **where, trust=plain(cfg.trust))
    with closing(trained.build_env(num_envs=1, seed=0)) as env:
        interface = Interface.of(env)
    loaded = read_checkpoint(
        cfg.run, cfg.checkpoint, tracking_uri=cfg.tracking_uri, optional=["progress", "machine"]
    )
    return from_checkpoint(cfg.run, loaded, interface)


if __name__ == "__main__":
    main(export, config_name="export")
