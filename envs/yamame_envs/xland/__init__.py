"""XLand-MiniGrid in tensor code: hidden goals and rules in grids of rooms.

Source: Nikulin et al., "XLand-MiniGrid: Scalable Meta-Reinforcement Learning Environments in JAX",
arXiv 2312.12044; the game is that of xminigrid 0.9.3.
"""
