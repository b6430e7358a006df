"""Paths that files name: regular files inside a folder are opened, everything else is refused."""

import os

import pytest
from yamame.files.paths import UnsafePathError, check_tree, inside, open_regular


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    (tmp_path / "outside").write_bytes(b"private")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "dangling").symlink_to(tmp_path / "new")
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    return folder


def test_a_regular_file_is_opened_and_created(home):
    with open_regular(home / "file") as file:
        assert file.read() == b"content"
    with open_regular(home / "new", os.O_WRONLY | os.O_CREAT, "wb") as file:
        file.write(b"x")
    assert (home / "new").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["link", "dangling", "pipe", "sub"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT])
def test_what_is_no_regular_file_is_refused(home, name, flags):
    mode = "rb" if flags == os.O_RDONLY else "r+b"
    with pytest.raises(UnsafePathError, match=name):
        open_regular(home / name, flags, mode)
    assert (home.parent / "outside").read_bytes() == b"private"
    assert not (home.parent / "new").exists()


def test_names_lie_inside_of_their_folder(home):
    assert inside(home, "sub/x.pt") == home / "sub" / "x.pt"
    for name in ["", ".", "..", "../outside", "sub/../../outside", "/etc/passwd", "a\0b", "link"]:
        with pytest.raises(UnsafePathError):
            inside(home, name)
    with pytest.raises(UnsafePathError):
        inside(home, "link/more")


@pytest.mark.parametrize("name", ["link", "dangling", "pipe"])
def test_a_tree_may_hold_folders_and_regular_files_alone(home, name):
    (home / "sub" / "deep").mkdir()
    (home / name).rename(home / "sub" / "deep" / name)
    others = {"link", "dangling", "pipe"} - {name}
    for other in others:
        (home / other).unlink()
    with pytest.raises(UnsafePathError, match=name):
        check_tree(home)
    check_tree(home, but_for=frozenset({"deep"}))
    (home / "sub" / "deep" / name).unlink()
    check_tree(home)


def test_a_folder_may_be_a_link_itself(home, tmp_path):
    for name in ("link", "dangling", "pipe"):
        (home / name).unlink()
    (tmp_path / "other").symlink_to(home)
    check_tree(tmp_path / "other")
    check_tree(tmp_path / "missing")
