"""The workflows: what may sign or publish runs no command and nothing that is not pinned."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / ".github" / "workflows"
JOB = re.compile(r"^  (?=\w[\w-]*:$)", re.MULTILINE)
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+")
WRITES = re.compile(r"^ +[\w-]+: write\b", re.MULTILINE)


def jobs_that_write(path: Path) -> list[str]:
    """The texts of the jobs of a workflow that may do more than read."""
    _, _, jobs = path.read_text().partition("\njobs:\n")
    return [job for job in JOB.split(jobs) if WRITES.search(job)]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs a checkout")
def test_jobs_that_may_publish_install_nothing() -> None:
    found = [job for path in sorted(FOLDER.glob("*.yml")) for job in jobs_that_write(path)]
    assert any("id-token: write" in job for job in found)
    for job in found:
        commands = re.findall(r"^ +(?:- )?run: .*", job, re.MULTILINE)
        used = re.findall(r"^ +(?:- )?uses: (.*)", job, re.MULTILINE)
        assert commands == [], job.partition("\n")[0]
        assert used
        assert all(PINNED.fullmatch(action) for action in used), used
