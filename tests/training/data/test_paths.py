import os
from pathlib import Path

import pytest

from calibrant.errors import InvalidInput
from calibrant.training.data.pictures import FolderPictures, folders_in, pictures_below


@pytest.fixture
def tree(tmp_path):
    for name in ("b/2.png", "b/10.JPG", "b/.hidden.png", "b/notes.txt", "b/x.png/1.gif", ".git/1.png", "a/é.webp"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "tree"


def test_lists_pictures_in_the_order_of_their_parts(tree):
    (tree / "b-1").mkdir()
    (tree / "b-1" / "0.png").write_bytes(b"")
    # "b-1" sorts before "b/" as text: the order is that of the parts.
    assert list(pictures_below(str(tree))) == ["a/é.webp", "b/10.JPG", "b/2.png", "b/x.png/1.gif", "b-1/0.png"]
    assert folders_in(tree) == ["a", "b", "b-1"]


def test_links_to_files_are_followed_and_links_to_folders_are_not(tree):
    (tree / "a/link.png").symlink_to(tree / "b/2.png")
    (tree / "a/round").symlink_to(tree)
    (tree / "a/dangling.png").symlink_to(tree / "nothing")
    assert list(pictures_below(str(tree / "a"))) == ["link.png", "é.webp"]


def test_no_file_is_looked_at_on_its_own(tree, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a file was opened or looked at")

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    assert len(list(pictures_below(str(tree)))) == 4


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"folder must be readable, got .*none\. No such file or directory\."):
        list(pictures_below(str(tmp_path / "none")))


def test_paths_come_back_as_they_were():
    names = ["a/1.png", "", "é/ü.jpg", "b/2.png"]
    pictures = FolderPictures(Path("photos"), names)
    assert [pictures.path(row) for row in range(len(pictures))] == names
    assert pictures[3].place == "photos/b/2.png"
    assert len(FolderPictures(Path("photos"), [])) == 0
