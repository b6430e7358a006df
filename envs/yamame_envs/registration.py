"""Registration with Gymnasium by strings, so that nothing is imported until an env is made."""

_MAKER = "yamame_envs.gymnasium_env:make_single"
_TARGETS = {
    "yamame/ActiveTMaze-v0": "yamame_envs.tmaze:ActiveTMaze",
    "yamame/Bandits-v0": "yamame_envs.bandits:Bandits",
    "yamame/DarkKeyDoor-v0": "yamame_envs.darkroom:DarkKeyDoor",
    "yamame/MazeRunner-v0": "yamame_envs.mazerunner:MazeRunner",
    "yamame/MetaFrozenLake-v0": "yamame_envs.frozenlake:MetaFrozenLake",
    "yamame/PackageDelivery-v0": "yamame_envs.delivery:PackageDelivery",
    "yamame/PassiveTMaze-v0": "yamame_envs.tmaze:PassiveTMaze",
    "yamame/Wind-v0": "yamame_envs.wind:Wind",
    "yamame/XLand-v0": "yamame_envs.xland.env:XLand",
}


def register() -> None:
    """Register all environments with Gymnasium; a second call changes nothing."""
    from gymnasium.envs import registration

    for name, target in _TARGETS.items():
        if name not in registration.registry:
            registration.register(name, entry_point=_MAKER, kwargs={"target": target})
