"""MuJoCo is asked for a picture only where it can draw one."""

import sys

import pytest
from yamame_envs.suites.display import require_display


@pytest.fixture(autouse=True)
def _headless(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_screen_it_says_what_to_set():
    with pytest.raises(RuntimeError, match="MUJOCO_GL=egl"):
        require_display()


@pytest.mark.parametrize(
    ("name", "value"), [("DISPLAY", ":0"), ("WAYLAND_DISPLAY", "a"), ("MUJOCO_GL", "egl")]
)
def test_a_screen_or_a_way_without_one_will_do(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    require_display()
