"""Files are replaced atomically or left unchanged; only regular ones are read."""

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from paddle_ext.files import RefusedError, check_regular, open_regular, readable, replacing

SIZE = 200_000  # bytes, more than one write


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(interrupted: bool) -> None:
        with replacing(path) as new:
            new.write_text("new")
            if interrupted:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(interrupted=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write(interrupted=False)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_may_be_read_by_those_who_may_read_any(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    with replacing(tmp_path / "file") as new:
        new.write_text("new")
    assert (tmp_path / "file").stat().st_mode == plain.stat().st_mode


def test_threads_that_write_one_file(tmp_path: Path) -> None:
    """Complete or absent, whoever is last; no writer sees the file of another."""
    path = tmp_path / "file"
    failed: list[BaseException] = []

    def write(letter: str) -> None:
        try:
            for _ in range(30):
                with replacing(path) as new, new.open("w") as file:
                    for _ in range(20):
                        file.write(letter * (SIZE // 20))
                        file.flush()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    reads = 0
    while any(thread.is_alive() for thread in threads):
        reads += whole(path)
    assert failed == []
    assert reads
    assert whole(path)
    assert list(tmp_path.iterdir()) == [path]


def whole(path: Path) -> bool:
    """False if there is no file yet; fails on one that is not whole."""
    if not path.exists():
        return False
    text = path.read_text()
    assert len(text) == SIZE
    assert len(set(text)) == 1
    return True


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(ValueError, match="must be a regular file, got a pipe, a socket or a"):
            check_regular(tmp_path / name)
    with pytest.raises(ValueError, match="must be a file, got a folder"):
        check_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a file that could not be closed
def test_an_interrupt_never_closes_a_file_twice(tmp_path: Path) -> None:
    """Wherever it occurs: a second close would hit whatever file has the number by then."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    for last in range(1000):
        events = iter(range(last))

        def trace(frame: FrameType, event: str, got: object, events: Any = events) -> Any:
            del got  # or the traceback would keep the file open
            if next(events, None) is None:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            open_regular(path).close()
            return
        except KeyboardInterrupt:
            continue  # an OSError would be that of the second close
        finally:
            sys.settrace(before)
    raise AssertionError("it never came to an end")


def test_errors_of_libraries_become_one_sentence() -> None:
    for error in (RuntimeError("first\nsecond"), MemoryError("first")):
        message = r"^a\.bin must be whole, got one that cannot be read: first$"
        with pytest.raises(ValueError, match=message), readable(Path("a.bin"), "whole"):
            raise error
    for error in (FileNotFoundError("a.bin"), RefusedError("a.bin must be a file")):
        with pytest.raises(type(error)), readable(Path("a.bin"), "whole"):
            raise error
