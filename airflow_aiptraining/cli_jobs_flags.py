"""The flags of ``aiptraining jobs submit``: gcloud's, and what they say of the job.

Source: flags of ``gcloud ai-platform jobs submit training``, gcloud 528.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from airflow_aiptraining.operators.job_arguments import FIELD_OF

_KMS_PARTS = ("kms_project", "kms_location", "kms_keyring", "kms_key")
_REPLICAS = {
    "master": "the master",
    "worker": "the workers",
    "parameter-server": "the parameter servers",
}


def as_flag(name: str) -> str:
    """Return the flag that sets an argument."""
    return f"--{name.replace('_', '-')}"


def split_trainer_args(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the command without what follows ``--``, and that.

    argparse's own reading of ``--`` differs between Python's versions where commands are nested.

    :param words: of the whole command line.
    :return: ``None`` for the second where there is no ``--``.
    """
    given = list(words)
    if given[:2] != ["jobs", "submit"] or "--" not in given:
        return given, None
    at = given.index("--")
    return given[:at], given[at + 1 :]


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """Add what describes a job and its trainer."""
    trainer = parser.add_argument_group("the trainer")
    trainer.add_argument("--module-name", metavar="MODULE", help="what is run: trainer.task")
    trainer.add_argument(
        "--package-path", metavar="DIR", help="folder of the trainer's package; built and uploaded"
    )
    trainer.add_argument(
        "--packages", type=_words, metavar="FILES", help="archives, local or gs://, with commas"
    )
    trainer.add_argument(
        "--staging-bucket", type=_bucket, metavar="gs://BUCKET", help="for uploads"
    )
    trainer.add_argument(
        "--job-dir",
        metavar="gs://BUCKET/DIR",
        help="for the trainer's results, which gets it as --job-dir; {job_id} in it is the name",
    )
    trainer.add_argument("--runtime-version", metavar="VERSION")
    trainer.add_argument("--python-version", metavar="VERSION")

    job = parser.add_argument_group("the job", "Flags win over the config file, field by field.")
    job.add_argument("--config", metavar="FILE", help="YAML or JSON, local or gs://")
    job.add_argument("--region", metavar="REGION")
    job.add_argument("--scale-tier", metavar="TIER", help="e.g. basic, standard-1, custom")
    job.add_argument("--labels", type=_pairs, action=_Merged, metavar="KEY=VALUE,...")
    job.add_argument("--service-account", metavar="ACCOUNT")
    job.add_argument("--network", metavar="NETWORK")
    job.add_argument("--enable-web-access", action=argparse.BooleanOptionalAction)
    job.add_argument("--kms-key", metavar="KEY", help="its full name, or with the three next ones")
    for name in ("keyring", "location", "project"):
        job.add_argument(f"--kms-{name}", metavar="NAME")

    machines = parser.add_argument_group("machines")
    for name, who in _REPLICAS.items():
        machines.add_argument(f"--{name}-machine-type", metavar="TYPE", help=f"of {who}")
        if name != "master":
            machines.add_argument(f"--{name}-count", metavar="N")
        machines.add_argument(f"--{name}-image-uri", metavar="IMAGE", help="container image")
        machines.add_argument(
            f"--{name}-accelerator", type=_accelerator, metavar="type=TYPE,count=N"
        )
    machines.add_argument("--use-chief-in-tf-config", type=_boolean, metavar="true|false")
    machines.add_argument("--tpu-tf-version", metavar="VERSION")


def job_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say of the job, by the operator's names.

    Ends the process as argparse does where flags don't go together.
    """
    given = {name: getattr(arguments, name, None) for name in FIELD_OF}
    parts = [getattr(arguments, part) for part in _KMS_PARTS]
    key = arguments.kms_key
    if any(parts) and not (key and (all(parts) or (key.startswith("projects/")))):
        arguments.parser.error(
            "--kms-key is the key's full name (projects/…), or comes with --kms-keyring, "
            "--kms-location and --kms-project"
        )
    if all(parts) and not key.startswith("projects/"):
        project, location, ring, name = parts
        given["kms_key"] = (
            f"projects/{project}/locations/{location}/keyRings/{ring}/cryptoKeys/{name}"
        )
    return given


class _Merged(argparse.Action):
    """Puts the mappings of a repeated flag together."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **values})


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for word in _words(text):
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise argparse.ArgumentTypeError(f"KEY=VALUE is expected, not {word!r}")
        pairs[key] = value
    return pairs


def _accelerator(text: str) -> dict[str, str]:
    pairs = _pairs(text)
    if set(pairs) != {"type", "count"}:
        raise argparse.ArgumentTypeError(
            f"type=TYPE,count=N is expected, e.g. type=nvidia-tesla-t4,count=1, not {text!r}"
        )
    return pairs


def _bucket(text: str) -> str:
    if not text.startswith("gs://"):
        raise argparse.ArgumentTypeError(f"gs://BUCKET is expected, not {text!r}")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false is expected, not {text!r}")
    return text.lower() == "true"
