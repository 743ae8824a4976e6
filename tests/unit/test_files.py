"""Files are written atomically; links, pipes and devices are not replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("before")
    with path.open() as reader:
        write_whole(path, "after")
        assert reader.read() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("before")
    link.symlink_to(there)
    write_whole(link, "after")
    assert link.is_symlink() and there.read_text() == "after"


def test_a_pipe_is_written_to_as_dev_stdout_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "text")
        assert pipe.is_fifo() and os.read(reader, 100) == b"text"
    finally:
        os.close(reader)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorwireError, match=r"cannot write .*none/record\.json: No such file"):
        write_whole(tmp_path / "none" / "record.json", "text")
    assert list(tmp_path.iterdir()) == []
