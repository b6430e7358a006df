"""Paths that files name: regular files inside a folder are opened, everything else is refused."""

import os
import shutil
import stat

import pytest
from yamame.files.paths import (
    UnsafePathError,
    check_tree,
    create_file,
    inside,
    new_folder,
    open_regular,
    read_regular,
    typed_file,
)


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


@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 5000, "a\ud800", "sub/x.pt/y", "x\n/" * 2000])
def test_a_name_that_no_file_can_have_is_refused_in_one_line(home, name):
    (home / "sub/x.pt").write_bytes(b"")
    with pytest.raises(UnsafePathError, match="restore the file") as caught:
        inside(home, name)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_a_new_folder_is_whole_or_not_there(tmp_path):
    umask = os.umask(0o022)
    os.umask(umask)
    # What a killed process of the same number has left, and a name of nearly any length.
    left = tmp_path / f".a.{os.getpid()}.partial"
    left.mkdir()
    for name in ("a", "n" * 255):
        path = tmp_path / name
        with pytest.raises(ZeroDivisionError), new_folder(path) as folder:
            1 / 0  # noqa: B018
        with new_folder(path) as folder, new_folder(tmp_path / "other") as other:
            assert folder != other
            (folder / "x").write_text("x")
            assert not path.exists()
        assert (path / "x").read_text() == "x"
        assert stat.S_IMODE(path.stat().st_mode) == 0o777 & ~umask
        shutil.rmtree(tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == sorted([left.name, "a", "n" * 255])


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


def test_a_file_that_was_typed_may_be_a_link_within_its_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "step.pt").touch()
    (tmp_path / "other.pt").touch()
    (folder / "latest.pt").symlink_to("step.pt")
    (folder / "out.pt").symlink_to(tmp_path / "other.pt")
    (tmp_path / "linked").symlink_to(folder)
    for name in ("folder/step.pt", "folder/latest.pt", "linked/latest.pt"):
        assert typed_file(tmp_path / name) == folder / "step.pt"
    with pytest.raises(UnsafePathError, match="leads out of its folder"):
        typed_file(folder / "out.pt")


def test_a_file_to_be_written_has_one_name_and_one_to_be_read_is_on_the_disk(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    os.link(file, tmp_path / "second")
    assert read_regular(file) == b"mine"
    with pytest.raises(UnsafePathError, match="another name"):
        open_regular(file, os.O_WRONLY | os.O_APPEND, "ab")
    with pytest.raises(UnsafePathError, match="at most 3"):
        read_regular(file, most=3)
    with (tmp_path / "holes").open("wb") as holes:
        holes.truncate(2**40)
    with pytest.raises(UnsafePathError, match=str(2**40)):
        open_regular(tmp_path / "holes")


def test_a_new_file_replaces_what_lies_at_its_path_and_follows_nothing(tmp_path):
    (tmp_path / "thesis").write_text("ten years")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    with create_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "thesis").read_text() == "ten years"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()
