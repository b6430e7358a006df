import importlib.util
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "train.py"


@pytest.fixture
def recipe():
    """The training recipe, freshly loaded from its file."""
    spec = importlib.util.spec_from_file_location("train_recipe", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
