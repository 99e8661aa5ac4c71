"""The wrapper as it is started by the service: one process, its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_aiptraining.local import replica_wrapper
from airflow_aiptraining.local.log_store import LogFile


def spec(folder: Path, code: str, **changes: Any) -> Path:
    path = folder / "spec.json"
    document = {
        "argv": [sys.executable, "-S", "-E", "-u", "-c", code],
        "env": {},
        "cwd": str(folder),
        "output_limit": 1_000_000,
        "line_limit": 1_000,
    }
    path.write_text(json.dumps(document | changes))
    return path


def run(path: Path) -> int:
    command = [sys.executable, "-S", "-E", replica_wrapper.__file__, str(path)]
    return subprocess.run(command, timeout=60, start_new_session=True).returncode


def texts(folder: Path) -> list[str]:
    return [record.text for record in LogFile(folder / "output.log", "f").forward()]


def exit_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "exit.json").read_text())
    return document


def test_exit_code_and_last_stderr_lines_are_written(tmp_path: Path) -> None:
    assert run(spec(tmp_path, "import sys; print('bad', file=sys.stderr); sys.exit(5)")) == 0

    result = exit_of(tmp_path)
    assert (result["returncode"], result["stderr_tail"], result["error"]) == (5, ["bad"], None)
    assert result["started"] <= result["ended"]


def test_signal_is_a_negative_code(tmp_path: Path) -> None:
    run(spec(tmp_path, "import os; os.abort()"))

    assert exit_of(tmp_path)["returncode"] == -6


def test_spec_is_run_once(tmp_path: Path) -> None:
    path = spec(tmp_path, "open('runs', 'a').write('run ')")

    codes = [run(path), run(path)]

    assert codes == [0, 3]
    assert (tmp_path / "runs").read_text() == "run "


def test_missing_program_is_told(tmp_path: Path) -> None:
    run(spec(tmp_path, "", argv=["/no/such/program"]))

    assert "/no/such/program could not be started" in exit_of(tmp_path)["error"]


@pytest.mark.parametrize(
    "change", [{"argv": [sys.executable, "a\0b"]}, {"env": {"A": "a\0b"}}], ids=["argv", "env"]
)
def test_what_no_process_can_be_given_is_told(tmp_path: Path, change: dict[str, Any]) -> None:
    assert run(spec(tmp_path, "", **change)) == 0

    result = exit_of(tmp_path)
    assert result["returncode"] is None
    assert result["error"] == f"{sys.executable} could not be started: embedded null byte"


def test_output_is_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    code = "for n in range(5000): print('line', n, 'x' * 50)\nraise ValueError('the end')"
    run(spec(tmp_path, code, output_limit=20_000))

    lines = texts(tmp_path)
    assert (tmp_path / "output.log").stat().st_size < 30_000
    assert exit_of(tmp_path)["returncode"] == 1
    assert lines[0].startswith("line 0 ")
    assert lines[-1] == "ValueError: the end"
    assert sum("isn't kept" in line for line in lines) == 1
    (left_out,) = [line for line in lines if "were left out here" in line]
    # The 5,000 lines, three of traceback or more, the two notices: none is unaccounted for.
    assert int(left_out.split()[0]) + len(lines) - 2 >= 5_003


def test_streams_keep_their_order_when_each_waits_for_the_other(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "size = lambda: os.path.exists('output.log') and os.path.getsize('output.log')\n"
        "for n in range(20):\n"
        "    before, until = size(), time.monotonic() + 20\n"
        "    print(n, file=sys.stdout if n % 2 else sys.stderr, flush=True)\n"
        "    while size() == before and time.monotonic() < until:\n"
        "        time.sleep(0.001)\n"
    )
    run(spec(tmp_path, code))

    assert texts(tmp_path) == [str(number) for number in range(20)]


@pytest.mark.parametrize("length", [999, 1000, 1001, 100_000])
def test_long_lines_are_cut(tmp_path: Path, length: int) -> None:
    run(spec(tmp_path, f"print('x' * {length})"))

    (line,) = texts(tmp_path)
    if length <= 1000:
        assert line == "x" * length
    else:
        assert line == "x" * 1000 + f" … [cut: this line had {length} bytes]"
