"""What the settings of every recipe may be where no ``_target_`` takes them: the one place beside
the YAML.

Nested as the YAML files are, which give the defaults and say what each key means. A key has a type,
or the class whose arguments the keys below it are; a `Node` has a ``_target_``, whose own
annotations say the rest.
"""

from typing import Annotated, Any, Literal, NotRequired

from yamame.cli.validation import Node, Pattern
from yamame.system.budget import Budget

Count = Annotated[int, 1]
"""An integer of at least 1."""
Many = Annotated[int, range(1, 1_000_001)]
"""How many are played side by side: a slip of the keyboard would ask for more memory than there
is.
"""
_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
_IN_WORDS = f"one of {', '.join(_DEVICES)}, or as cuda:1 with its number"
Device = Annotated[str, Pattern(f"({'|'.join(_DEVICES)})(:[0-9]+)?", _IN_WORDS)]
"""Whether this machine has it is looked up later."""
Free = dict[str, Any]

_SCHEDULE = {
    "num_envs": Many,
    "batch_size": Count,
    "max_grad_norm": float,
    "warmup_updates": Annotated[int, 0],
    "max_refused": float,
    "average_decay": NotRequired[Annotated[float, 0] | None],
    "autocast": Literal["bfloat16", "auto"] | None,
}
_OFF_POLICY = {"anneal_lr": bool, "cuda_graph": bool, "compile": bool}
_FROM_REPLAY = _OFF_POLICY | {"learning_starts": Annotated[int, 0]}
_TRAINING = {
    "seed": Annotated[int, 0],
    "device": Device,
    "float32_matmul_precision": Literal["highest", "high", "medium"],
    "resume": Literal["auto"] | bool | None,
    "trust": list[str],
    "context_length": Count,
    "run": {"name": str | int | None, "root": str, "overwrite": bool},
    "budget": Budget,
    "evaluation": {
        "num_episodes": Many,
        "interval": Count,
        "seed": Annotated[int, 0],
        "greedy": bool,
        "num_envs": Many | None,
        "max_steps": Count | None,
        "video_frames": Count,
        "env": Free,
    },
    "checkpoint": {"interval": Count, "keep": Count},
    "agent": {
        "gammas": list[float],
        "multi_gamma": bool,
        "probability_floor": float,
        "box_distribution": Literal["tanh_normal", "beta"],
        **dict.fromkeys(("actor", "critic", "returns", "loss"), Node),
    },
    "callbacks": Free,
    "expected": Free | None,
    "trials": NotRequired[Node],
    **dict.fromkeys(
        ("timestep_encoder", "goal_encoder", "encoder", "relabel", "exploration"), Node
    ),
    **dict.fromkeys(("optimizer", "logger", "env"), Node),
    **dict.fromkeys(("packing", "workers"), Node | None),
}
_DATA = {
    "path": str | list[str] | None,
    "source": Node | None,
    "weight": float,
    "final_weight": float | None,
    "anneal": Count,
    "anneal_by": Literal["env_steps", "updates"],
}
_TRAINED = {
    "checkpoint": str,
    "tracking_uri": str,
    "output": str | None,
    "device": Device,
    "trust": list[str],
    "max_steps": Count | None,
    "context_length": Count | None,
    "env": Free,
    "trials": Free,
    "gamma": float | None,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "train": _TRAINING
    | {
        "schedule": _SCHEDULE
        | _FROM_REPLAY
        | {
            "steps_per_iteration": Count,
            "updates_per_step": Annotated[float, 0],
            "offline_updates": Annotated[int, 0],
        },
        "replay": Node,
        "data": _DATA,
        "collector": Node,
        "window": Node | None,
    },
    "offline": _TRAINING
    | {
        "schedule": _SCHEDULE | _OFF_POLICY | {"updates_per_iteration": Count},
        "data": _DATA,
        "window": Node | None,
    },
    "ppo": _TRAINING | {"schedule": _SCHEDULE | {"steps_per_iteration": Count, "epochs": Count}},
    "distill": _TRAINING
    | {
        "schedule": _SCHEDULE | _FROM_REPLAY | {"updates_per_iteration": Count},
        "replay": Node,
        "source": {"horizon": Count, "subsample": Count, "env": Free, "learner": Node},
    },
    "evaluate": _TRAINED
    | {
        "run": str | list[str],
        "against": str | list[str] | None,
        "num_episodes": Many | None,
        "num_envs": Many | None,
        "seed": Annotated[int, 0] | None,
        "greedy": bool | None,
        "gamma_index": int | None,
        "gammas": str | None,
        "control": bool,
        "attention": bool,
        "attention_steps": int,
        "diagnose": str | list[str] | None,
        "diagnose_twin": str | None,
        "diagnose_steps": Count,
        "confidence": float,
    },
    "play": _TRAINED
    | {
        "run": str,
        "instruction": str | None,
        "seed": Annotated[int, 0],
        "greedy": bool,
        "picture": bool,
        "width": int,
        "video": str,
        "fps": float,
    },
    "replay_batch": {"bundle": str, "device": Device, "trust": list[str]},
    "report": {
        "runs": str | list[str] | None,
        "directory": str,
        "base": str | None,
        "metric": str | None,
        "thresholds": list[float],
        "strict": bool,
        "evidence": str | None,
        "tables": str | list[str] | None,
        "store": {"tracking_uri": str | None, "experiment": str},
        "resampling": Node,
    },
    "leaderboard": {
        "suite": {
            "title": str,
            "key": str,
            "tiers": dict[str, Any],
            "against": str,
            "published": dict[str, Any],
        },
        "tier": str,
        "seeds": list[int],
        "overrides": list[str],
        "page": str | None,
        "only_check": bool,
        "store": {"tracking_uri": str, "experiment": str},
        "resampling": Node,
    },
    "reproduce": {
        "contract": {
            "experiment": str,
            "endpoint": str,
            "margin": float,
            "source": str,
            "cost": str,
            "published": dict[str, Any],
        },
        "memory": str,
        "edition": str,
        "seeds": list[int],
        "minutes": float | None,
        "overrides": list[str],
        "root": str,
        "first_task": Annotated[int, 0],
        "num_tasks": Many,
        "num_resamples": Annotated[int, 2],
        "memories": dict[str, Any],
        "editions": dict[str, Any],
    },
    "sync": {"run": str | list[str]},
    "export": {
        "run": str,
        "path": str,
        "checkpoint": str,
        "tracking_uri": str,
        "trust": list[str],
        "mlflow": bool,
        "small": bool,
        "greedy": bool | None,
        "gamma": float | None,
        "context_length": Count | None,
        "num_streams": Many,
    },
}
SETTINGS["doctor"] = SETTINGS["train"] | {"measure": {"seconds": Annotated[float, 1]}}
SETTINGS["probe"] = SETTINGS["train"] | {
    "probe": {
        "windows": list[Count | None],
        "seeds": list[Annotated[int, 0]],
        "margin": Annotated[float, 0],
        "confidence": Annotated[float, 0],
        "settings": list[str],
    }
}
"""By the name of the main YAML file."""
