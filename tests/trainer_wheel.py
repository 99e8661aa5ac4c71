"""A ready trainer, for tests that submit their jobs to the service itself."""

from __future__ import annotations

import io
import zipfile
from typing import Any

WHEEL = "trainer-1.0-py3-none-any.whl"
_TASK = """
import argparse, os, sys, time, urllib.parse, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--seconds", type=float)
parser.add_argument("--code", type=int)
arguments = parser.parse_args()
time.sleep(arguments.seconds)
if arguments.code == 0:
    bucket, _, folder = arguments.job_dir.removeprefix("gs://").partition("/")
    name = urllib.parse.quote(f"{folder.rstrip('/')}/model.joblib", safe="")
    host = os.environ["STORAGE_EMULATOR_HOST"]
    url = f"{host}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(url, b"model", {"Content-Type": "text/plain"}))
sys.exit(arguments.code)
"""


def wheel() -> bytes:
    """Return an archive whose trainer works, writes a model into its job_dir and ends."""
    info = "trainer-1.0.dist-info"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("trainer/__init__.py", "")
        archive.writestr("trainer/task.py", _TASK)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()


def job(bucket: str, job_id: str, *, seconds: float = 0.0, code: int = 0) -> dict[str, Any]:
    """Return a Job for ``jobs.create``; :func:`wheel` lies in the bucket as ``WHEEL``.

    :param seconds: that it works.
    :param code: that it ends with; 0 writes a model.
    """
    training_input = {
        "region": "us-central1",
        "scaleTier": "BASIC",
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
        "packageUris": [f"gs://{bucket}/{WHEEL}"],
        "pythonModule": "trainer.task",
        "args": [f"--seconds={seconds}", f"--code={code}"],
        "jobDir": f"gs://{bucket}/{job_id}",
    }
    return {"jobId": job_id, "trainingInput": training_input}
