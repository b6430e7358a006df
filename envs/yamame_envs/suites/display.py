"""Check of the display before MuJoCo draws: a failed try would leave broken OpenGL objects."""

import os
import sys


def require_display() -> None:
    """Raise if MuJoCo has neither a screen nor a setting to draw without one.

    Raises:
        RuntimeError: Names the variable to set.
    """
    if sys.platform != "linux" or os.environ.get("MUJOCO_GL", "") in ("egl", "osmesa"):
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise RuntimeError("without a screen MuJoCo draws only if MUJOCO_GL=egl is set")
