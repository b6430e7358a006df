"""The command ``yamame``: ``yamame train encoder=gru`` runs ``recipes/train.py`` from any
directory.
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

from yamame import __version__, recipes_dir
from yamame.system.messages import explain_missing, print_stderr, print_stdout


def main() -> None:
    """Run the recipe that the first argument names, with the other arguments."""
    recipes = {path.stem: path for path in sorted(recipes_dir().glob("*.py"))}
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print_stdout(_usage(recipes))
    elif name == "--version":
        print(__version__)
    elif name in recipes:
        _run(name, recipes[name])
    else:
        close = difflib.get_close_matches(name, recipes, n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        known = ", ".join(recipes)
        print_stderr(f"yamame: there is no command {name!r}{hint}; there are {known}")
        raise SystemExit(2)


def _run(name: str, recipe: Path) -> None:
    sys.argv = [str(recipe), *sys.argv[2:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ModuleNotFoundError as error:
        reason = explain_missing(error)
        if reason is None:
            raise
        print_stderr(f"yamame {name}: {reason}")
        raise SystemExit(1) from None


def _usage(recipes: dict[str, Path]) -> str:
    """Return a line per recipe: the first of its docstring."""
    lines = ["yamame COMMAND [group=choice] [key=value]   (yamame COMMAND --help lists them)", ""]
    width = max(map(len, recipes))
    for name, path in recipes.items():
        # Importing a recipe would import torch.
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        summary = docstring.partition("\n")[0]
        lines.append(f"  {name.ljust(width)}  {summary}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
