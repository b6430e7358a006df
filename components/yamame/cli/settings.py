"""Settings of every recipe: those that evaluate, export or report here, those that train in
`yamame.cli.training_settings`.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from yamame.checks import Bounds, NonNegativeFloat, PositiveFloat
from yamame.cli.sections import (
    FITS_64_BITS,
    Config,
    Count,
    Device,
    Integer,
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
from yamame.cli.training_settings import (
    DistillConfig,
    DoctorConfig,
    ImportAmagoConfig,
    OfflineConfig,
    PPOConfig,
    ProbeConfig,
    TrainConfig,
)
from yamame.system.installed import conf_dir


def one_of(known: Collection[str], name: str) -> str:
    """Return a name if it is among those that are known."""
    if name not in known:
        raise refuse(f"be one of {', '.join(known)}")
    return name


class TrainedConfig(Config):
    """Settings that `evaluate` and `play` have in common."""

    open_keys: ClassVar[tuple[str, ...]] = ("env", "trials")

    checkpoint: Literal["best", "last"]
    """Weights to load: best (the checkpoint with the best evaluation in training) or last."""
    tracking_uri: Text
    """MLflow store in which ids of runs are looked up."""
    output: VerbatimText | None
    """Directory of the results; null: a folder in the run directory, or in runs/ for a file or an
    id."""
    device: Device
    """Device on which the agent acts: cpu, cuda, cuda:1."""
    trust: list[Text]
    """Packages whose classes and environments a run can refer to, such as [mylab.]."""
    max_steps: Count | None
    """Steps after which an episode is cut; null: as in training (evaluate), never (play), unless
    it seems to be endless."""
    context_length: Count | None
    """Timesteps that the agent remembers, if its encoder supports a choice; null: as in
    training."""
    env: Node
    """Settings of the environment that differ from training, such as env.size=13."""
    trials: Node
    """Settings of repeated trials that differ from training, such as trials.num_trials=6."""
    gamma: float | None
    """Discount factor of the acting policy, one of those trained; null: the last."""


class EvaluateConfig(TrainedConfig):
    """Settings of `evaluate`."""

    run: VerbatimText | list[VerbatimText]
    """A run directory, a checkpoint file or the id of an MLflow run; several as [runs/a,runs/b]."""
    against: VerbatimText | list[VerbatimText] | None
    """Other runs to compare with; the probability that a run is better than one of these is
    printed."""
    num_episodes: Side | None
    """Number of held-out tasks, with one complete episode each; null: as in training."""
    num_envs: Side | None
    """Number of parallel environments, which run the tasks in rounds; null: as in training."""
    seed: Natural | None
    """Seed of the held-out tasks and of the agent's samples. The default differs from
    evaluation.seed of training, whose tasks selected the best checkpoint; null: that seed."""
    greedy: bool | None
    """Act by the most probable action instead of sampling; null: as in training."""
    gamma_index: Integer | None
    """Discount factor of the acting policy, by its index in agent.gammas; null: see gamma."""
    gammas: Literal["all"] | None
    """all: evaluate with every trained discount factor in turn; null: with one."""
    control: bool
    """Also evaluate the agent with its memory cleared at every step."""
    attention: bool
    """Write pictures of the timesteps that a Transformer attends to during the first held-out
    episode."""
    attention_steps: Count
    """Largest number of timesteps of such a picture."""
    diagnose: Text | list[Text] | None
    """Diagnoses of the agent's memory: all, or a list of recall, wiped, observable, probes
    (docs/howto/diagnose.md); null: none."""
    diagnose_twin: VerbatimText | None
    """Run directory of an agent trained with env.observable=true, which the diagnosis observable
    compares with."""
    diagnose_steps: Count
    """Largest number of timesteps of an episode that the diagnosis recall replaces, one at a
    time."""
    confidence: Annotated[float, Bounds(above=0, below=1)]
    """Confidence of all intervals, between 0 and 1."""


class PlayConfig(TrainedConfig):
    """Settings of `play`."""

    run: VerbatimText
    """A run directory, a checkpoint file or the id of an MLflow run."""
    instruction: VerbatimText | None
    """Goals in the notation of the environment, such as "3,5 7,1"; null: read from the terminal."""
    seed: Natural
    """Seed of the task, of unspecified goals, and of the agent's samples."""
    greedy: bool
    """Act by the most probable action instead of sampling."""
    picture: bool
    """Draw every step in the terminal, if the environment has pictures."""
    width: Count
    """Characters per line of such a picture."""
    video: Literal["gif", "mp4"]
    """Format of the video: gif, or mp4, which needs: pip install 'yamame[video]'."""
    fps: Annotated[float, Bounds(above=0, most=50)]
    """Frames per second of the video."""


class ExportConfig(Config):
    """Settings of `export`."""

    run: VerbatimText
    """A run directory, a checkpoint file, the id of an MLflow run, a folder of this recipe or
    zoo:NAME."""
    path: VerbatimText
    """Folder to write, with weights, config.json and a model card; or a file: .pt2 (torch.export)
    or .onnx."""
    dataset: Literal["lerobot"] | None
    """Write the trajectories in the replay of a run directory instead of the agent, in this layout
    (docs/data.md); null: the agent."""
    checkpoint: Literal["best", "last"]
    """Weights to load: best (the checkpoint with the best evaluation in training) or last."""
    tracking_uri: Text
    """MLflow store in which ids of runs are looked up."""
    trust: list[Text]
    """Packages whose classes a run can refer to, such as [mylab.]."""
    mlflow: bool
    """Write the folder of an MLflow model, for mlflow.pyfunc.load_model."""
    small: bool
    """Write only the weights that acting needs, with matrices in half precision."""
    greedy: bool | None
    """For an MLflow model: act by the most probable action; null: as in evaluations of training."""
    gamma: float | None
    """Discount factor of the acting policy in a .pt2 or .onnx file or an MLflow model; null: the
    last."""
    context_length: Count | None
    """Timesteps that the agent in a .pt2 or .onnx file remembers; null: as in training."""
    num_streams: Side
    """Number of parallel episodes of a .pt2 or .onnx file."""


class ServeConfig(Config):
    """Settings of `serve`."""

    run: VerbatimText
    """A run directory, a checkpoint file, the id of an MLflow run, a folder of `export` or
    zoo:NAME."""
    checkpoint: Literal["best", "last"]
    """Weights to load: best (the checkpoint with the best evaluation in training) or last."""
    tracking_uri: Text
    """MLflow store in which ids of runs are looked up."""
    trust: list[Text]
    """Packages whose classes a run can refer to, such as [mylab.]."""
    device: Device
    """Device on which the agent acts: cpu, cuda, cuda:1."""
    seed: Natural
    """Seed of the agent's samples."""
    greedy: bool | None
    """Act by the most probable action instead of sampling; null: as in evaluations of training."""
    gamma: float | None
    """Discount factor of the acting policy, one of those trained; null: the last."""
    context_length: Count | None
    """Timesteps that the agent remembers, if its encoder supports a choice; null: as in
    training."""
    host: Text
    """Network interface: 127.0.0.1 accepts only requests from this machine, 0.0.0.0 from any
    machine."""
    port: Annotated[int, Bounds(least=0, most=65_535)]
    """Port; 0: a free one, which is printed."""
    max_sessions: Count
    """Largest number of sessions; beyond it, /reset returns 503."""
    session_timeout: PositiveFloat
    """Seconds without a request after which a session ends."""
    max_connections: Count
    """Largest number of open connections; beyond it, the one idle for longest is closed."""
    connection_timeout: PositiveFloat
    """Seconds in which a request must arrive completely, and after which an idle connection is
    closed."""
    max_request_bytes: Count | None
    """Largest body of a request; larger ones return 413. null: enough for any observation of the
    agent."""


class ReplayBatchConfig(Config):
    """Settings of `replay_batch`."""

    bundle: VerbatimText
    """Stored update with NaN or Inf: a directory in <run>/nonfinite, or its file."""
    device: Device
    """Device of the computation: cpu, cuda, cuda:1."""
    trust: list[Text]
    """Packages whose classes and environments the bundle can refer to, such as [mylab.]."""


class SyncConfig(Config):
    """Settings of `sync`."""

    run: VerbatimText | list[VerbatimText]
    """A run directory; several as [runs/a,runs/b]."""


class ReportStore(Section):
    """Runs to read."""

    tracking_uri: Text | None
    """MLflow store; null: read only the evidence, and write no page."""
    experiment: Text
    """Name of the MLflow experiment whose runs are read; unrelated to the setting experiment=... of
    train."""


class ReportConfig(Config):
    """Settings of `report`."""

    runs: VerbatimText | list[VerbatimText] | None
    """Names, patterns or ids of runs, such as [maze-*,tmaze-0]; null: all runs of
    store.experiment."""
    directory: VerbatimText
    """Directory of the page and its files; an earlier report there is replaced."""
    base: VerbatimText | None
    """Name or pattern of the runs to compare with; null: those with the fewest overrides."""
    metric: VerbatimText | None
    """Metric of evaluations, such as length_mean (less is better); null: the expected one, else
    success, else the return."""
    thresholds: Annotated[
        list[PositiveFloat],
        Rule("a list of at least one, all different, each above 0", is_distinct),
    ]
    """Fractions of full success, or of the expected result; the report shows the step at which each
    is first reached."""
    strict: bool
    """Exit with status 1 if an experiment is below its expected result, or was not measured."""
    evidence: Text | None
    """Folder of CSV files to which the numbers of these runs are added, such as docs/results."""
    tables: VerbatimText | list[VerbatimText] | None
    """Markdown pages whose marked tables are filled from the evidence, such as [README.md]."""
    store: ReportStore
    resampling: Target
    """Intervals over seeds: Student's and Welch's below ten seeds, bootstrap above."""


class SuiteTask(Section):
    """Task of a suite: an entry of ``suite.tasks``."""

    overrides: list[VerbatimText]
    """Settings of the task, such as [env=tmaze,env.length=100]."""
    metric: Text | None = None
    """Metric of evaluations that is scored; null: the task has no score."""
    random: float | None = None
    """Metric of random actions, which scores 0."""
    best: float | None = None
    """Best known metric, which scores 1; below `random` if less is better."""
    best_source: Text | None = None
    """Source of the best known metric."""


class SuiteTier(Section):
    """Way to run the tasks of a suite: an entry of ``suite.tiers``."""

    overrides: list[VerbatimText] | None = None
    """Settings of all tasks, such as [env=popgym]; null: none."""
    tasks: list[Text] | None = None
    """Names of its tasks; null: all."""
    cpu_s: list[PositiveFloat] | None = None
    """Limits of the runs in CPU-seconds; null: the limits of the settings."""


class SuiteSettings(Section):
    """Tasks of a benchmark, and published results."""

    title: Text
    """Title of the table."""
    tiers: Annotated[Node, Rule("a mapping with at least one tier", bool)]
    """By name, ways to run the tasks: overrides for all, tasks, and limits cpu_s."""
    tasks: Annotated[Node, Rule("a mapping with at least one task", bool)]
    """By name: overrides, and for a score the metric, its random and best values, best_source."""
    random_source: Text | None
    """Source of the metrics of random actions."""
    against: Text | None
    """Column of the table that verdicts compare with; null: no verdicts."""
    published: Node
    """Published results by column."""


class LeaderboardStore(Section):
    """Store in which runs are recorded."""

    tracking_uri: Text
    """MLflow store."""
    experiment: Text
    """Name of the MLflow experiment of the runs; unrelated to the setting experiment=... of
    train."""


class LeaderboardConfig(Config):
    """Settings of `leaderboard`."""

    first_word: ClassVar[str | None] = "suite"

    suite: SuiteSettings
    tier: Text | None
    """Tier of tasks to run: a key of suite.tiers; null: the first one."""
    tasks: list[Text] | None
    """Tasks to run, such as [tmaze_100,lake_4x4]; null: all of the tier."""
    seeds: Seeds
    """Seeds of the runs of each task."""
    cpu_s: list[PositiveFloat] | None
    """Limits of the runs in CPU-seconds, such as [60,300]; each limit is a separate run, without
    the default limits of steps and minutes. null: limits of the tier."""
    overrides: list[VerbatimText]
    """Overrides of every run, such as [encoder=gru,device=cuda]."""
    page: VerbatimText | None
    """Markdown page whose marked table is replaced; null: leaderboard/<suite>-<tier>.md, with
    the overrides in its name. A CSV file in the same folder contains a row per run."""
    compare: Node
    """Learners of other libraries that are trained on the same tasks, by name, each a class. Select
    choices as compare=[recurrent_ppo]."""
    trust: list[Text]
    """Packages outside Yamame whose classes `compare` can refer to, such as [mylab.]."""
    baseline: VerbatimText | None
    """CSV file of an earlier call with other overrides, to compare scores with; null: none."""
    only_check: bool
    """List and check the runs, without training."""
    store: LeaderboardStore
    resampling: Target
    """Intervals of verdicts over several seeds, and of scores."""

    @field_validator("tier")
    @classmethod
    def _is_known(cls, tier: str | None, info: ValidationInfo) -> str | None:
        suite = info.data.get("suite")
        return tier if suite is None or tier is None else one_of(suite.tiers, tier)


class CPUContract(Section):
    """Edition of a contract for one core: the default agent on the same task."""

    experiment: Text | None = None
    """Experiment that edition=cpu uses; null: no such edition."""
    memory: Text = "transformer"
    """Encoder of edition=cpu without memory=..."""
    cpu_s: PositiveFloat = 3600.0
    """CPU-seconds of training per seed."""
    threshold: float = 1.0
    """Mean score over the reported tasks that a seed should reach."""


class ContractSettings(Section):
    """Published result to repeat, and the rule of the comparison."""

    experiment: Text | None
    """Experiment that trains the agents as published; null: only edition=cpu exists."""
    endpoint: Text
    """Score that is compared."""
    margin: NonNegativeFloat
    """Largest difference from the published score that counts as repeated."""
    source: Text
    """Source of the published result."""
    cost: Text
    """Cost of the published experiment."""
    published: Node
    """Published scores by memory."""
    num_tasks: Side = 256
    """Number of reported tasks."""
    env: Node = Node({})
    """Settings of the environment of the reported tasks that differ from evaluations in
    training."""
    cpu: CPUContract = CPUContract()

    def editions(self, known: Iterable[str]) -> list[str]:
        """Return those of some editions that this contract has."""
        found = []
        for name in known:
            experiment = self.cpu.experiment if name == "cpu" else self.experiment
            if experiment is not None:
                found.append(name)
        return found


class ReproduceConfig(Config):
    """Settings of `reproduce`."""

    first_word: ClassVar[str | None] = "reproduce"

    contract: ContractSettings
    # Before their names, which are checked by them.
    memories: Node
    """Overrides by memory, for all editions except cpu."""
    editions: Node
    """Overrides by edition."""
    edition: Text
    """Size of the experiment: a key of editions. small: a tiny network and a few updates, as a
    test. cpu: the default agent of train on the same tasks, within contract.cpu.cpu_s
    CPU-seconds."""
    memory: Text | None
    """Memory of the agent: a key of memories, or with edition=cpu a choice of encoder=... null:
    rsm, with edition=cpu contract.cpu.memory."""
    seeds: Seeds
    """Seeds, trained one after the other."""
    minutes: PositiveFloat | None
    """Minutes of training in this call; the same command continues later. null: until all is
    done."""
    overrides: list[VerbatimText]
    """Overrides of every run, such as [device=cuda]."""
    root: VerbatimText
    """Directory of the runs; each is in <root>/<experiment>-<memory>-<edition>-<seed>."""
    first_task: Natural
    """Seed of the first reported task; training uses 64-bit seeds, so its tasks are different."""
    num_tasks: Side | None
    """Number of reported tasks, with one greedy episode each, by the last checkpoint; null:
    contract.num_tasks."""
    num_resamples: Annotated[int, Bounds(least=2), FITS_64_BITS]
    """Number of bootstrap samples over seeds and tasks."""

    @field_validator("edition")
    @classmethod
    def _has_edition(cls, edition: str, info: ValidationInfo) -> str:
        editions = info.data.get("editions")
        contract = info.data.get("contract")
        if editions is None or contract is None:  # wrong themselves
            return edition
        return one_of(contract.editions(editions), edition)

    @field_validator("memory")
    @classmethod
    def _has_memory(cls, memory: str | None, info: ValidationInfo) -> str | None:
        memories = info.data.get("memories")
        if memory is None or memories is None or "edition" not in info.data:
            return memory
        if info.data["edition"] != "cpu":
            return one_of(memories, memory)
        return one_of(sorted(file.stem for file in (conf_dir() / "encoder").glob("*.yaml")), memory)


CONFIGS: dict[str, type[Config]] = {
    "train": TrainConfig,
    "offline": OfflineConfig,
    "ppo": PPOConfig,
    "distill": DistillConfig,
    "doctor": DoctorConfig,
    "probe": ProbeConfig,
    "evaluate": EvaluateConfig,
    "play": PlayConfig,
    "export": ExportConfig,
    "serve": ServeConfig,
    "replay_batch": ReplayBatchConfig,
    "sync": SyncConfig,
    "import_amago": ImportAmagoConfig,
    "report": ReportConfig,
    "leaderboard": LeaderboardConfig,
    "reproduce": ReproduceConfig,
}
"""Models of the recipes, by the name of the main YAML file."""
