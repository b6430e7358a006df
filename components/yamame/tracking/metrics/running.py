"""Descriptions of the metrics of collecting, tasks, costs and the machine."""

from yamame.tracking.metrics.entry import Metric

_TRACKING = "yamame.runs.callbacks"
_CLUSTER = "yamame.collectors.cluster"
_THROUGHPUT = "yamame.collectors.throughput"
_SYSTEM = "yamame.tracking.costs"
_CURRICULUM = "yamame.curriculum.prioritized"
_SWEEP = "yamame.tracking.sweep"

RUNNING: tuple[Metric, ...] = (
    Metric(
        "collector/unfinished_steps",
        "steps of unfinished episodes",
        "steps",
        "yamame.collectors.sync",
        "Steps of the episodes that have not ended, over all environments. They are not yet used "
        "for learning.",
        "Rises and falls as episodes start and end. If it only rises, no episode ends, so set "
        "`env.time_limit`.",
    ),
    Metric(
        "collector/exploration_share",
        "remaining exploration",
        "share of its schedule",
        "yamame.runs.schedules",
        "Share of the exploration schedule that is left. At 1 the noise is at its first strength, "
        "at 0 at its last.",
        "Falls to 0 over `exploration.anneal` of the budget, or over `exploration.anneal_steps`.",
    ),
    Metric(
        "collector/open_blocks",
        "blocks in flight",
        "blocks",
        _CLUSTER,
        "Blocks of steps that were requested from actors and not yet collected.",
    ),
    Metric(
        "collector/lost_<actors,blocks,episodes,steps>",
        "losses by actors that died",
        "since the start",
        _CLUSTER,
        "Actors that died, the blocks requested from them, their unfinished episodes, and the "
        "steps of these that had been collected.",
        "0.",
    ),
    Metric(
        "collector/steps_per_s",
        "steps of all actors",
        "steps per second",
        _THROUGHPUT,
        "Collected steps of the last 60 seconds, per second.",
        "Constant.",
    ),
    Metric(
        "collector/steps_per_s_of_<slowest,fastest>",
        "steps of one actor",
        "steps per second",
        _THROUGHPUT,
        "`collector/steps_per_s` of the slowest and of the fastest actor.",
        "Close to each other on equal machines.",
    ),
    Metric(
        "collector/steps_per_s/actor_<i>",
        "steps of one actor",
        "steps per second",
        _THROUGHPUT,
        "`collector/steps_per_s` of each actor, if there are at most 16.",
    ),
    Metric(
        "collector/weights_age_<p10,p50,p90,max>",
        "age of the acting weights",
        "replacements of the weights",
        _THROUGHPUT,
        "Number of times that the weights were replaced between the request of a block and its "
        "arrival: percentiles and maximum over the blocks of the last 60 seconds.",
        "A few. Older data are further from the policy, so lower `collector.max_staleness`.",
    ),
    Metric(
        "collector/waited_s",
        "waiting of the learner",
        "seconds since the start",
        _THROUGHPUT,
        "Time in which the learner waited for blocks.",
    ),
    Metric(
        "collector/waiting_share",
        "waiting of the learner",
        "share of time",
        _THROUGHPUT,
        "Waiting time since the previous log entry, divided by the time since then.",
        "If it is near 0, learning is the bottleneck. If it is near 1, add actors.",
    ),
    Metric(
        "collector/learning_share",
        "learning",
        "share of time",
        _THROUGHPUT,
        "Time outside collecting since the previous log entry, divided by the time since then.",
    ),
    Metric(
        "curriculum/seeds",
        "tasks in the table",
        "tasks",
        _CURRICULUM,
        "Number of tasks that can be replayed.",
        "Rises to `curriculum.capacity`.",
    ),
    Metric(
        "curriculum/replayed",
        "replayed episodes",
        "share of episodes",
        _CURRICULUM,
        "Episodes of tasks from the table since the start, divided by all observed episodes.",
        "Approaches `curriculum.replay_probability`.",
    ),
    Metric(
        "curriculum/score",
        "mean score of the tasks",
        "units of `curriculum.score`",
        _CURRICULUM,
        "Mean of the scores in the table. Absent while the table is empty.",
        "Falls as values become accurate. At most 0.25 with `learnability`.",
    ),
    Metric(
        "cost/env_steps",
        "environment steps",
        "steps",
        _TRACKING,
        "Steps of training so far, over all environments and processes.",
    ),
    Metric(
        "cost/updates", "updates", "updates", _TRACKING, "Updates so far, without skipped ones."
    ),
    Metric(
        "cost/cpu_s",
        "CPU time",
        "CPU seconds",
        _SYSTEM,
        "User and system time of the process, its descendants and other ranks, including all "
        "sessions of a resumed run and all evaluations.",
    ),
    Metric(
        "cost/wall_s",
        "elapsed time",
        "seconds",
        _SYSTEM,
        "Wall-clock time of all sessions, without the time between them.",
    ),
    Metric(
        "system/<cpu_utilization,system_memory_usage>_percentage",
        "load of the machine",
        "percent",
        _SYSTEM,
        "Use of all CPU cores since the previous sample, and of the memory, by all processes.",
    ),
    Metric(
        "system/process_cpu_percentage",
        "CPU use of the process",
        "percent of one core",
        _SYSTEM,
        "CPU time since the previous sample, divided by the time since then.",
        "About 100 with one thread. If it is lower, the process shares the core or waits.",
    ),
    Metric(
        "system/process_memory_mebibytes",
        "resident memory of the process",
        "mebibytes",
        _SYSTEM,
        "Resident set size, without workers.",
        "Levels off once replay is full.",
    ),
    Metric(
        "system/gpu_memory_usage_percentage",
        "memory of the GPU in use",
        "percent",
        _SYSTEM,
        "Memory in use by all processes.",
    ),
    Metric(
        "system/process_gpu_memory_mebibytes",
        "largest allocation on the GPU",
        "mebibytes",
        _SYSTEM,
        "Largest memory that PyTorch has allocated for tensors so far.",
    ),
    Metric(
        "offline/<name>",
        "metric of updates before the first step",
        "that of the metric",
        "yamame.runs.phases",
        "`train/<name>` over the `schedule.offline_updates` updates from data, by updates.",
        "As for `train/<name>`.",
    ),
    Metric(
        "source/reward_<first,last>_tenth",
        "reward of the learners that are distilled",
        "reward per step",
        "yamame.runs.histories",
        "Mean reward per step in the first and in the last tenth of the collected histories.",
        "The last tenth is higher. Otherwise the histories contain no learning to imitate.",
    ),
    Metric(
        "objective",
        "objective of each job",
        "success or return",
        _SWEEP,
        "Last `eval/success_mean` of a job, or its `eval/return_mean` if no success is reported. "
        "The step is the number of the job.",
    ),
    Metric(
        "objective_<best,mean>",
        "objective of the jobs",
        "success or return",
        _SWEEP,
        "Largest objective of the jobs, and their mean.",
    ),
    Metric(
        "mean/<group>",
        "mean objective of a group",
        "success or return",
        _SWEEP,
        "Mean objective of the jobs that differ only in their seed, if there are several groups.",
    ),
    Metric(
        "best/eval/<success_mean,return_mean>",
        "score of the best job",
        "that of the score",
        _SWEEP,
        "Largest last value of the jobs that ended.",
        "Larger than the expected score of a new run, because it is the best of several.",
    ),
)
"""Metrics under all other prefixes."""
