"""The commands of the console script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from airflow_aiptraining import __version__
from airflow_aiptraining.cli import main

GOOD = """\
trainingInput:
  scaleTier: BASIC
  region: us-central1
  packageUris: [gs://some-bucket/trainer-0.1.tar.gz]
  pythonModule: trainer.task
  runtimeVersion: 2.11
  pythonVersion: 3.7
  args: [--epochs, 10]
"""
BAD = """\
labels: {team: ads}
trainingInput:
  workerCount: many
  scaleTeir: BASIC
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with a good and a bad config in it."""
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(GOOD)
    Path("bad.yaml").write_text(BAD)
    return tmp_path


def run(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:  # argparse's way
        return int(end.code or 0)


def cli(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airflow_aiptraining.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


class Output:
    """What a command wrote."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        captured = capsys.readouterr()
        self.out = captured.out
        self.lines = captured.out.splitlines()
        self.errors = captured.err.splitlines()


class TestValidate:
    def test_a_good_file_is_ok(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("validate", "good.yaml") == 0
        assert Output(capsys).lines == ["good.yaml: ok"]

    def test_each_problem_is_a_line_with_its_place(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("validate", "bad.yaml", "good.yaml") == 1
        output = Output(capsys)
        assert output.lines == [
            "bad.yaml:3: trainingInput.workerCount: a whole number is expected, not 'many'",
            "bad.yaml:4: trainingInput.scaleTeir: unknown field; did you mean 'scaleTier'?",
            "good.yaml: ok",
        ]

    def test_a_file_that_is_no_yaml_is_a_problem_like_another(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("broken.yaml").write_text("trainingInput:\n\targs: []\n")
        assert run("validate", "broken.yaml") == 1
        assert Output(capsys).lines[0].startswith("broken.yaml:2: not readable as YAML")

    def test_a_part_of_a_job_is_ok_unless_it_must_be_complete(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("part.yaml").write_text("trainingInput: {scaleTier: BASIC}\n")
        assert run("validate", "part.yaml") == 0
        assert run("validate", "--complete", "part.yaml") == 1
        assert "part.yaml: trainingInput.region: missing" in Output(capsys).out

    def test_a_complete_file_needs_no_job_id(self, folder: Path) -> None:
        assert run("validate", "--complete", "good.yaml") == 0

    @pytest.mark.parametrize(
        ("name", "reason"), [("missing.yaml", "No such file"), (".", "Is a directory")]
    )
    def test_an_unreadable_file_is_told_and_the_others_are_checked(
        self, folder: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
    ) -> None:
        assert run("validate", name, "good.yaml") == 2
        output = Output(capsys)
        assert output.lines == ["good.yaml: ok"]
        assert len(output.errors) == 1
        assert reason in output.errors[0]

    def test_notes_go_to_standard_error(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("id.yaml").write_text("jobId: x\ntrainingInput: {scaleTier: BASIC}\n")
        assert run("validate", "id.yaml") == 0
        errors = Output(capsys).errors
        assert errors == ["note: id.yaml:1: jobId is ignored; the task makes its job's id"]


class TestRender:
    def test_the_body_is_json_on_standard_output(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("render", "--config", "good.yaml", "census_1") == 0
        output = Output(capsys)
        assert json.loads(output.out) == {
            "jobId": "census_1",
            "trainingInput": {
                "scaleTier": "BASIC",
                "region": "us-central1",
                "packageUris": ["gs://some-bucket/trainer-0.1.tar.gz"],
                "pythonModule": "trainer.task",
                "runtimeVersion": "2.11",
                "pythonVersion": "3.7",
                "args": ["--epochs", "10"],
            },
        }
        assert output.errors == []

    def test_without_an_id_the_body_has_none(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("render", "--config", "good.yaml") == 0
        assert "jobId" not in json.loads(Output(capsys).out)

    def test_what_is_set_wins_over_the_file(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = [
            "scale_tier=CUSTOM",
            "trainingInput.masterType=n1-standard-4",
            "workerType=n1-standard-4",
            "workerCount=2",
            "labels.cost_center=ads",
            "args=[--lr, 0.10]",
            "masterConfig.acceleratorConfig={type: nvidia-tesla-t4, count: 1}",
            "jobDir=gs://some-bucket/x",
        ]
        flags = [part for setting in settings for part in ("--set", setting)]
        assert run("render", "--config", "good.yaml", *flags, "j") == 0
        body = json.loads(Output(capsys).out)
        assert body["labels"] == {"cost_center": "ads"}
        training_input = body["trainingInput"]
        assert training_input["args"] == ["--lr", "0.10"]
        assert training_input["workerCount"] == "2"
        assert training_input["scaleTier"] == "CUSTOM"
        assert training_input["masterConfig"] == {
            "acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "1"}
        }

    def test_origins_are_told_on_request(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ("--set", "region=europe-west1", "--origins")
        assert run("render", "--config", "good.yaml", *flags) == 0
        errors = Output(capsys).errors
        assert "# trainingInput.region: --set region" in errors
        assert "# trainingInput.args: good.yaml:8" in errors

    def test_problems_go_to_standard_error_and_nothing_is_printed(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("render", "--config", "bad.yaml", "--set", "region=", "j") == 1
        output = Output(capsys)
        assert output.out == ""
        assert any(
            line.startswith("bad.yaml:3: trainingInput.workerCount") for line in output.errors
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--set", "workerCount"),
            ("--set", "=3"),
            ("--set", "a..b=3"),
            ("--set", "args[0]=x"),
            ("--config", "missing.yaml"),
            ("--config", "a\0b"),
            ("--unknown",),
        ],
    )
    def test_wrong_usage_is_one_line_and_exit_code_2(
        self, folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
    ) -> None:
        assert run("render", *arguments) == 2
        assert len(Output(capsys).errors) == 1

    @pytest.mark.parametrize("value", ["[a", "{a: b", "[*x]", "[!!python/name:os.system ]"])
    def test_a_broken_list_is_a_problem_of_its_setting(
        self, folder: Path, capsys: pytest.CaptureFixture[str], value: str
    ) -> None:
        assert run("render", "--set", f"args={value}") == 1
        assert Output(capsys).errors[0].startswith("--set args:1: ")


class TestPackage:
    def test_the_archive_is_built_and_its_path_printed(self, folder: Path) -> None:
        trainer = folder / "src" / "trainer"
        trainer.mkdir(parents=True)
        (trainer / "__init__.py").touch()
        (trainer / "task.py").write_text("print('training')\n")
        done = cli("package", "src/trainer", "--out", "made", "--module-name", "trainer.task")
        assert done.returncode == 0, done.stderr
        archive = Path(done.stdout.strip())
        assert archive.parent == Path("made")
        assert archive.is_file()
        assert sorted(path.name for path in (folder / "src").iterdir()) == ["trainer"]

    def test_a_missing_module_is_one_line(self, folder: Path) -> None:
        trainer = folder / "src" / "trainer"
        trainer.mkdir(parents=True)
        (trainer / "__init__.py").touch()
        done = cli("package", "src/trainer", "--module-name", "trainer.tsak")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert "trainer.tsak" in done.stderr

    def test_a_missing_folder_is_one_line(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("package", "nowhere") == 1
        assert len(Output(capsys).errors) == 1


class TestServe:
    def test_it_answers_and_stops_in_good_order(self, folder: Path) -> None:
        command = [sys.executable, "-m", "airflow_aiptraining.cli", "serve"]
        process = subprocess.Popen(
            [*command, "--data", "data", "--ready-file", "ready.json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while not Path("ready.json").exists() and time.monotonic() < deadline:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            ready = json.loads(Path("ready.json").read_text())
            with urllib.request.urlopen(f"{ready['ml']}/v1/projects/p/jobs", timeout=30) as answer:
                assert json.load(answer) == {}
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=30)
            assert json.loads(out) == ready
            assert process.returncode == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("--host", "0.0.0.0"), 1),
            (("--token-file", "missing"), 1),
            (("--port", "70000"), 2),
            (("--port", "x"), 2),
            (("--capacity", "0"), 2),
        ],
    )
    def test_it_says_in_one_line_why_it_does_not_start(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        code: int,
    ) -> None:
        assert run("serve", "--data", "data", *arguments) == code
        assert len(Output(capsys).errors) == 1


class TestJobs:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("submit",), "NAME"),
            (("submit", "a", "b"), "unrecognized arguments: b"),
            (("submit", "a", "--async", "--stream-logs"), "not allowed with"),
            (("submit", "a", "--worker-accelerator", "type=x"), "type=TYPE,count=N"),
            (("submit", "a", "--labels", "team"), "KEY=VALUE"),
            (("submit", "a", "--staging-bucket", "bucket"), "gs://BUCKET"),
            (("submit", "a", "--use-chief-in-tf-config", "yes"), "true or false"),
            (("submit", "a", "--kms-keyring", "r"), "--kms-key is"),
            (("submit", "a", "--kms-key", "k", "--kms-keyring", "r"), "--kms-key is"),
            (("list", "--limit", "0"), "from 1"),
            (("list", "--url", "http://127.0.0.1:1", "--conn-id", "c"), "not allowed with"),
            (("describe", "a/b"), "no job's id"),
            (("logs", "a", "--task-name", 'x" OR "'), "master-replica-0"),
        ],
    )
    def test_wrong_usage_is_one_line_and_exit_code_2(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
    ) -> None:
        assert run("jobs", *arguments) == 2
        (line,) = Output(capsys).errors
        assert words in line

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--url", "127.0.0.1:80"), "--url is '127.0.0.1:80'"),
            (("--url", "http://127.0.0.1:1", "--token-file", "none"), "can't be read"),
            (("--url", "http://127.0.0.1:1", "--project", "a/b"), "'a/b' is no project id"),
            (("--conn-id", "c", "--token-file", "none"), "its own credentials"),
        ],
    )
    def test_a_place_that_is_none_is_one_line(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
    ) -> None:
        assert run("jobs", "list", *arguments) == 1
        (line,) = Output(capsys).errors
        assert words in line


class TestTheProgram:
    def test_it_tells_its_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--version") == 0
        assert Output(capsys).lines == [f"aiptraining {__version__}"]

    @pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("validate",)])
    def test_wrong_usage_is_one_line(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
    ) -> None:
        assert run(*arguments) == 2
        assert len(Output(capsys).errors) == 1

    def test_checking_a_config_loads_neither_airflow_nor_google(self, folder: Path) -> None:
        code = (
            "import sys\nfrom airflow_aiptraining.cli import main\n"
            "assert main(['validate', 'good.yaml']) == 0\n"
            "assert main(['render', '--config', 'good.yaml']) == 0\n"
            "heavy = ('airflow', 'googleapiclient', 'starlette', 'uvicorn', 'setuptools')\n"
            "print([n for n in sys.modules if n.split('.')[0] in heavy], file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "[]"

    def test_a_reader_that_has_gone_is_no_error(self, folder: Path) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "airflow_aiptraining.cli", "validate", "good.yaml"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
        os.close(writing)
        assert done.stderr == b""

    def test_names_that_the_terminal_cannot_show_are_no_error(self, folder: Path) -> None:
        os.rename(b"good.yaml", b"caf\xe9.yaml")  # noqa: PTH104 - bytes, not a path of text
        done = cli("validate", b"caf\xe9.yaml".decode("utf-8", "surrogateescape"))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "caf\\udce9.yaml: ok\n"
