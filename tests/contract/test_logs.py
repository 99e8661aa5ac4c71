"""Log entries of the embedded service, judged by Google's API client."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from embedded import Service
from googleapiclient.errors import HttpError
from training_client import PROJECT, TrainingClient, eventually

NANOSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


@pytest.fixture(scope="module")
def client(service: Service) -> TrainingClient:
    return TrainingClient(service)


@pytest.fixture(scope="module")
def chatty(client: TrainingClient) -> str:
    """Id of a finished job that printed 250 lines."""
    job_id = client.submit("for number in range(250): print('number', number)")
    assert client.wait(job_id)["state"] == "SUCCEEDED"
    return job_id


def numbers(entries: list[dict[str, Any]]) -> list[int]:
    texts = [entry["jsonPayload"]["message"] for entry in entries]
    return [int(text.split()[1]) for text in texts if text.startswith("number ")]


def test_stdout_is_info_and_stderr_is_error(client: TrainingClient) -> None:
    job_id = client.submit("import sys; print('to out'); print('to err', file=sys.stderr)")
    client.wait(job_id)

    found = {e["jsonPayload"]["message"]: e for e in client.entries(job_id)}

    assert found["to out"]["severity"] == "INFO"
    entry = found["to err"]
    assert entry["severity"] == entry["jsonPayload"]["levelname"] == "ERROR"
    assert entry["resource"] == {
        "type": "ml_job",
        "labels": {"job_id": job_id, "project_id": PROJECT, "task_name": "master-replica-0"},
    }
    assert entry["logName"] == f"projects/{PROJECT}/logs/master-replica-0"
    assert entry["labels"]["ml.googleapis.com/job_id"] == job_id
    assert entry["labels"]["ml.googleapis.com/task_name"] == "master-replica-0"
    assert NANOSECONDS.fullmatch(entry["timestamp"])
    assert isinstance(entry["jsonPayload"]["created"], float)


def test_the_services_own_lines_have_the_task_name_service(
    client: TrainingClient, chatty: str
) -> None:
    assert client.lines(chatty, "service") == [
        "Validating job requirements...",
        "Job creation request has been successfully validated.",
        f"Job {chatty} is queued.",
        "Job is running.",
        "Job completed successfully.",
    ]


def test_start_up_is_logged_as_by_the_real_runner(client: TrainingClient, chatty: str) -> None:
    lines = client.lines(chatty)
    (uri,) = client.get(chatty)["trainingInput"]["packageUris"]

    told = [
        "Running module trainer.task.",
        f"Downloading the package: {uri}",
        f"Installing the package: {uri}",
        "Running command: python3 -m trainer.task",
        "number 0",
        "number 249",
        "Module completed; cleaning up.",
        "Clean up finished.",
        "Task completed successfully.",
    ]
    assert [line for line in lines if line in told] == told


def test_entries_are_ordered_and_pages_join(client: TrainingClient, chatty: str) -> None:
    up = client.entries(chatty, pageSize=7)
    down = client.entries(chatty, pageSize=7, orderBy="timestamp desc")

    assert up == sorted(up, key=lambda entry: (entry["timestamp"], entry["insertId"]))
    assert down == up[::-1]
    assert len({(entry["timestamp"], entry["insertId"]) for entry in up}) == len(up)
    assert numbers(up) == list(range(250))


def test_filters_of_gcloud_find_what_is_new(client: TrainingClient, chatty: str) -> None:
    everything = client.entries(chatty)
    seen = next(e for e in everything if e["jsonPayload"]["message"] == "number 100")
    common = (
        '(resource.type="ml_job" OR resource.type="cloudml_job") AND '
        f'resource.labels.job_id="{chatty}" AND '
        '(resource.labels.task_name="master-replica-0" OR labels.task_name="master-replica-0")'
    )

    def ask(further: str) -> list[int]:
        return numbers(client.entries(chatty, filter=f"{common} AND {further}"))

    assert ask('timestamp>="1970-01-01T01:00:00.000000000Z"') == list(range(250))
    assert ask(f'timestamp>="{seen["timestamp"]}"') == list(range(100, 250))
    assert ask(f'timestamp<"{seen["timestamp"][:26]}Z"')[-1] <= 100
    again = (
        f'((timestamp="{seen["timestamp"]}" AND insertId>"{seen["insertId"]}") '
        f'OR timestamp>"{seen["timestamp"]}")'
    )
    assert ask(again) == list(range(101, 250))


def test_severity_and_text_can_be_asked_for(client: TrainingClient) -> None:
    job_id = client.submit("import sys; print('Fine'); print('Bad', file=sys.stderr)")
    client.wait(job_id)

    def texts(further: str) -> list[str]:
        return [e["jsonPayload"]["message"] for e in client.entries(job_id, further)]

    assert texts('severity>=ERROR resource.labels.task_name!="service"') == ["Bad"]
    assert texts('jsonPayload.message:"fin" AND severity=INFO')[0] == "Fine"
    assert texts('NOT severity<ERROR AND jsonPayload.message="Fine"') == []


def test_line_can_be_read_while_the_trainer_runs(client: TrainingClient) -> None:
    job_id = client.submit("import time; print('now', time.time()); time.sleep(600)")

    def seen() -> float | None:
        stamps = [line.split()[1] for line in client.lines(job_id) if line.startswith("now")]
        return time.time() - float(stamps[0]) if stamps else None

    late = eventually(seen)
    client.cancel(job_id)

    assert late < 0.5, late


def test_odd_output_arrives_readable(client: TrainingClient) -> None:
    job_id = client.submit(
        r"""
        import sys
        out = sys.stdout.buffer
        out.write(b"caf\xc3\xa9\n\xff\xfe bad\n\n")
        out.write(b"x" * 300_000 + b"\n")
        out.write(b"windows\r\n")
        out.write(b"no end")
        """
    )
    client.wait(job_id)
    lines = client.lines(job_id)
    start = lines.index("café")

    assert lines[start + 1 : start + 3] == ["�� bad", ""]
    long = lines[start + 3]
    assert long.startswith("x" * 100_000)
    assert long.endswith("[cut: this line had 300000 bytes]")
    assert len(long) < 100_100
    assert lines[start + 4 : start + 6] == ["windows", "no end"]


def test_trainer_that_prints_a_lot_is_logged_whole(client: TrainingClient) -> None:
    job_id = client.submit("for number in range(30_000): print('number', number, 'x' * 200)")
    assert client.wait(job_id)["state"] == "SUCCEEDED"

    newest = client.logging.entries().list(
        body={
            "resourceNames": [f"projects/{PROJECT}"],
            "filter": f'resource.labels.job_id="{job_id}"',
            "orderBy": "timestamp desc",
        }
    )
    before = time.monotonic()
    found = numbers(newest.execute()["entries"])
    print("newest page of 30,000 lines, s:", round(time.monotonic() - before, 3))

    assert found[0] == 29_999
    assert numbers(client.entries(job_id)) == list(range(30_000))


def test_pages_hold_while_lines_are_added(client: TrainingClient) -> None:
    job_id = client.submit(
        """
        import time
        for number in range(100_000):
            print("number", number)
            time.sleep(0.001)
        """
    )
    eventually(lambda: len(client.lines(job_id)) > 50)

    found = numbers(client.entries(job_id, pageSize=20, pages=15))
    client.cancel(job_id)

    assert found == list(range(len(found)))


def test_no_entries_is_an_empty_object(client: TrainingClient) -> None:
    body = {"resourceNames": ["projects/nobody"]}

    assert client.logging.entries().list(body=body).execute() == {}


@pytest.mark.parametrize(
    "change",
    [
        {"resourceNames": []},
        {"resourceNames": 5},
        {"resourceNames": ["projects/\ud800"]},
        {"projectIds": {"local": 1}},
        {"filter": 7},
        {"filter": 'timestamp>"0001-01-01T00:00:00+14:00"'},
        {"orderBy": ["timestamp"]},
        {"filter": "severity="},
        {"filter": 'timestamp>"yesterday"'},
        {"orderBy": "severity"},
        {"pageSize": 1001},
        {"pageToken": "x"},
        {"pageToken": base64.b64encode(b"[" * 50_000).decode()},
    ],
    ids=lambda change: ascii(change)[:60],
)
def test_bad_question_is_told(client: TrainingClient, change: dict[str, Any]) -> None:
    body = {"resourceNames": ["projects/local"]} | change

    with pytest.raises(HttpError) as caught:
        client.logging.entries().list(body=body).execute()

    error = json.loads(caught.value.content)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


def test_body_that_nests_too_deep_is_told(client: TrainingClient) -> None:
    request = urllib.request.Request(
        f"{client.service.logging}/v2/entries:list",
        b"[" * 200_000,
        {"Content-Type": "application/json"},
    )

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)

    error = json.load(caught.value)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


def test_time_long_ago_is_before_everything(client: TrainingClient, chatty: str) -> None:
    assert client.entries(chatty, 'timestamp<"0001-01-02T00:00:00Z"') == []
    assert client.entries(chatty, 'timestamp>"0001-01-02T00:00:00Z"') == client.entries(chatty)


def test_logs_of_many_readers_at_once_are_the_same(client: TrainingClient, chatty: str) -> None:
    found: list[list[int]] = []

    def read() -> None:
        own = TrainingClient(client.service)
        found.append(numbers(own.entries(chatty, pageSize=50)))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

    assert found == [list(range(250))] * 4
