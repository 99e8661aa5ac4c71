"""Five kills at random on a cluster of their own, and every piece of work is trained once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).with_name("chaos.py")


@pytest.mark.timeout(900)
def test_five_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--tasks", "8", "--kills", "5", "--pauses", "2", "5", "--stretch", "3"]
    options += ["--limit", "300", "--report", str(report)]

    # Its first lines name the seed; a broken rule is told with all that there is to know of it.
    ended = subprocess.run(
        [sys.executable, str(CHAOS), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    assert len(json.loads(report.read_text())["kill_list"]) == 5, ended.stdout
