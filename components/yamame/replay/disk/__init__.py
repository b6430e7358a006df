"""Trajectories on disk: their files, and the replay buffer over them."""
