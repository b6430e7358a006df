"""Errors of user code: which code raised an error, and a message of one line about it.

User code is all code outside of Yamame, its dependencies and the standard library: environments,
components, callbacks and data of the person who starts a recipe. An error of theirs is reported
with the file and the line that raised it, whatever its type. Errors of Yamame's own checks
(`yamame.checks`) are mistakes in the configuration, and have the key instead.
"""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType, TracebackType
from typing import Any, Self

from yamame.checks import UsageError
from yamame.system.installed import recipes_dir
from yamame.system.messages import OutsideError, described, first_of_group, printable

TRACEBACK_VARIABLE = "YAMAME_TRACEBACK"
"""Environment variable. With any value but 0, tracebacks are printed beside the line of an error.
"""
HINT = f"{TRACEBACK_VARIABLE}=1 prints the traceback"

_OURS = ("yamame", "yamame_envs")
_DOOR = "yamame.cli.app"
_LIBRARIES = frozenset(
    (
        *_OURS,
        # Dependencies, and what they need in turn.
        *("torch", "torchvision", "functorch", "triton", "sympy", "mpmath"),
        *("torchrl", "tensordict", "pyvers", "orjson", "cloudpickle", "packaging"),
        *("numpy", "scipy", "pandas", "numba", "llvmlite", "jax", "jaxlib"),
        *("hydra", "omegaconf", "antlr4", "yaml", "pydantic", "pydantic_core", "typing_extensions"),
        *("hydra_plugins", "joblib", "submitit", "optuna", "ray", "grpc", "multiprocess", "dill"),
        *("mlflow", "sqlalchemy", "alembic", "requests", "urllib3", "httpx", "psutil"),
        *("matplotlib", "PIL", "imageio", "av", "cv2", "jinja2", "markupsafe", "rich", "tqdm"),
        *("gymnasium", "gymnasium_robotics", "mujoco", "glfw", "OpenGL", "pygame", "Box2D"),
        *("dm_control", "dm_env", "metaworld", "minigrid", "crafter", "popgym", "ale_py"),
        *("memory_gym", "minihack", "nle", "xenoverse", "shimmy", "ruamel"),
        *("craftax", "gymnax", "popgym_arcade", "xminigrid", "flax", "chex", "jaxtyping", "dm_pix"),
        *("stable_baselines3", "sb3_contrib"),
        *("h5py", "minari", "pyarrow", "datasets", "transformers", "tokenizers", "safetensors"),
        *("huggingface_hub", "accelerate", "mamba_ssm", "causal_conv1d", "einops", "fsspec"),
        *("onnx", "onnxscript", "onnxruntime", "onnx_ir"),
        # Programs that run code of others.
        *("IPython", "ipykernel", "traitlets", "pytest", "_pytest", "pluggy", "hypothesis"),
        *("xdist", "execnet", "pytest_timeout", "coverage", "debugpy"),
    )
)
"""Modules that are no user code."""
_SHIPPED = "<dynamic-code>"
"""File of code that cloudpickle has pickled."""
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class Blame:
    """Place in user code that raised an error.

    Attributes:
        error: The error, or the one of its causes that user code raised.
        file: File of the innermost line of user code.
        line: Number of this line.
        function: Dotted name of the function that Yamame, or a library, has called: the outermost
            one around the line.
        frames: Frames of user code, outermost first.
    """

    error: BaseException
    file: str
    line: int
    function: str
    frames: tuple[FrameType, ...] = ()


def blame(error: BaseException) -> Blame | None:
    """Return the place in user code that raised an error; None if no user code was running.

    A library may raise another error while it handles that of user code, as ``gymnasium.make`` does
    for a TypeError. Then the error that it handles is the one that is found.
    """
    for cause in _causes(error):
        if isinstance(cause, SyntaxError) and _is_user_file(cause.filename):
            return Blame(cause, str(cause.filename), cause.lineno or 0, "")
        # For a group, report where its first error was raised, not where the group was formed.
        lines = _lines_of_user(first_of_group(cause)) or _lines_of_user(cause)
        if lines:
            frame, line = lines[-1]
            frames = tuple(frame for frame, _ in lines)
            function = _name_of(_outermost_of_call(cause, frame))
            return Blame(cause, _file_of(frame), line, function, frames)
    return None


def is_raised_by_user_code(error: BaseException) -> bool:
    """Return whether user code itself raised an error, alone or through a library.

    False for an error that Yamame raised when user code called it, or that user code was not
    running for.
    """
    for frame, _ in reversed(list(_lines(error))):
        if _is_user_code(frame):
            return True
        if _module_of(frame) in _OURS or _is_recipe(frame):
            return False
    return False


def is_of_part(error: BaseException) -> bool:
    """Return whether user code that raised an error was called by Yamame within a recipe.

    False for an error in a custom recipe, which is a program of its own.
    """
    found = blame(error)
    if found is None:
        return False
    if found.error is not error:
        return True  # a library has called the code
    is_begun = False
    is_inside = False
    for frame, _ in _lines(error):
        if frame.f_globals.get("__name__") == _DOOR:
            is_begun = is_inside = False  # Yamame only starts a recipe there
        elif _is_recipe(frame):
            is_inside = True
        elif _module_of(frame) in _OURS:
            is_inside |= is_begun
        elif _is_user_code(frame):
            if is_inside:
                return True
            is_begun = True
    return False


def is_failure(error: BaseException) -> bool:
    """Return whether an exception reports a failure, and is no request to end the process.

    Subclasses of SystemExit come from signal handlers (`yamame.system.signals.Terminated`).
    Extension modules raise failures that are no ``Exception``, as a panic of Rust.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_failure(one) for one in error.exceptions)
    is_request = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
    return type(error) is SystemExit or not is_request


class UserCodeError(OutsideError):
    """An error that user code raised, reported in one line with the place in the code.

    Args:
        what: Part that failed, and when.
        reason: Type and message of the error, in one line.
        file: File that raised it; empty if unknown.
        line: Line of this file.

    >>> print(UserCodeError("encoder (mine.Encoder)", "KeyError: 'width'", "mine.py", 12))
    encoder (mine.Encoder): KeyError: 'width' (mine.py:12)
    """

    # Only texts and numbers, so that the error can be sent to another process.
    def __init__(self, what: str, reason: str, file: str, line: int) -> None:
        super().__init__(what, reason, file, line)
        self.what = what
        self.reason = reason
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = f" ({printable(self.file)}:{self.line})" if self.file else ""
        return f"{self.what}: {self.reason}{place}"

    @classmethod
    def of(cls, what: str, error: BaseException) -> Self:
        """Describe an error. Raise the result ``from`` it.

        Without user code in its traceback, the place is the innermost one outside of Yamame.
        """
        found = blame(error)
        if found is not None:
            return cls(what, described(found.error), found.file, found.line)
        file, line = innermost_place(error)
        return cls(what, described(error), file, line)


def innermost_place(error: BaseException) -> tuple[str, int]:
    """Return file and line that raised an error; an empty name for a line of Yamame."""
    place = ("", 0)
    for frame, line in _lines(error):
        is_ours = _module_of(frame) in _OURS
        place = ("", 0) if is_ours else (_file_of(frame), line)
    return place


def innermost_module(error: BaseException) -> str:
    """Return the package of the function that raised an error; empty for one never raised."""
    modules = [_module_of(frame) for frame, _ in _lines(error)]
    return modules[-1] if modules else ""


class user_code:  # noqa: N801 (a function of a block, as contextlib.suppress)
    """Context manager that describes errors of user code in its block; others pass as they are.

    Args:
        what: Part that fails then, and when; empty for the name of the function.
        passes: Errors that pass although user code has raised them.

    Raises:
        UserCodeError: User code has raised an error.
    """

    # No generator: `contextlib` would take the error raised from a StopIteration for one of its
    # own, and sets the traceback of errors, which not all of them accept.

    def __init__(self, what: str = "", *, passes: tuple[type[Exception], ...] = ()) -> None:
        self.what = what
        self._passes = (UsageError, OutsideError, *passes)  # those of Yamame are one line already

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, self._passes) or not is_failure(error):
            return
        found = blame(error)
        if found is not None:
            raise UserCodeError.of(self.what or found.function, error) from error


def formatted(error: BaseException) -> str:
    """Return the traceback of an error, with those of its causes, as Python prints it."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failure:  # of an error that formats itself
        places = "".join(traceback.format_tb(error.__traceback__))
        reason = f"(the error cannot be formatted: {described(failure)})"
        return f"{places}{described(error)}\n{reason}\n"


def wants_traceback() -> bool:
    """Return whether tracebacks are to be printed, as `TRACEBACK_VARIABLE` sets it."""
    return os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then what it was raised from, or in the handling of."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        following = current.__cause__
        if following is None and not current.__suppress_context__:
            # An error that the caller of a whole program handles is a context as well.
            following = current.__context__
            if following is not None and not _was_handled_by(current, following):
                following = None
        current = following


def _was_handled_by(error: BaseException, context: BaseException) -> bool:
    """Return whether an error was raised in the function that handles another error."""
    handlers = [frame for frame, _ in _lines(context)][:1]
    return any(frame in handlers for frame, _ in _lines(error))


def _lines(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield frame and line of every entry of a traceback, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _lines_of_user(error: BaseException) -> list[tuple[FrameType, int]]:
    return [(frame, line) for frame, line in _lines(error) if _is_user_code(frame)]


def _is_user_code(frame: FrameType) -> bool:
    module = _module_of(frame)
    file = _file_of(frame)
    if module in _OURS or _is_recipe(frame):
        return False
    # A file of the user may have the name of a library that is not installed.
    if module in _LIBRARIES and (_is_installed(file) or not _is_local(file)):
        return False
    # Generated code, as of dataclasses, has the module of the class and no file.
    return frame.f_globals.get("__name__") == "__main__" or _is_user_file(file)


def _file_of(frame: FrameType) -> str:
    """Return the file of the code of a frame."""
    file = frame.f_code.co_filename
    # A class of the main script has lost its file on the way to a worker process, but not its line.
    return str(frame.f_globals.get("__file__", file)) if file == _SHIPPED else file


def _is_user_file(file: object) -> bool:
    """Return whether a file lies outside of the standard library."""
    if not isinstance(file, str) or file.startswith("<"):
        return False
    return _is_installed(file) or not file.startswith(f"{_STANDARD_LIBRARY}{os.sep}")


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def _is_local(file: str) -> bool:
    """Return whether a file lies below the working directory."""
    try:
        return file.startswith(os.getcwd())
    except FileNotFoundError:  # it was deleted
        return False


def _is_recipe(frame: FrameType) -> bool:
    return _folder(frame.f_code.co_filename) == str(recipes_dir())


@cache
def _folder(file: str) -> str:
    """Return the folder of a file, without links and dots."""
    return os.path.realpath(os.path.dirname(file))


def _module_of(frame: FrameType) -> str:
    """Return the name of the package, or of the module, of a frame."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _outermost_of_call(error: BaseException, innermost: FrameType) -> FrameType:
    """Return the first frame of user code of the call that ended in the innermost one."""
    outermost: FrameType | None = None
    for frame, _ in _lines(error):
        if not _is_user_code(frame):
            # Yamame, or a library, has called another function of the user.
            outermost = None
        elif outermost is None:
            outermost = frame
        if frame is innermost and outermost is not None:
            return outermost
    return innermost


def _name_of(frame: FrameType) -> str:
    """Return the dotted name of the function of a frame."""
    module = str(frame.f_globals.get("__name__"))
    name = frame.f_code.co_qualname
    return module if name == "<module>" else f"{module}.{name}"


def is_of_package(target: Any, package: str) -> bool:
    """Return whether a package defines a class or function, and has not only imported it.

    >>> from json import dumps
    >>> is_of_package(dumps, "json"), is_of_package(dumps, "yamame")
    (True, False)
    """
    if isinstance(target, partial):
        target = target.func
    home = str(getattr(target, "__module__", "")).partition(".")[0]
    return callable(target) and home == package
