"""Starts programs as copies of one process that has imported what takes seconds.

It reads a line of JSON per program and answers with two: the id of the process, and how it ended.
"""

import gc
import json
import os
import sys

import matplotlib.backends.backend_agg
import matplotlib.pyplot  # noqa: F401
import mlflow.tracking  # noqa: F401
import scipy.stats  # noqa: F401
import torch.distributed.launcher.api  # noqa: F401
import torchrl.objectives  # noqa: F401
import yamame_envs  # noqa: F401
from hydra import compose, initialize_config_dir
from PIL import Image
from yamame import conf_dir
from yamame.runs.api import load_recipe

load_recipe("train")
Image.preinit()
with initialize_config_dir(str(conf_dir()), version_base="1.3"):
    compose("train", overrides=["debug=tiny"])  # Hydra finds its plugins once


def run(asked: dict) -> None:
    """The program, in this process: its arguments, folder, variables, and files for what it
    prints.
    """
    os.chdir(asked["cwd"])
    os.environ.update(asked["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv = ["-c", *asked["arguments"]]
    exec(compile(asked["program"], "<program>", "exec"), {"__name__": "__main__"})


def main() -> None:
    """Copies itself until there is nothing more to read."""
    gc.freeze()  # copies do not look for garbage among what was imported
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(
        sys.stdin.buffer.raw.readline, b""
    ):  # nothing is read ahead, which a copy would have, too
        process = os.fork()
        if process == 0:
            answers.close()
            run(json.loads(line))
            return
        print(process, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    main()
