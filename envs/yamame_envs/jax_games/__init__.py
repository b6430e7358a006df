"""Games written in JAX as batched TorchRL environments, of libraries and of users.

No module of this package imports JAX when it is imported, so that the package can be imported, and
its configurations read, where JAX is not installed.
"""

from yamame_envs.jax_games.game import Game as Game
