"""Gymnasium environments as TorchRL environments: a batch of them, in this process or in worker
processes.

Nothing is loaded here: a worker process needs the part that plays Gymnasium environments, and
imports neither torch nor TorchRL for it. The public names are those of `yamame_envs`.
"""
