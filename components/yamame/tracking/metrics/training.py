"""Descriptions of the metrics of updates and of training episodes."""

from yamame.tracking.metrics.entry import Metric

_REDQ = "yamame.losses.redq"
_PPO = "torchrl.objectives.ppo"
_LEARNER = "yamame.training.learner"
_RUN = "yamame.runs.run"
_PACE = "yamame.runs.schedules"

TRAINING: tuple[Metric, ...] = (
    Metric(
        "train/outcome",
        "outcome of training episodes",
        "success or return",
        _RUN,
        "Mean over the latest 100 training episodes, which include exploration, of their success, "
        "or of their return if the environment reports no success.",
        "Rises. If it is far above the evaluation, training tasks are memorised. If it is below, "
        "exploration lowers the score.",
    ),
    Metric(
        "train/loss",
        "loss",
        "weighted sum of its terms",
        _LEARNER,
        "Sum of the terms `train/loss_...`.",
        "Its level shows no progress, because `train/loss_online` falls, even below 0, while "
        "values rise. Look at the terms.",
    ),
    Metric(
        "train/loss_critic",
        "critics' error",
        "variances of the targets; nats with binned critics",
        _REDQ,
        "`critic_coeff` (10; 0.5 in `ppo`) times the mean error of all critics and discounts. The "
        "error is `((Q - y) / return_std)^2`, or with binned returns the cross-entropy of the "
        "predicted distribution and the label of y. If `value_clip` is set, `ppo` uses the larger "
        "of the error and that of the clipped value.",
        "Falls below `critic_coeff`, the level of critics that always predict the mean. A rise "
        "after new rewards were found is normal. With binned returns the minimum is the entropy of "
        "the labels, not 0.",
    ),
    Metric(
        "train/loss_online",
        "negative value of the policy",
        "standard deviations of the targets",
        _REDQ,
        "`-online_coeff` times the mean, over transitions and discounts, of the smallest of the "
        "critics' values `E_pi[(Q - mean(y)) / return_std]`.",
        "Falls. A negative value means that the policy is better than an average transition.",
    ),
    Metric(
        "train/loss_cloning",
        "cloning loss",
        "nats",
        _REDQ,
        "`-cloning_coeff` times the mean, over transitions and discounts, of `w log pi(a)` for the "
        "taken action a and its weight w (`train/filter_weight`, 1 without a filter).",
        "Falls. If it is near 0, few actions pass the filter, or the policy takes the same "
        "actions.",
    ),
    Metric(
        "train/td_error",
        "absolute TD error",
        "multiplied rewards",
        _REDQ,
        "Mean over transitions and critics of `abs(Q - y)` for the acting discount factor.",
        "Well below `train/return_std`. If it is as large, critics predict no better than a "
        "constant.",
    ),
    Metric(
        "train/q_value",
        "value of the taken action",
        "multiplied rewards",
        _REDQ,
        "Mean over transitions and critics of Q for the acting discount factor, the last one. "
        "Divide by `agent.loss.reward_multiplier` for the environment's rewards.",
        "Approaches `train/target_value`. Values above the largest multiplied reward, divided by "
        "`1 - gamma`, indicate divergence.",
    ),
    Metric(
        "train/q_value_gamma_<gamma>",
        "value of the taken action",
        "multiplied rewards",
        "yamame.losses.metrics",
        "`train/q_value` for each discount factor, if there are several.",
        "Larger for larger discount factors if rewards are positive.",
    ),
    Metric(
        "train/target_value",
        "target value",
        "multiplied rewards",
        _REDQ,
        "Mean over transitions of the n-step target y for the acting discount factor: discounted "
        "multiplied rewards, and the target critics' value of the policy after them.",
        "Moves with the returns that are found. A steady rise without a rise of "
        "`eval/return_mean` is overestimation.",
    ),
    Metric(
        "train/return_std",
        "standard deviation of the targets",
        "multiplied rewards",
        _REDQ,
        "Running standard deviation of y for the acting discount factor, clipped to [0.01, "
        "10000]. It normalises values. Constant 1 with `agent.returns.enabled=false`.",
        "Starts near 10 and moves to the scale of the returns. If it is near 0.01, all targets "
        "are equal, so no reward distinguishes actions.",
    ),
    Metric(
        "train/clipped_targets",
        "targets outside the bins",
        "share of targets",
        _REDQ,
        "Share of the targets of all discount factors that are below `agent.returns.min_return` "
        "or above `max_return`. Binned returns only.",
        "0. Above 0.01 the run prints a warning. Widen the bounds or lower "
        "`agent.loss.reward_multiplier`.",
    ),
    Metric(
        "train/entropy",
        "entropy of the policy",
        "nats",
        _REDQ,
        "Mean over transitions of the entropy of the acting policy. Entropies of several choices "
        "or bits are summed. For continuous actions it is the differential entropy of actions in "
        "(-1, 1), which can be negative.",
        "Falls from about `ln(number of actions)`, which is 1.39 for four. If it stays there, the "
        "policy acts at random. If it falls to 0 within the first updates, the policy becomes "
        "deterministic too early.",
    ),
    Metric(
        "train/filter_weight",
        "mean weight of cloning",
        "share of actions with the binary filter",
        _REDQ,
        "Mean over transitions of w for the acting discount factor. With the advantage A, the mean "
        "over critics of `Q(a) - E_pi[Q]`: binary filter `w = 1` if `A > filter_threshold`, else "
        "0; exponential filter `w = min(20, exp((A - filter_threshold) / filter_temperature))`.",
        "Binary: mostly between 0.3 and 0.85 in runs that learn. If it is always 0 or always 1, "
        "the filter does not select. Exponential: about 1. Near 20, lower the advantages or raise "
        "`filter_temperature`.",
    ),
    Metric(
        "train/filter_weight_gamma_<gamma>",
        "mean weight of cloning",
        "share of actions with the binary filter",
        "yamame.losses.metrics",
        "`train/filter_weight` for each discount factor, if there are several.",
    ),
    Metric(
        "train/grad_norm",
        "norm of the gradient",
        "units of the loss",
        _LEARNER,
        "Euclidean norm of the gradient of all parameters, before it is clipped to "
        "`schedule.max_grad_norm`.",
        "Often above the limit, which is normal. If it rises by orders of magnitude, lower "
        "`optimizer.lr`.",
    ),
    Metric(
        "train/padding_share",
        "padding",
        "share of timesteps",
        _LEARNER,
        "Share of the timesteps of a batch that are padding.",
        "0 with episodes of one length. Padding costs time and does not affect results.",
    ),
    Metric(
        "train/learning_rate_share",
        "learning rate relative to the optimizer's",
        "share of optimizer.lr",
        "yamame.runs.schedules",
        "Present learning rate divided by `optimizer.lr`.",
        "Rises to 1 over `schedule.warmup_updates`, and with `schedule.anneal_lr` falls with the "
        "spent share of the budget.",
    ),
    Metric(
        "train/updates_per_step",
        "updates per environment step",
        "updates",
        _PACE,
        "`schedule.updates_per_step` times the factor of the regulator, which is in "
        "[`schedule.regulator.least`, 1].",
        "Rises to `schedule.updates_per_step`. Lower values mean that the regulator has detected "
        "overfitting.",
    ),
    Metric(
        "train/overfitting",
        "loss on held-out episodes relative to others",
        "ratio",
        _PACE,
        "`(h + floor) / (l + floor)` with moving averages of `train/loss_critic` on training "
        "episodes excluded from updates (h) and on the other training episodes (l).",
        "1 without overfitting. The target of the regulator is `schedule.regulator.target` (1.2). "
        "Above 2, more updates make the agent worse.",
    ),
    Metric(
        "train/aborted_episodes",
        "dropped episodes",
        "episodes since the start",
        _RUN,
        "Episodes that were dropped because the environment failed. Absent if there are none.",
        "Absent.",
    ),
    Metric(
        "train/refused_updates",
        "skipped updates",
        "updates since the start",
        _RUN,
        "Updates that were skipped because the loss or a gradient was NaN or infinite. Absent if "
        "there are none.",
        "Absent. Three in a row, or half of the last 100, end the run.",
    ),
    Metric(
        "train/loss_objective",
        "clipped objective",
        "standard deviations of advantages",
        _PPO,
        "`-mean(min(r A, clip(r, 1 - clip_epsilon, 1 + clip_epsilon) A))` for the ratio "
        "`r = pi(a) / pi_old(a)` and the advantage A, normalised within the minibatch.",
        "Near 0. Its level shows no progress.",
    ),
    Metric(
        "train/loss_entropy",
        "entropy bonus",
        "nats",
        _PPO,
        "`-entropy_coeff` times `train/entropy`.",
    ),
    Metric(
        "train/clip_fraction",
        "clipped ratios",
        "share of transitions",
        _PPO,
        "Transitions whose ratio is outside [1 - clip_epsilon, 1 + clip_epsilon].",
        "0 in the first update after collecting, more in later epochs. If it is near 1, lower "
        "`optimizer.lr` or `schedule.epochs`.",
    ),
    Metric(
        "train/value_clip_fraction",
        "clipped values",
        "share of transitions",
        _PPO,
        "Transitions whose value has moved by more than `agent.loss.value_clip`. Absent without "
        "that limit.",
    ),
    Metric(
        "train/explained_variance",
        "explained variance of the value targets",
        "share",
        _PPO,
        "`1 - Var(target - value) / Var(target)` over the transitions of a minibatch.",
        "Rises towards 1. At 0, values predict no better than a constant. Below 0, they predict "
        "worse.",
    ),
    Metric(
        "train/kl_approx",
        "estimated divergence from the policy that acted",
        "nats",
        _PPO,
        "`mean(log pi_old(a) - log pi(a))` over transitions.",
        "0 in the first update after collecting, small afterwards.",
    ),
    Metric(
        "train/ESS",
        "effective sample size",
        "share of transitions",
        _PPO,
        "`(sum r)^2 / (N sum r^2)` over the N transitions of a minibatch.",
        "1 in the first update after collecting. If it is far below 1, the policy has changed too "
        "much.",
    ),
    Metric(
        "train/<max,mean>_ratio",
        "largest and mean ratio",
        "ratio of probabilities",
        _PPO,
        "Largest and mean r over the transitions of a minibatch.",
        "1 in the first update after collecting. The mean stays near 1.",
    ),
)
"""Metrics under ``train/``."""
