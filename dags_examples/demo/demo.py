"""Three days of retraining on a real Airflow and the embedded training service: ``make demo``.

Nothing is simulated and nothing needs a cloud account: four Airflow processes, one service, three
training jobs on real data.  What the table at the end shows is read from Airflow's REST API, from
the service and from its storage; whatever isn't as it should be ends the demo with code 1 and the
reason.  All of it lives in one temporary directory, and is gone afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_api import AirflowApi
from cluster import AirflowCluster
from processes import Guard, processes_of, signals_held_off, signals_unwind, wait_for
from service import EmbeddedService

EXAMPLES = Path(__file__).resolve().parent.parent
BUCKET = "demo-bucket"
DAYS = 3
TRAIN_DAG, DEPLOY_DAG = "retrain_daily", "deploy_breast_cancer"
#: Seconds that the three runs may take.  Generous: the first job installs scikit-learn.
RUNS_TIMEOUT = 420


class DemoError(RuntimeError):
    """Something isn't as it should be."""


@dataclass(frozen=True)
class Trained:
    """One date, as Airflow, the service and the storage tell it."""

    date: str
    job_id: str
    state: str
    accuracy: float
    model_uri: str


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    keep = parser.parse_args().keep
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {text}", flush=True)

    home = Path(tempfile.mkdtemp(prefix="aiptraining-demo-"))
    guard = Guard(home, remove=True)
    code = 1
    with signals_unwind():
        try:
            code = run(home, keep, say)
        except DemoError as error:
            say(f"The demo failed: {error}")
        except (RuntimeError, TimeoutError) as error:
            say(f"The demo failed: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            say("Interrupted.")
            code = 130
        except SystemExit as ending:
            say("Ended from outside.")
            code = int(ending.code or 1)
        finally:
            with signals_held_off():
                shutil.rmtree(home, ignore_errors=True)
                for process in processes_of(home):
                    say(f"The demo failed: process {process.pid} was left running")
                    code = code or 1
                guard.close()
    say("All stopped and removed." if code == 0 else f"Stopped and removed; exit code {code}.")
    return code


def run(home: Path, keep: bool, say: Callable[[str], None]) -> int:
    """Start everything, train, show, and end everything again."""
    say(f"Starting the embedded training service (everything is in {home})")
    with EmbeddedService(data=home / "service") as service:
        service.storage_client().create_bucket(BUCKET)
        say(f"The service is at {service.url}; starting Airflow")
        connection = json.dumps(service.connection(BUCKET))
        with AirflowCluster(
            [EXAMPLES],
            home=home / "airflow",
            env={"AIRFLOW_CONN_AIPTRAINING_DEFAULT": connection},
        ) as airflow:
            say(f"Airflow is at {airflow.base_url}")
            try:
                return show(airflow, service, keep, say)
            finally:
                say("Stopping")


def show(
    airflow: AirflowCluster, service: EmbeddedService, keep: bool, say: Callable[[str], None]
) -> int:
    """Train, check and print; with ``keep``, stay until Ctrl-C whether it went well or not."""
    try:
        backfill(airflow, service, say)
        rows = check(airflow.api, service)
    except (RuntimeError, TimeoutError) as error:
        if not keep:
            raise
        say(f"The demo failed: {error}")
        stay(airflow, say)
        return 1
    say(f"Trained, gated and exported; {rows[-1].job_id} is deployed:\n")
    print_table(rows)
    print_where_to_look(keep)
    if keep:
        stay(airflow, say)
    return 0


def backfill(airflow: AirflowCluster, service: EmbeddedService, say: Callable[[str], None]) -> None:
    """Backfill the last days and wait until all of them, and the deployment, are done."""
    api = airflow.api
    api.wait_for_dags([TRAIN_DAG, DEPLOY_DAG])
    today = datetime.now(UTC).date()
    dates = ["--from-date", str(today - timedelta(DAYS - 1)), "--to-date", str(today)]
    command = ["backfill", "create", "--dag-id", TRAIN_DAG, *dates]
    say(f"airflow {' '.join(command)}")
    # Before the DAG is unpaused: the scheduler would make today's run by itself.
    airflow.run_cli(command)
    for dag_id in (DEPLOY_DAG, TRAIN_DAG):
        api.unpause(dag_id)
    shown: dict[tuple[str, str], str | None] = {}

    def done() -> bool:
        runs = backfilled(api)
        for run in runs:
            for task_id, state in api.task_states(TRAIN_DAG, run["dag_run_id"]).items():
                key = (run["logical_date"][:10], task_id)
                if state in ("running", "deferred", "success", "failed", "up_for_retry", "skipped"):
                    if shown.get(key) != state:
                        say(f"  {key[0]} {task_id}: {state}")
                    shown[key] = state
                if state in ("failed", "up_for_retry"):
                    raise DemoError(
                        f"task {task_id} of {key[0]} is {state}.  Its log:\n"
                        + api.log(TRAIN_DAG, run["dag_run_id"], task_id)
                    )
        return bool(runs) and all(run["state"] == "success" for run in runs)

    wait_for(
        done,
        timeout=RUNS_TIMEOUT,
        interval=1.0,
        what="the three runs",
        components=[service.component, *airflow.components.values()],
    )


def backfilled(api: AirflowApi) -> list[dict[str, Any]]:
    """Return the runs of the backfill, by date."""
    runs = [run for run in api.runs(TRAIN_DAG) if run["run_type"] == "backfill"]
    return sorted(runs, key=lambda run: str(run["logical_date"]))


def check(api: AirflowApi, service: EmbeddedService) -> list[Trained]:
    """Return what was made, for each date.

    :raises DemoError: Airflow, the service and the storage don't agree, or something is missing.
    """
    bucket = service.storage_client().bucket(BUCKET)

    def stored(uri: str) -> dict[str, Any]:
        blob = bucket.get_blob(uri.removeprefix(f"gs://{BUCKET}/"))
        if blob is None:
            raise DemoError(f"{uri} isn't there")
        return dict(json.loads(blob.download_as_bytes()))

    states = {job["jobId"]: job["state"] for job in service.jobs()}
    rows = []
    for run in backfilled(api):
        run_id, date = run["dag_run_id"], run["logical_date"][:10]
        export = api.xcom(TRAIN_DAG, run_id, "export")
        job_id = api.xcom(TRAIN_DAG, run_id, "train")["job_id"]
        manifest = stored(export["manifest_uri"])
        if not export["job_id"] == manifest["job_id"] == job_id:
            raise DemoError(f"{date}: the exported model isn't that of job {job_id}: {manifest}")
        names = [str(file["name"]) for file in manifest["files"]]
        absent = [name for name in names if not _is_there(bucket, export["model_uri"], name)]
        if "model.joblib" not in names or absent:
            raise DemoError(f"{date}: of {names} in {export['model_uri']}, {absent} are missing")
        accuracy = (manifest.get("metrics") or {}).get("accuracy")
        if not isinstance(accuracy, float):
            raise DemoError(f"{date}: no accuracy in {export['manifest_uri']}: {manifest}")
        state = states.get(job_id, "unknown to the service")
        if state != "SUCCEEDED":
            raise DemoError(f"{date}: job {job_id} is {state}")
        rows.append(Trained(date, job_id, state, accuracy, export["model_uri"]))
    # Second attempts would be named after the first.
    made = [name for name in states if name.startswith(tuple(row.job_id for row in rows))]
    if len(rows) != DAYS or len(made) != DAYS:
        raise DemoError(f"{DAYS} jobs are wanted; Airflow has {len(rows)}, the service {states}")

    newest = rows[-1].job_id
    latest = stored(f"gs://{BUCKET}/models/breast_cancer/latest.json")["job_id"]
    if latest != newest:
        raise DemoError(f"the latest model is that of {latest}, not of {newest}")

    def deployed() -> bool:
        blob = bucket.get_blob("deployed/breast_cancer.json")
        if blob is None or json.loads(blob.download_as_bytes())["job_id"] != newest:
            return False
        return all(run["state"] == "success" for run in api.runs(DEPLOY_DAG))

    wait_for(
        deployed,
        timeout=90,
        what=lambda: f"{newest} to be deployed; runs of {DEPLOY_DAG}: {api.runs(DEPLOY_DAG)}",
    )
    return rows


def _is_there(bucket: Any, model_uri: str, name: str) -> bool:
    prefix = model_uri.removeprefix(f"gs://{BUCKET}/").rstrip("/")
    return bool(bucket.blob(f"{prefix}/{name}").exists())


def print_table(rows: list[Trained]) -> None:
    """Print one line a date."""
    header = ("date", "job id", "state", "accuracy", "exported model")
    lines = [header] + [
        (row.date, row.job_id, row.state, f"{row.accuracy:.4f}", row.model_uri) for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def print_where_to_look(keep: bool) -> None:
    """Say where to go on from here."""
    print("\n  The DAGs:     dags_examples/retrain_daily.py (and its neighbours)")
    print("  The trainer:  dags_examples/breast_cancer/trainer/task.py, config.yaml beside it")
    if not keep:
        print("  Look around:  make ui   (the same, left running, with Airflow's pages)")
    print(flush=True)


def stay(airflow: AirflowCluster, say: Callable[[str], None]) -> None:
    """Leave everything running until Ctrl-C."""
    say(f"Open {airflow.base_url} and log in as {airflow.user} with {airflow.password}")
    say("Ctrl-C stops and removes everything.")
    stopped = False

    def on_interrupt(_signum: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        while not stopped:
            for component in airflow.components.values():
                component.check()
            time.sleep(0.3)
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
