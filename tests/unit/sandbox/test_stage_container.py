"""What of a stage's container is published, and how its process ends. No engine is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.sandbox.job import End, Ended
from ratchet.sandbox.stage_container import Wish, _publish, _refuse, _refuse_links


def wish(provenance: str = "") -> Wish:
    return Wish("copy", [], "", [], [], [], provenance, "cpu")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def pipe_in_a_folder(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "pipe")


def link(path: Path) -> None:
    path.symlink_to("/")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [pipe, pipe_in_a_folder, link])
def test_publish_output_that_is_no_plain_file_is_refused_and_never_read(make, tmp_path: Path) -> None:
    made, place = tmp_path / "made", tmp_path / "out"
    make(made)
    with pytest.raises(InputError, match=f"copy: its output {place} holds a link or a pipe"):
        _publish(made, place, wish(provenance=str(place)))
    assert not place.exists()


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Ended(End.STOPPED, 0, 1.0), 130),
        (Ended(End.STOPPED, 143, 1.0), 143),
        (Ended(End.CRASHED, 7, 1.0), 7),
    ],
)
def test_stage_that_did_not_end_well_never_ends_with_zero(ended: Ended, code: int) -> None:
    with pytest.raises(SystemExit) as caught:
        _refuse("copy", ended)
    assert caught.value.code == code


def test_input_that_is_a_link_is_mounted_and_one_that_holds_a_link_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/file").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "cache/file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/own").touch()
    (tmp_path / "folder/inside").symlink_to("own")
    _refuse_links(tmp_path / "linked", "copy")
    _refuse_links(tmp_path / "folder", "copy")
    (tmp_path / "folder/outside").symlink_to(tmp_path / "cache/file")
    with pytest.raises(InputError, match="folder/outside is a link out of it"):
        _refuse_links(tmp_path / "folder", "copy")
