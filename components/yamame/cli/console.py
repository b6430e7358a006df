"""The command ``yamame``: ``yamame train encoder=gru`` is ``python recipes/train.py encoder=gru``,
from anywhere.
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

from yamame import __version__, recipes_dir
from yamame.system.messages import explain_missing, print_stdout


def main() -> None:
    """Runs the recipe that the first argument names with the others."""
    recipes = {path.stem: path for path in sorted(recipes_dir().glob("*.py"))}
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print_stdout(_usage(recipes))
    elif name == "--version":
        print(__version__)
    elif name in recipes:
        sys.argv = [str(recipes[name]), *sys.argv[2:]]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except ModuleNotFoundError as error:
            if (reason := explain_missing(error)) is None:
                raise
            print(f"yamame {name}: {reason}", file=sys.stderr)
            raise SystemExit(1) from None
    else:
        close = difflib.get_close_matches(name, recipes, n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        print(
            f"yamame: there is no command {name!r}{hint}; there are {', '.join(recipes)}",
            file=sys.stderr,
        )
        raise SystemExit(2)


def _usage(recipes: dict[str, Path]) -> str:
    """A line per recipe: the first of what it says of itself."""
    summaries = {
        name: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        for name, path in recipes.items()
    }
    width = max(map(len, summaries))
    lines = [f"  {name.ljust(width)}  {text}" for name, text in summaries.items()]
    return "\n".join(
        [
            "yamame COMMAND [group=choice] [key=value]   (yamame COMMAND --help lists them)",
            "",
            *lines,
        ]
    )
