"""Former name of `yamame.distributed`."""

import warnings

from yamame import distributed as _module

Elsewhere = _module.FailedOnRank0
started = _module.launched
world = _module.world_size
rank = _module.rank
is_first = _module.is_rank0
joined = _module.process_group
totals = _module.all_reduce
mean_count = _module.mean_count
means = _module.all_reduce_means
average_ = _module.average_gradients_
agreed = _module.broadcast
any_of = _module.any_rank
gathered = _module.all_gather
first = _module.on_rank0
part = _module.shard
own_folder = _module.rank_dir
own_seed = _module.rank_seed
equal = _module.broadcast_parameters
OfEachRank = _module.PerRank
state_of = _module.state_of

warnings.warn(
    "yamame.ranks is deprecated, import yamame.distributed instead",
    DeprecationWarning,
    stacklevel=2,
)
