"""Whether MuJoCo can draw here. Asking it where it cannot leaves broken OpenGL objects behind."""

import os
import sys


def require_display() -> None:
    """Passes where MuJoCo has a screen, or was told how to draw without one.

    Raises:
        RuntimeError: Says what to set.
    """
    if sys.platform != "linux" or os.environ.get("MUJOCO_GL", "") in ("egl", "osmesa"):
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise RuntimeError("without a screen MuJoCo draws only if MUJOCO_GL=egl is set")
