"""Descriptions of the metrics of evaluations."""

from yamame.tracking.metrics.entry import Metric

_EVALUATION = "yamame.evaluation.result"

EVALUATION: tuple[Metric, ...] = (
    Metric(
        "eval/success_mean",
        "success",
        "share of episodes",
        _EVALUATION,
        "Episodes in which the environment reported success at any step, divided by all episodes. "
        "With `trials=repeated`, only the last completed trial of an episode counts. Absent if the "
        "environment reports no success.",
        "Rises. 1 is the best.",
    ),
    Metric(
        "eval/success_<low,high>",
        "ends of the interval of success",
        "share of episodes",
        _EVALUATION,
        "Wilson's 95 % interval of `eval/success_mean`. Tasks are the unit if "
        "`eval/intervals_over_tasks` is 1, otherwise episodes.",
        "Two agents whose intervals overlap may be equally good.",
    ),
    Metric(
        "eval/success_mean_<k>_goals",
        "success with this number of goals",
        "share of these episodes",
        _EVALUATION,
        "`eval/success_mean` over the episodes whose instruction has k goals.",
        "Falls with k. If it is zero only for the largest k, the agent has learned short "
        "instructions.",
    ),
    Metric(
        "eval/return_mean",
        "return",
        "sum of rewards",
        _EVALUATION,
        "Mean over episodes of the undiscounted sum of rewards over the whole episode, including "
        "all trials. Rewards are those of the environment, without "
        "`agent.loss.reward_multiplier`.",
        "Rises. The scale is that of the environment.",
    ),
    Metric(
        "eval/return_<low,high>",
        "ends of the interval of the return",
        "sum of rewards",
        _EVALUATION,
        "Student's 95 % interval of `eval/return_mean`, over tasks or episodes, as for success.",
    ),
    Metric(
        "eval/return_mean_trial_<i>",
        "mean return of a trial",
        "sum of rewards",
        _EVALUATION,
        "Mean over episodes of the sum of rewards within trial i, counted from 0. If the number "
        "of trials differs between episodes, only trials that all episodes completed are logged.",
        "Rises with i if the agent adapts within an episode. If it is equal for all i, later "
        "trials do not benefit from earlier ones.",
    ),
    Metric(
        "eval/length_mean",
        "length of an episode",
        "steps",
        _EVALUATION,
        "Mean over episodes of the number of transitions.",
    ),
    Metric(
        "eval/finished",
        "finished episodes",
        "share of episodes",
        _EVALUATION,
        "Share of the episodes that the environment ended. The others were cut by the step limit "
        "of the evaluation, or the environment failed.",
        "1. Below 1, scores include cut episodes, so raise `evaluation.max_steps`.",
    ),
    Metric(
        "eval/num_episodes",
        "episodes of an evaluation",
        "episodes",
        _EVALUATION,
        "Number of episodes, `evaluation.num_episodes`.",
        "Constant.",
    ),
    Metric(
        "eval/num_tasks",
        "different tasks of an evaluation",
        "tasks",
        _EVALUATION,
        "Number of different tasks among the episodes. Absent if tasks cannot be distinguished.",
        "Constant. With few tasks, intervals are wide, even with many episodes.",
    ),
    Metric(
        "eval/intervals_over_tasks",
        "unit of the intervals",
        "1 for tasks",
        _EVALUATION,
        "1 if some, but not all, episodes share a task, and the tasks are a sample of all "
        "possible ones. Otherwise absent, and the unit is the episode.",
    ),
)
"""Metrics under ``eval/``."""
