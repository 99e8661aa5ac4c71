"""Figures of this package, one JSON object a line: ``make bench``.

Each figure is a median over whole processes or jobs of one run, and is told together with what it
is compared to, measured in turns with it in the same run: a ratio means more than the seconds of
one machine on one day.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from embedded import Service, start_service  # noqa: E402 - the tests' own modules
from training_client import TrainingClient, eventually, wheel  # noqa: E402

PROCESSES = 5
JOBS = 12
#: What DAG files import of this package.
OURS = (
    "operators.cancel",
    "operators.export",
    "operators.package",
    "operators.reap",
    "operators.training_job",
    "sensors.model_export",
    "sensors.training_job",
    "triggers.training_job",
    "params",
)
GOOGLES = "airflow.providers.google.cloud.operators.vertex_ai.custom_job"
#: Milliseconds that a DAG file may take longer to import for this package; of CPU, so that other
#: programs on the machine don't count.
IMPORT_BUDGET = 50.0

_IMPORT = """
import sys, time
start = time.process_time()
import airflow.sdk
middle = time.process_time()
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
print(middle - start, time.process_time() - middle)
"""
_PACKAGE = """
import sys, time
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
client = Client(
    project="local",
    credentials=AnonymousCredentials(),
    client_options=ClientOptions(api_endpoint=sys.argv[1]),
)
start = time.perf_counter()
from airflow_aiptraining.packaging import package_trainer
trainer = package_trainer(
    sys.argv[2], staging=sys.argv[3], client=client, module_name="trainer.task"
)
print(time.perf_counter() - start, int(trainer.built), int(trainer.uploaded))
"""


def main() -> None:
    """Measure everything."""
    with tempfile.TemporaryDirectory(prefix="aiptraining-bench-") as name:
        home = Path(name)
        bench_imports(home)
        service = start_service(home / "service")
        try:
            client = TrainingClient(service)
            bench_start(client)
            bench_packaging(client, service)
        finally:
            service.stop()
    # About five minutes, in processes of its own.
    watch = Path(__file__).with_name("bench_watch.py")
    subprocess.run([sys.executable, str(watch)], check=True)


def bench_imports(home: Path) -> None:
    """Print what the import of a DAG file's modules costs over that of ``airflow.sdk``."""
    cases = {"ours": [f"airflow_aiptraining.{name}" for name in OURS], "googles": [GOOGLES]}
    times: dict[str, list[float]] = {"airflow.sdk": [], "ours": [], "googles": []}
    for number in range(PROCESSES + 1):
        for case, modules in cases.items():
            base, over = run_python(_IMPORT, modules, home)
            if number:  # the first round writes the bytecode
                times["airflow.sdk"].append(1e3 * base)
                times[case].append(1e3 * over)
    ours, googles = (statistics.median(times[case]) for case in cases)
    tell(
        "import of operators, sensors, triggers and params over airflow.sdk",
        unit="ms of CPU",
        median=ours,
        all_values=times["ours"],
        airflow_sdk=round(statistics.median(times["airflow.sdk"])),
        googles_vertex_operator=round(googles),
        googles_to_ours=round(googles / ours, 1),
        budget=IMPORT_BUDGET,
        within_budget=ours <= IMPORT_BUDGET,
    )


def bench_start(client: TrainingClient) -> None:
    """Print how long a job takes from its creation to the trainer's first line."""
    uri = client.upload(wheel("import sys\nprint('first line', flush=True)\n"))
    seconds = [start_latency(client, uri) for _ in range(JOBS + 1)]
    new, known = seconds[0], seconds[1:]
    tell(
        "start of a job whose packages were seen before: create to the trainer's first line",
        unit="ms",
        median=1e3 * statistics.median(known),
        all_values=[1e3 * value for value in known],
        packages_not_seen_before=round(1e3 * new),
        not_seen_to_seen=round(new / statistics.median(known), 1),
    )


def start_latency(client: TrainingClient, uri: str) -> float:
    """Return the seconds from sending a job to the first line that its trainer wrote."""
    body = client.body(uri)
    start = time.time()
    job_id = client.create(body)
    client.wait(job_id)

    def first_line() -> dict[str, Any] | None:
        entries = client.entries(job_id)
        return next((e for e in entries if e["jsonPayload"]["message"] == "first line"), None)

    written = eventually(first_line)["timestamp"]
    return datetime.fromisoformat(written).timestamp() - start


def bench_packaging(client: TrainingClient, service: Service) -> None:
    """Print how long it takes to package a trainer for the first time, and unchanged."""
    trainer = str(ROOT / "dags_examples" / "breast_cancer" / "trainer")
    first, unchanged = [], []
    for number in range(PROCESSES):
        staging = f"gs://{client.bucket}/bench{number}"
        for seconds, expected in ((first, (1, 1)), (unchanged, (0, 0))):
            took, *did = run_python(_PACKAGE, [service.storage, trainer, staging])
            assert tuple(did) == expected, f"built, uploaded: {did}, not {expected}"
            seconds.append(1e3 * took)
    tell(
        "packaging of an unchanged trainer: nothing is built, nothing uploaded",
        unit="ms",
        median=statistics.median(unchanged),
        all_values=unchanged,
        first_time=round(statistics.median(first)),
        first_to_unchanged=round(statistics.median(first) / statistics.median(unchanged), 1),
    )


def run_python(code: str, arguments: Sequence[str], home: Path | None = None) -> list[float]:
    """Run code in a process of its own; return the numbers that it printed last."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    if home is not None:
        env["AIRFLOW_HOME"] = str(home / "airflow")
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        cwd=ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        timeout=300,
    )
    return [float(word) for word in ended.stdout.splitlines()[-1].split()]


def tell(
    figure: str, *, unit: str, median: float, all_values: Sequence[float], **more: Any
) -> None:
    """Print one figure."""
    rounded = [round(value, 1) for value in sorted(all_values)]
    line = {"figure": figure, "unit": unit, "median": round(median, 1), "n": len(rounded)}
    print(json.dumps({**line, **more, "values": rounded}), flush=True)


if __name__ == "__main__":
    main()
