"""Submit tiny trainers to a service with Google's own clients, and wait for what they do."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import textwrap
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from embedded import Service
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from googleapiclient import discovery

PROJECT = "local"
SECONDS = 60.0


def wheel(task: str, name: str = "trainer", requires: str = "") -> bytes:
    """Return a wheel with one module, ``<name>.task``; installing it builds nothing."""
    info = f"{name}-0.1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n"
    files = {
        f"{name}/__init__.py": "",
        f"{name}/task.py": textwrap.dedent(task),
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "".join(record) + f"{info}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return buffer.getvalue()


def sdist(files: Mapping[str, str], root: str = "trainer-0.1") -> bytes:
    """Return a source archive of *files*."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            data = textwrap.dedent(text).encode()
            member = tarfile.TarInfo(f"{root}/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


T = TypeVar("T")


def eventually(what: Callable[[], T | None], seconds: float = SECONDS) -> T:
    """Return the first true value of *what*.

    :raises AssertionError: none came in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError(f"This did not come true within {seconds} s: {what}")


@dataclass
class TrainingClient:
    """Google's API client and storage client, both of one service."""

    service: Service
    bucket: str = field(default_factory=lambda: f"bucket-{uuid.uuid4().hex[:12]}")

    def __post_init__(self) -> None:
        self.connect()
        self.storage.create_bucket(self.bucket)

    def connect(self) -> None:
        """Connect, also anew: a service that was killed has taken its connections with it."""
        anonymous = AnonymousCredentials()
        self.ml = discovery.build(
            "ml",
            "v1",
            credentials=anonymous,
            client_options={"api_endpoint": self.service.ml},
            static_discovery=True,
            cache_discovery=False,
        )
        self.logging = discovery.build(
            "logging",
            "v2",
            credentials=anonymous,
            client_options={"api_endpoint": self.service.logging},
            static_discovery=True,
            cache_discovery=False,
        )
        self.storage = storage.Client(
            project=PROJECT,
            credentials=anonymous,
            client_options=ClientOptions(api_endpoint=self.service.storage),
        )

    @property
    def jobs(self) -> Any:
        """Return ``projects.jobs`` of the API."""
        return self.ml.projects().jobs()

    def upload(self, archive: bytes, name: str = "trainer-0.1-py3-none-any.whl") -> str:
        """Store an archive and return its URI."""
        path = f"packages/{hashlib.sha256(archive).hexdigest()[:16]}/{name}"
        self.storage.bucket(self.bucket).blob(path).upload_from_string(archive)
        return f"gs://{self.bucket}/{path}"

    def body(self, *uris: str, job_id: str = "", **further: Any) -> dict[str, Any]:
        """Return a job that runs ``trainer.task``.

        :param further: fields of ``trainingInput``, over the defaults; None takes one away.
        """
        training_input = {
            "packageUris": list(uris),
            "pythonModule": "trainer.task",
            "region": "us-central1",
            "runtimeVersion": "2.11",
            "pythonVersion": "3.7",
            "scaleTier": "BASIC",
        } | further
        return {
            "jobId": job_id or f"job_{uuid.uuid4().hex[:16]}",
            "trainingInput": {k: v for k, v in training_input.items() if v is not None},
        }

    def create(self, body: Mapping[str, Any]) -> str:
        """Create a job and return its id."""
        made = self.jobs.create(parent=f"projects/{PROJECT}", body=body).execute()
        return str(made["jobId"])

    def submit(self, task: str, *args: str, **further: Any) -> str:
        """Create a job that runs *task*, the source of a module, and return its id."""
        return self.create(self.body(self.upload(wheel(task)), args=list(args), **further))

    def get(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        job: dict[str, Any] = self.jobs.get(name=self.name(job_id)).execute()
        return job

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel a job and return the answer."""
        answer: dict[str, Any] = self.jobs.cancel(name=self.name(job_id), body={}).execute()
        return answer

    def name(self, job_id: str) -> str:
        """Return a job's resource name."""
        return f"projects/{PROJECT}/jobs/{job_id}"

    def wait(self, job_id: str, *states: str) -> dict[str, Any]:
        """Wait until a job has ended, or is in one of *states*."""

        def done() -> dict[str, Any] | None:
            job = self.get(job_id)
            return job if (job["state"] in states if states else "endTime" in job) else None

        return eventually(done)

    def entries(
        self, job_id: str, further: str = "", *, pages: int = 10_000, **body: Any
    ) -> list[dict[str, Any]]:
        """Return the log entries of a job, so many pages at most."""
        body = {
            "resourceNames": [f"projects/{PROJECT}"],
            "filter": f'resource.labels.job_id="{job_id}" {further}',
            "orderBy": "timestamp asc",
            "pageSize": 1000,
        } | body
        found: list[dict[str, Any]] = []
        for _ in range(pages):
            page = self.logging.entries().list(body=body).execute()
            found += page.get("entries", [])
            if not page.get("nextPageToken"):
                break
            body["pageToken"] = page["nextPageToken"]
        return found

    def lines(self, job_id: str, task: str = "master-replica-0") -> list[str]:
        """Return the texts of one task's log."""
        entries = self.entries(job_id, f'resource.labels.task_name="{task}"')
        return [entry["jsonPayload"]["message"] for entry in entries]


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
