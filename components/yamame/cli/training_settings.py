"""Settings of the recipes that train, one model per section of the configuration.

A field has the type, the bounds and the description of a key; the YAML files have the values. The
help of the command line and docs/settings.md print the descriptions from here. Arguments of a
``_target_`` are declared by the signature of the class instead.

A new setting of a recipe is a field here, a value in the YAML file, and its use.
"""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from yamame.checks import Bounds, PositiveFloat
from yamame.cli.sections import (
    Config,
    Count,
    Device,
    Natural,
    Node,
    Rule,
    Section,
    Seeds,
    Side,
    Target,
    Text,
    VerbatimText,
    is_distinct,
    refuse,
)


class RunSettings(Section):
    """Directory of the run."""

    # Hydra parses run.name=3 as an integer.
    name: VerbatimText | int | None
    """Name of the run; null: composed of the environment, the encoder, the seed and other
    overrides."""
    root: Text
    """Directory of runs; this one is in <root>/<name>."""
    overwrite: bool
    """Delete an existing run of this name once the new one has been built without an error."""


Limit = Annotated[float, Bounds(above=0, below=math.inf)]


class BudgetSettings(Section):
    """Limits of the run. The first one reached ends it, with a checkpoint and an evaluation."""

    env_steps: Limit | None
    """Environment steps, over all environments; null: no limit."""
    updates: Limit | None
    """Gradient updates; null: no limit."""
    minutes: Literal["auto"] | Limit | None
    """Wall-clock minutes including evaluations, summed over resumed sessions; null: no limit; auto:
    two minutes, or no limit if another limit is given."""
    # Runs of earlier versions do not have it.
    cpu_s: Limit | None = None
    """CPU-seconds of the process and its children since the start of the process, summed over
    resumed sessions and ranks; null: no limit."""

    @model_validator(mode="after")
    def _has_limit(self) -> Self:
        limits = (self.env_steps, self.updates, self.minutes, self.cpu_s)
        if all(limit is None for limit in limits):
            raise refuse("have a limit: env_steps, updates, minutes or cpu_s")
        return self


class ScheduleSettings(Section):
    """Sizes and pace of training."""

    num_envs: Side
    """Number of environments that run in parallel."""
    batch_size: Count
    """Trajectories per update."""
    max_grad_norm: PositiveFloat
    """Global norm at which gradients are clipped."""
    warmup_updates: Natural
    """Updates over which the learning rate rises linearly from zero."""
    max_refused: Annotated[float, Bounds(above=0, most=1)]
    """Share of skipped updates (NaN or Inf gradients) among the last 100 that ends the run; 3
    skipped updates in a row also end it."""
    # Runs of earlier versions do not have it.
    average_decay: Annotated[float, Bounds(least=0, below=1)] | None = None
    """Evaluate and deploy an average of the weights over about 1 / (1 - average_decay) updates;
    null: the last weights."""
    autocast: Literal["bfloat16", "auto"] | None
    """Precision of matrix products in an update. bfloat16: lower precision; auto: bfloat16 on
    devices that support it natively (AVX512_BF16, AMX, GPUs since Ampere); null: precision of the
    weights."""


class OffPolicySchedule(ScheduleSettings):
    """Schedule of recipes that learn from stored trajectories."""

    anneal_lr: bool
    """Let the learning rate fall to zero at the end of the budget, whichever limit ends the run."""
    # Runs of earlier versions do not have it.
    anneal_lr_from: Annotated[float, Bounds(least=0, below=1)] | None = None
    """Share of the budget that is spent when the learning rate begins to fall, with anneal_lr;
    null: as in earlier versions, by updates from the end of the warm-up, and by minutes in their
    second half."""
    cuda_graph: bool
    """Record the update of each shape of batch as a CUDA graph, and replay it; needs CUDA."""
    compile: bool
    """Compile the loss for each shape of batch, which can take minutes for each."""


class ReplaySchedule(OffPolicySchedule):
    """Schedule of recipes that fill a replay buffer first."""

    learning_starts: Natural
    """Environment steps, over all environments, before the first update."""


class TrainSchedule(ReplaySchedule):
    """Schedule of `train`, which alternates collecting and learning."""

    # Runs of earlier versions do not have it.
    learning_starts_episodes: Natural = 0
    """Training episodes that must end before the first update, in addition to learning_starts; one
    episode after a tenth of the budget."""
    steps_per_iteration: Count
    """Environment steps, over all environments, that are collected before updates are made."""
    # Runs of earlier versions do not have it.
    batch_timesteps: Count | None = None
    """Largest expected number of timesteps in a batch, from the mean length of the episodes so far.
    With longer episodes, a batch contains fewer trajectories than batch_size, but at least two;
    null: no limit."""
    updates_per_step: Annotated[float, Bounds(least=0, most=1000)]
    """Gradient updates per environment step after learning has started; the maximum if regulator is
    set."""
    # Runs of earlier versions do not have it.
    regulator: Target | None = None
    """Factor on updates_per_step that follows overfitting, measured on held-out trajectories
    (replay.held_out); null: a constant number of updates per step."""
    offline_updates: Natural
    """Updates before the first environment step, which use only data (data.source)."""


class OfflineSchedule(OffPolicySchedule):
    """Schedule of `offline`."""

    updates_per_iteration: Count
    """Updates between two checks of the budget and the intervals."""


class PPOSchedule(ScheduleSettings):
    """Schedule of `ppo`. Episodes are complete, and must be shorter than context_length."""

    steps_per_iteration: Count
    """Smallest number of environment steps, over all environments, between updates."""
    epochs: Count
    """Passes over the episodes of an iteration."""


class DistillSchedule(ReplaySchedule):
    """Schedule of `distill`. Episodes must be shorter than context_length, histories need not."""

    updates_per_iteration: Count
    """Updates between two checks of the budget and the intervals."""


class EvaluationSettings(Section):
    """Evaluations on held-out tasks during training."""

    num_episodes: Side
    """Number of held-out tasks, with one complete episode each."""
    interval: Count | None
    """Environment steps between evaluations; updates in recipes without environment steps; null: at
    most eight over the budget, each after training has taken three times as many steps as the
    previous evaluation, and three times as long if time is limited."""
    seed: Natural
    """Seed of the held-out tasks, whose results select the best checkpoint. Training never uses it,
    and recipes/evaluate.py uses a different one."""
    greedy: bool
    """Act by the most probable action instead of sampling."""
    num_envs: Side | None
    """Number of parallel environments, which run the tasks in rounds; null: one per episode."""
    max_steps: Count | None
    """Steps after which an episode is cut; null: every episode is complete, unless it seems to be
    endless."""
    video_frames: Count
    """Largest number of timesteps in the video of the trained agent."""
    # Runs of earlier versions do not have it.
    in_budget: bool = True
    """Count the time of evaluations towards budget.minutes and budget.cpu_s; false: to compare
    learners at equal times of training."""
    env: Node
    """Settings of the environment that differ on held-out tasks, such as
    evaluation.env.split=test."""


class CheckpointSettings(Section):
    """Checkpoints of the run."""

    interval: Count | None
    """Environment steps between checkpoints; updates in recipes without environment steps; null:
    ten over the budget, and at least one in five minutes."""
    keep: Count
    """Number of latest checkpoints that are kept in addition to the best one."""


class AgentSettings(Section):
    """Parts of the agent."""

    # PPO takes a discount factor of 1.
    gammas: (
        Literal["auto"]
        | Annotated[
            list[Annotated[float, Bounds(above=0, most=1)]],
            Rule("a list of at least one number above 0 and of at most 1", bool),
        ]
    )
    """Discount factors; each has its own policy and values, and the last one acts. auto: one tenth,
    and four whose effective horizons 1 / (1 - gamma) are spaced geometrically from 10 steps to
    three times the longest episode of env, or to 300 if episodes have no limit."""
    multi_gamma: bool
    """Learn for all discount factors; false: for the last one only."""
    probability_floor: Annotated[float, Bounds(least=0, below=1)]
    """Share of the uniform distribution in discrete policies, so that no action has probability
    0."""
    box_distribution: Literal["tanh_normal", "beta"]
    """Distribution of continuous actions: tanh_normal or beta."""
    probability_clip: (
        Annotated[
            list[Annotated[float, Bounds(least=0, most=1)]],
            Rule("a list of two numbers, the smaller first", lambda clip: len(clip) == 2),
        ]
        | None
    ) = None
    """Smallest and largest probability of an action of discrete policies before normalisation,
    instead of probability_floor, as in AMAGO's code; null: no such bounds."""
    actor: Target
    """Policy head: the layers between the encoder and the probabilities of actions."""
    critic: Target
    """Value head: the layers between the encoder and the values."""
    returns: Target
    """Representation of values: numbers standardised by running statistics, or bins."""
    loss: Target
    """Loss of the agent."""


class OffPolicyAgent(AgentSettings):
    """Agent whose loss bootstraps from its own values, which diverge without discounting."""

    gammas: (
        Literal["auto"]
        | Annotated[
            list[Annotated[float, Bounds(above=0, below=1)]],
            Rule("a list of at least one number above 0 and below 1", bool),
        ]
    )
    """Discount factors; each has its own policy and values, and the last one acts. auto: one tenth,
    and four whose effective horizons 1 / (1 - gamma) are spaced geometrically from 10 steps to
    three times the longest episode of env, or to 300 if episodes have no limit."""


class DataSettings(Section):
    """Trajectories from elsewhere."""

    path: Text | list[Text] | None
    """Files, folders or ids of data to learn from; a list of them, or a pattern."""
    source: Target | None
    """Reader of the data; null: no data."""
    weight: float
    """Share of a batch that comes from the data; all of it while the replay buffer is empty."""
    final_weight: float | None
    """Share at the end of the annealing, which is linear from weight; null: constant."""
    anneal: Count
    """Environment steps or updates (anneal_by) over which the share changes."""
    anneal_by: Literal["env_steps", "updates"]
    """Counter of the annealing: env_steps or updates."""


class SourceSettings(Section):
    """Learners whose histories are distilled."""

    horizon: Count
    """Steps of one history, which consists of many trials of one task."""
    subsample: Count
    """Keep every n-th trial, so that the agent improves n times as fast as the learner."""
    env: Node
    """Settings of the environment that make an episode as long as a history; empty: time_limit, or
    trials.horizon."""
    learner: Target
    """Learning algorithm whose histories the agent imitates."""


class MeasureSettings(Section):
    """Trial of `doctor`."""

    seconds: Annotated[float, Bounds(least=1)]
    """Duration of the trial; up to four times as long if no update has been made."""


class ProbeSettings(Section):
    """Comparison of `probe`."""

    windows: Annotated[
        list[Count | None],
        Rule(
            "a list of at least one, all different, each an integer of at least 1 or null",
            is_distinct,
        ),
    ]
    """Numbers of latest timesteps that the compared agents observe, including the current one;
    null: all. 1 is always added."""
    seeds: Seeds
    """Seeds of the trainings of each window; fewer than three give no verdict."""
    margin: Annotated[float, Bounds(least=0, below=1)]
    """Largest difference that is ignored, as a share of the difference between the best window and
    a random policy."""
    confidence: Annotated[float, Bounds(above=0, below=1)]
    """Probability that all intervals between windows hold simultaneously."""
    settings: list[VerbatimText]
    """Overrides of every agent, such as encoder.d_model=64; those of the command line take
    precedence."""


class AmagoSettings(Section):
    """Agent of AMAGO's own code to import."""

    weights: VerbatimText
    """Weights: ckpts/policy_weights/policy_epoch_*.pt, ckpts/latest/policy.pt, or the folder of a
    state in ckpts/training_states."""
    path: VerbatimText
    """Folder to write, with weights, config.json and a model card."""
    overwrite: bool
    """Replace an agent in this folder."""
    config: VerbatimText | None
    """AMAGO's config.txt, with the arguments of its classes; auto: the file of the run that wrote
    the weights; null: AMAGO's defaults."""
    max_seq_len: Count | None
    """Timesteps that a Transformer remembers, as passed to AMAGO's Experiment; null: as in
    config.txt, or for a GRU."""
    gin: Node
    """Arguments of AMAGO's classes that are not in config.txt, such as
    amago.gin.Actor.n_layer=2."""


class PlayedConfig(Config):
    """Settings that an agent and its environment are built from."""

    # Arguments of environments of other packages, which no file of this package lists.
    open_keys: ClassVar[tuple[str, ...]] = ("env.settings",)

    seed: Natural
    """Seed of all random generators."""
    evaluation: EvaluationSettings
    agent: AgentSettings
    timestep_encoder: Target
    """Encoder of the inputs of one timestep (observation, action, reward, goals)."""
    goal_encoder: Target
    """Encoder of the instruction, in environments with goals."""
    encoder: Target
    """Encoder of the trajectory, which is the agent's memory."""
    env: Target
    """Environment."""
    # The group has no choice by default, so that the key may be absent.
    trials: Target | None = None
    """Repetition of an episode with the same task, without clearing memory; null: no repetition."""


class TrainingConfig(PlayedConfig):
    """Settings that all recipes that train have in common."""

    device: Device
    """Device on which the agent learns and acts: cpu, cuda, cuda:1."""
    float32_matmul_precision: Literal["highest", "high", "medium"]
    """Precision of float32 matrix products: high and medium use TF32 or bfloat16."""
    resume: Literal["auto"] | bool | None
    """true: continue the run of this name from its last checkpoint; auto: continue it if it exists,
    otherwise start it, and do nothing if it has finished; null: false, but auto in a sweep."""
    trust: list[Text]
    """Packages whose classes the configuration can refer to, such as [mylab.]; never read from a
    saved run."""
    context_length: Count
    """Longest history, in timesteps, that the agent is trained on and remembers."""
    run: RunSettings
    budget: BudgetSettings
    schedule: ScheduleSettings
    packing: Target | None
    """Packing of several trajectories into a row of a batch; null: one trajectory per row, padded
    to the longest."""
    workers: Target | None
    """Processes that run third-party environments, and the handling of their failures; native
    environments need none."""
    checkpoint: CheckpointSettings
    relabel: Target
    """Hindsight relabelling: replaces missed goals of sampled trajectories by achieved ones;
    relabel=tasks for hidden goals, none for environments without goals."""
    exploration: Target
    """Random changes of actions while trajectories are collected."""
    optimizer: Target
    """Optimizer."""
    logger: Target
    """Tracker of metrics: MLflow, or none."""
    callbacks: Node
    """Callbacks by name, each a class (_target_) with its arguments."""
    expected: Node | None
    """Result that an experiment should reach (metric, interval, source, cost); reports compare with
    it."""


class TrainConfig(TrainingConfig):
    """Settings of `train`."""

    agent: OffPolicyAgent
    schedule: TrainSchedule
    # The group has no choice by default, so that the key may be absent.
    curriculum: Target | None = None
    """Selection of training tasks by their seeds; null: a new task in every episode."""
    replay: Target
    """Replay buffer."""
    data: DataSettings
    collector: Target
    """Collector of trajectories."""
    window: Target | None
    """Cuts replayed trajectories to at most window.length transitions, at a random place; null:
    trajectories are not cut."""


class OfflineConfig(TrainingConfig):
    """Settings of `offline`."""

    agent: OffPolicyAgent
    schedule: OfflineSchedule
    data: DataSettings
    window: Target | None
    """Cuts trajectories to at most window.length transitions, at a random place; null: trajectories
    are not cut."""


class PPOConfig(TrainingConfig):
    """Settings of `ppo`."""

    schedule: PPOSchedule
    curriculum: Target | None = None
    """Selection of training tasks by their seeds; null: a new task in every episode."""


class DistillConfig(TrainingConfig):
    """Settings of `distill`."""

    agent: OffPolicyAgent
    schedule: DistillSchedule
    replay: Target
    """Replay buffer."""
    source: SourceSettings


class DoctorConfig(TrainConfig):
    """Settings of `doctor`: those of `train`, and its trial."""

    measure: MeasureSettings


class ProbeConfig(TrainConfig):
    """Settings of `probe`: those of `train`, and its comparison."""

    probe: ProbeSettings


class ImportAmagoConfig(TrainConfig):
    """Settings of `import_amago`; those of the environment and of evaluations are kept for it."""

    open_keys: ClassVar[tuple[str, ...]] = (*TrainConfig.open_keys, "amago.gin")

    amago: AmagoSettings
