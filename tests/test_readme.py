"""What README shows runs as it stands, and names only what there is."""

import re
from pathlib import Path

from yamame import conf_dir

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ENVIRONMENTS = (ROOT / "docs" / "environments.md").read_text()


def test_the_script_that_uses_parts_alone_runs_and_trains():
    script, loading = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "yamame.load" in loading  # of which tests/deploy/test_page.py runs more
    names: dict = {}
    exec(compile(script, "README.md", "exec"), names)
    assert {"loss_critic", "loss_online", "loss_cloning"} <= set(names["terms"].keys())
    gradients = [p.grad for p in names["context"].parameters()]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)
    assert "mask" in names["buffer"].sample().keys()
    assert names["rollout"].batch_size == (8, 100)


def choices(group: str) -> set[str]:
    return {path.stem for path in (conf_dir() / group).glob("*.yaml")}


def test_the_table_of_choices_is_complete():
    for group in ("env", "trials", "encoder", "agent", "agent/returns", "relabel", "exploration", "ablation"):
        rows = [line for line in README.splitlines() if re.match(rf"\| `\+?{group}`", line)]
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[2])]
        assert sorted(named) == sorted(choices(group))


def test_the_page_of_environments_has_a_row_for_each():
    rows = [line for line in ENVIRONMENTS.splitlines() if line.startswith("| `")]
    named = [match.group(1) for row in rows if (match := re.match(r"\| `(\w+)`", row))]
    assert sorted(named) == sorted(choices("env"))
