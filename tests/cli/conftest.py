"""A recipe of its own, whose jobs a launcher of sweeps begins."""

from pathlib import Path

import pytest

CONFIG = """
defaults:
  - launcher: {launcher}
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
hydra:
  searchpath: ["file://{conf}"]
  run: {{dir: .}}
  sweep: {{dir: "${{run.root}}", subdir: .}}
  output_subdir: null
seed: 0
device: cuda
resume: null
run: {{root: runs, name: null, overwrite: false}}
"""


@pytest.fixture
def write_recipe(tmp_path):
    """Writes ``recipe.py`` and its configuration, with a choice of ``launcher``."""
    conf = Path(__file__).parents[2] / "conf"

    def write(recipe, *, launcher):
        config = CONFIG.format(conf=conf, launcher=launcher)
        (tmp_path / "train.yaml").write_text(config)
        (tmp_path / "recipe.py").write_text(recipe)

    return write
