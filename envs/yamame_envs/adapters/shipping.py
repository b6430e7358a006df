"""Pickling for worker processes, which have neither the main script nor its registrations.

Functions and classes of the main script or of a notebook are pickled by value. Environments that
are registered with Gymnasium are registered in the worker process as well.
"""

import copy
import os
import pickle
import sys
import warnings
from contextlib import suppress
from functools import cached_property
from typing import Any

import gymnasium
from gymnasium.envs import registration
from yamame.system.messages import one_line

_PROTOCOL = 5


def pack(value: Any) -> tuple[bytes, bool]:
    """Pickle a value for a process that does not run the main script.

    Returns:
        The pickle; and whether the process must import the main script to load it.

    Raises:
        Exception: The value cannot be pickled. Objects raise almost anything.
    """
    try:
        return _pack_by_value(value), False
    except Exception:
        # What the main script refers to, such as a lock, may prevent that its classes are pickled.
        packed = pickle.dumps(value, _PROTOCOL)
        needs_main = b"__main__" in packed
        if needs_main and not _has_main_script():
            raise
        return packed, needs_main


def _pack_by_value(value: Any) -> bytes:
    # Gymnasium and TorchRL need this package. Workers only import it to load values that need it.
    import cloudpickle

    packed: bytes = cloudpickle.dumps(value, _PROTOCOL)
    return packed


def packing_error(value: Any) -> str | None:
    """Return the reason why `pack` cannot pickle a value; None if it can."""
    try:
        pack(value)
    except Exception as error:
        return one_line(error)
    return None


def _has_main_script() -> bool:
    """Return whether the main module can be imported, which that of a notebook cannot."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and os.path.isfile(file)


class _Creator:
    """Entry point of a registered environment that is loaded where it is used.

    Loading it with the registry may import much that a worker does not need.

    Args:
        entry_point: Class or function that makes the environment.
    """

    def __init__(self, entry_point: Any) -> None:
        self._packed = _pack_entry_point(entry_point)

    def __getstate__(self) -> dict[str, Any]:
        return {"_packed": self._packed}

    @cached_property
    def _entry_point(self) -> Any:
        return pickle.loads(self._packed)

    @property
    def metadata(self) -> Any:
        """Metadata of a class, such as its modes of rendering."""
        return self._entry_point.metadata

    def __call__(self, **settings: Any) -> Any:
        """Make the environment."""
        return self._entry_point(**settings)


def _pack_entry_point(entry_point: Any) -> bytes:
    import cloudpickle

    module = sys.modules.get(getattr(entry_point, "__module__", ""))
    if module is None or module.__name__ == "__main__" or _is_found(module.__name__):
        return _pack_by_value(entry_point)
    # Of a module that was made, not imported.
    cloudpickle.register_pickle_by_value(module)
    try:
        return _pack_by_value(entry_point)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(entry_point: str) -> bool:
    """Return whether a process without the main script can load ``module:name``."""
    module = entry_point.partition(":")[0]
    return module != "__main__" and _is_found(module)


def _is_found(module: str) -> bool:
    """Return whether a process with the same path finds a module."""
    # `importlib.util.find_spec` would return that of a module that exists in this process.
    top = module.partition(".")[0]
    for finder in sys.meta_path:
        with suppress(Exception):
            if finder.find_spec(top, None) is not None:
                return True
    return False


def pack_registration(spec: Any) -> bytes:
    """Pickle the registration of an environment, an ``EnvSpec``, for `register_packed`.

    Raises:
        Exception: It cannot be pickled.
    """
    shipped = copy.copy(spec)
    entry_point = spec.entry_point
    if isinstance(entry_point, str) and not _is_importable(entry_point):
        entry_point = registration.load_env_creator(entry_point)
    if callable(entry_point):
        shipped.entry_point = _Creator(entry_point)
    for wrapper in spec.additional_wrappers:
        # Gymnasium loads wrappers by their names alone.
        if not _is_importable(wrapper.entry_point):
            raise pickle.PicklingError(f"no module holds its wrapper {wrapper.entry_point}")
    if callable(spec.vector_entry_point):
        # Single environments are made.
        shipped.vector_entry_point = None
    return _pack_by_value(shipped)


def registration_error(spec: Any) -> str | None:
    """Return the reason why a registration cannot be pickled; None if it can."""
    try:
        pack_registration(spec)
    except Exception as error:
        return one_line(error)
    return None


def pack_registry() -> list[bytes]:
    """Pickle the environments that are registered with Gymnasium in this process.

    Those that cannot be pickled are left out: most are not those that are played.
    """
    registry = []
    for spec in gymnasium.registry.values():
        with suppress(Exception):
            registry.append(pack_registration(spec))
    return registry


def register_packed(registry: list[bytes]) -> None:
    """Register the environments of `pack_registry`, also in place of others of the same ids."""
    for packed in registry:
        spec = pickle.loads(packed)
        if gymnasium.registry.get(spec.id) != spec:
            gymnasium.registry[spec.id] = spec
    # The module of an environment may register it once more.
    warnings.filterwarnings("ignore", message=".*Overriding environment")
