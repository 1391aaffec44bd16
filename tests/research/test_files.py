"""Files are replaced as a whole, or stay as they are."""

from pathlib import Path

import pytest

from paddle_ext.research.files import replacing


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
