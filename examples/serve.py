"""Serve a trained agent where Hydra is not installed: python serve.py AGENT [PORT [TRUST ...]]

The command `yamame serve` does the same and has settings for all limits.
"""

import sys

import yamame
from yamame.deploy.server import AgentServer
from yamame.deploy.service import Service


def main(source: str, port: str = "8000", *trust: str) -> None:
    """Answer requests until Ctrl-C or SIGTERM."""
    service = Service(yamame.load(source, trust=trust), max_sessions=100)
    server = AgentServer(service, port=int(port))
    print(server.address, flush=True)
    received = server.serve_until_signal()
    print(f"ended by {received.name}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
