"""Serve a trained agent over HTTP: many sessions, each with a memory of its own.

    yamame serve run=runs/mine                      # http://127.0.0.1:8000
    yamame serve run=agents/mine port=0             # a free port, which is printed
    yamame serve run=zoo:cpu_tmaze max_sessions=20  # --help lists the limits

POST /reset {"session": "a"} starts a session, /act {"session": "a", "observation": ...,
"reward": 1.0, "done": false} returns the next action, /forget ends the session, and GET /health
reports the agent. Ctrl-C and SIGTERM end the server.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("serve", without_sweeps="a server runs until it is stopped")

# isort: split
from yamame.checks import at_source
from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.settings import ServeConfig
from yamame.deploy import DeployedAgent, load
from yamame.deploy.server import AgentServer
from yamame.deploy.service import Service
from yamame.system.messages import print_stderr


def serve(cfg: ServeConfig) -> None:
    """Run the recipe."""
    service = Service(
        load_agent(cfg),
        max_sessions=cfg.max_sessions,
        session_timeout=cfg.session_timeout,
        name=cfg.run,
    )
    server = AgentServer(
        service,
        host=cfg.host,
        port=cfg.port,
        max_connections=cfg.max_connections,
        connection_timeout=cfg.connection_timeout,
        max_request_bytes=cfg.max_request_bytes,
    )
    print(server.address, flush=True)
    print_stderr(f"serve: {cfg.run} answers until Ctrl-C")
    received = server.serve_until_signal()
    print_stderr(f"serve: ended by {received.name}, {service.num_sessions} sessions were open")


def load_agent(cfg: ServeConfig) -> DeployedAgent:
    """Load the agent of the settings."""
    with at_source(f"run={cfg.run}"):
        return load(
            cfg.run,
            checkpoint=cfg.checkpoint,
            gamma=cfg.gamma,
            greedy=cfg.greedy,
            seed=cfg.seed,
            context_length=cfg.context_length,
            device=cfg.device,
            tracking_uri=cfg.tracking_uri,
            trust=plain(cfg.trust),
        )


if __name__ == "__main__":
    main(serve, config_name="serve")
