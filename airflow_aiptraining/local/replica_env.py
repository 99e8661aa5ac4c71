"""What a replica's process is given: its command line, its environment.

The environment is built from nothing: a trainer reaches this service's storage and finds no
credentials of the person who runs the service (measured with TensorFlow, gcsfs, google-auth,
gsutil and gcloud).  That stops accidents, not hostile code, which runs as the same user.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MARKER = "AIPTRAINING_REPLICA"
"""Variable by which processes of a replica are found again, wherever they went."""

PASSED_ON = (
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
"""Variables that name this machine's roots of trust and its accelerators' libraries."""

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


def temporary_folder(uid: str) -> Path:
    """Return the folder for a replica's temporary files.

    Not below the replica's own folder: the names of sockets that multiprocessing puts there may
    have 107 characters.
    """
    return Path(tempfile.gettempdir()) / f"aiptraining-{uid[:16]}"


def command(python: Path, training_input: Mapping[str, Any]) -> list[str]:
    """Return argv of a replica that runs a Python module.

    The user's arguments in their order, then ``--job-dir`` and the path as two tokens, last; no
    jobDir, no flag.  Source: public logs of ML v1 runs.
    """
    argv = [str(python), "-m", training_input["pythonModule"], *training_input.get("args", [])]
    if training_input.get("jobDir"):
        argv += ["--job-dir", training_input["jobDir"]]
    return argv


def environment(
    folder: Path,
    *,
    uid: str,
    python: Path,
    project: str,
    job_id: str,
    service_url: str,
    tf_config: Mapping[str, Any],
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables of a replica.

    :param folder: the replica's own folder, with ``home`` and ``gcloud`` in it.
    :param uid: the replica's uid, put into ``MARKER``.
    :param python: the interpreter; its folder comes first on PATH.
    :param service_url: where this service is reached, without a slash at the end.
    :param base: what the few variables that pass are taken from.
    """
    env = {name: base[name] for name in PASSED_ON if base.get(name)}
    for name in _PROXIES:
        # A proxy with a password in its address is a credential.
        if base.get(name) and not urlsplit(base[name]).password:
            env[name] = base[name]
    env |= {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(python.parent.parent),
        "HOME": str(folder / "home"),
        "TMPDIR": str(temporary_folder(uid)),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        MARKER: uid,
        # The job.
        "TF_CONFIG": json.dumps(tf_config),
        "CLOUD_ML_JOB_ID": job_id,
        "CLOUD_ML_PROJECT_ID": project,
        "CLOUD_ML_HP_METRIC_FILE": str(folder / "hypertune" / "output.metrics"),
        # Storage is here ...
        "STORAGE_EMULATOR_HOST": service_url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else gcsfs stalls for 80 s
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{service_url}/storage/v1/",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        # ... and nobody's credentials are.
        "GOOGLE_CLOUD_PROJECT": project,
        "CLOUDSDK_CORE_PROJECT": project,
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "NO_GCE_CHECK": "true",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "local",
    }
    return env
