"""From a gated model to an immutable version, a pointer to the latest one, and an asset event."""

from __future__ import annotations

import ast
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.definitions.asset import AssetRef
from airflow.sdk.exceptions import AirflowFailException

from airflow_aiptraining.core import exports
from airflow_aiptraining.core.gates import check_verdict
from airflow_aiptraining.exceptions import GateNotPassedError, StagingError, TransientServiceError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from google.cloud.storage import Client

    from airflow_aiptraining.hooks.storage import ObjectPath
    from airflow_aiptraining.hooks.training import AIPTrainingHook

PROMOTE = ("newest", "always", "never")
#: Others that move the pointer at the same time; each round one of them gets through.
_MAX_MOVES = 20
_MAX_DOCUMENT_BYTES = 10_000_000
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


class AIPModelExportOperator(BaseOperator):
    """Copies a gated model to ``<export_dir>/<job id>/`` and says which version is the latest.

    Exactly the generations that the gate saw are copied.  ``manifest.json`` is written last, once:
    who reads by manifests sees all of a version or nothing.  A version never changes; a date that
    is trained again is a new one.  Running the task again completes what is missing and changes
    nothing else.

    ``<export_dir>/latest.json`` points to one version (``model_uri``, ``manifest_uri``, ``job_id``
    …) and goes forward only, in the order of logical date (of runs without one: ``run_after``),
    then attempt: a backfill of January exports January and leaves November live.  A job trained by
    hand stands where it was created.

    On success every outlet asset's event has ``extra``: ``job_id``, ``project_id``,
    ``logical_date``, ``attempt``, ``spec``, ``metrics``, ``model_uri``, ``manifest_uri``,
    ``source_uri``, ``is_latest``.

    :param export_dir: ``gs://`` folder of all versions of one model.
    :param gate: what :class:`~airflow_aiptraining.sensors.model_export.AIPModelExportSensor`
        returned (``gate=sensor.output``); a template or JSON that gives the same will do.
    :param gate_task_id: instead of ``gate``: the sensor's task id in this DAG.
    :param promote: ``newest``; ``always``: move the pointer backwards too; ``never``.
    :param gcp_conn_id: see :class:`~airflow_aiptraining.hooks.training.AIPTrainingHook`.
    :param impersonation_chain: the same.
    :return: ``job_id``, ``project_id``, ``model_uri``, ``manifest_uri``, ``source_uri``,
        ``is_latest`` (as of now: a newer version may come), ``metrics``, ``logical_date``,
        ``attempt``, ``spec``.
    """

    template_fields: Sequence[str] = (
        "export_dir",
        "gate",
        "gate_task_id",
        "promote",
        "gcp_conn_id",
        "impersonation_chain",
    )

    def __init__(
        self,
        *,
        export_dir: str,
        gate: Any = None,
        gate_task_id: str | None = None,
        promote: str = "newest",
        gcp_conn_id: str = "aiptraining_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (gate is None) == (gate_task_id is None):
            raise ValueError(
                f"{self.task_id}: give either gate, e.g. gate=sensor.output, or gate_task_id."
            )
        self.export_dir = export_dir
        self.gate = gate
        self.gate_task_id = gate_task_id
        self.promote = promote
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    @cached_property
    def hook(self) -> AIPTrainingHook:
        """The connection's hook."""
        from airflow_aiptraining.hooks.training import AIPTrainingHook

        return AIPTrainingHook(
            gcp_conn_id=self.gcp_conn_id, impersonation_chain=self.impersonation_chain
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Export the model that the gate passed.

        :raises AirflowFailException: no retry will help: there is no usable verdict, a generation
            is gone, or the version exists with other contents.
        """
        try:
            result = self._export(check_verdict(self._verdict(context)))
        except (GateNotPassedError, StagingError) as error:
            raise AirflowFailException(str(error)) from error
        for outlet in self.outlets:
            if isinstance(outlet, (Asset, AssetRef)):
                context["outlet_events"][outlet].extra = dict(result)
        return result

    def _verdict(self, context: Context) -> Any:
        if self.gate_task_id is not None:
            return context["ti"].xcom_pull(task_ids=self.gate_task_id)
        if not isinstance(self.gate, str):
            return self.gate
        try:
            return json.loads(self.gate)
        except ValueError:
            pass
        try:
            # What "{{ ti.xcom_pull('gate') }}" gives without native objects.
            return ast.literal_eval(self.gate)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return self.gate

    def _export(self, verdict: Mapping[str, Any]) -> dict[str, Any]:
        from airflow_aiptraining.hooks import storage

        if self.promote not in PROMOTE:
            raise StagingError(
                f"promote is {self.promote!r}; it may be one of {', '.join(PROMOTE)}."
            )
        job_id = verdict["job_id"]
        if not _JOB_ID.match(job_id):
            raise GateNotPassedError(f"{job_id!r} is no job id, so it can't name a folder.")
        root = storage.parse_folder(self.export_dir, "export_dir")
        place = root.at(f"{job_id}/")
        client = self.hook.get_storage_client()

        manifest = self._read(client, place.at(exports.MANIFEST))
        files = self._known_files(manifest, verdict) or self._copy(client, verdict, place)
        wanted = exports.manifest(verdict, files, str(place))
        if manifest is None:
            storage.write_once(client, place.at(exports.MANIFEST), exports.to_bytes(wanted))
            # Read back: another export of the same job may have been first.
            manifest = self._read(client, place.at(exports.MANIFEST)) or {}
        if different := exports.differences(manifest, wanted):
            raise StagingError(
                f"{place.at(exports.MANIFEST)} is there already and is another model's than the "
                f"gate of job {job_id!r} passed: {'; '.join(different)}. A version never changes: "
                "train again for a new one, or remove that folder."
            )
        is_latest = self._promote(client, root, manifest, str(place.at(exports.MANIFEST)))
        self.log.info("%s holds job %s%s.", place, job_id, ", the latest" if is_latest else "")
        taken = ("job_id", "project_id", "source_uri", "metrics", "logical_date", "attempt", "spec")
        return {
            **{key: manifest.get(key) for key in taken},
            "model_uri": str(place),
            "manifest_uri": str(place.at(exports.MANIFEST)),
            "is_latest": is_latest,
        }

    def _known_files(
        self, manifest: Mapping[str, Any] | None, verdict: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the verdict's files if a version is there already, so that nothing is copied."""
        if manifest is None:
            return []
        return [
            {
                "name": part["name"],
                "size": part["size"],
                "crc32c": part.get("crc32c"),
                "source_generation": part["generation"],
            }
            for part in verdict["objects"]
        ]

    def _copy(
        self, client: Client, verdict: Mapping[str, Any], place: ObjectPath
    ) -> list[dict[str, Any]]:
        from airflow_aiptraining.hooks import storage

        source = storage.parse_folder(verdict["model_uri"], "the gate's model_uri")
        files = []
        for part in verdict["objects"]:
            name, generation = part["name"], part["generation"]
            if name == exports.MANIFEST:
                raise StagingError(
                    f"The model of job {verdict['job_id']!r} has a file {name} of its own, which "
                    "is the name of the export's. Name it otherwise in the trainer."
                )
            try:
                copy = storage.copy_generation(client, source.at(name), generation, place.at(name))
            except StagingError as error:
                raise StagingError(
                    f"The model of job {verdict['job_id']!r} can't be exported as the gate saw it. "
                    f"{error} If its files were replaced since, clear the gate to look again."
                ) from error
            expected = (part["size"], part.get("crc32c") or copy.crc32c)
            if (copy.size, copy.crc32c) != expected:
                raise StagingError(
                    f"{place.at(name)} is there already with other contents than generation "
                    f"{generation} of {source.at(name)}, and {exports.MANIFEST} isn't there yet, "
                    "so nobody uses it: remove that folder and clear this task."
                )
            files.append(
                {
                    "name": name,
                    "size": copy.size,
                    "crc32c": copy.crc32c,
                    "source_generation": generation,
                }
            )
        return files

    def _promote(
        self, client: Client, root: ObjectPath, manifest: Mapping[str, Any], manifest_uri: str
    ) -> bool:
        """Move the pointer if this version belongs there; return whether it is there."""
        from airflow_aiptraining.hooks import storage

        path = root.at(exports.POINTER)
        ours = exports.pointer(manifest, manifest_uri)
        for _ in range(_MAX_MOVES):
            there = storage.read_live(client, path, _MAX_DOCUMENT_BYTES)
            data, generation = there or (b"", 0)
            if there is not None and self.promote != "always":
                latest = self._parsed(path, data)
                if latest.get("job_id") == ours["job_id"] and latest.get("project_id") == ours.get(
                    "project_id"
                ):
                    return True
                if self.promote == "never":
                    return False
                if self._order(path, latest) >= exports.order(ours):
                    self.log.info(
                        "%s stays with job %s (logical date %s, attempt %s).",
                        path,
                        *(latest.get(key) for key in ("job_id", "logical_date", "attempt")),
                    )
                    return False
            elif self.promote == "never":
                return False
            elif data == exports.to_bytes(ours):
                return True
            if storage.write_if_generation(client, path, exports.to_bytes(ours), generation):
                self.log.info("%s now points to job %s.", path, ours["job_id"])
                return True
            # Another export was faster: who is latest is decided anew.
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311 - jitter
        raise TransientServiceError(
            f"{path} was moved by others {_MAX_MOVES} times in a row; the version itself is "
            "exported, a retry only moves the pointer."
        )

    def _read(self, client: Client, path: ObjectPath) -> dict[str, Any] | None:
        from airflow_aiptraining.hooks import storage

        there = storage.read_live(client, path, _MAX_DOCUMENT_BYTES)
        return None if there is None else self._parsed(path, there[0])

    def _parsed(self, path: ObjectPath, data: bytes) -> dict[str, Any]:
        try:
            return exports.from_bytes(data)
        except ValueError as error:
            raise StagingError(
                f"{path} was not written by this operator: {error}. Export to another folder"
                + (
                    ", or let promote='always' replace it."
                    if path.name.endswith(exports.POINTER)
                    else "."
                )
            ) from error

    def _order(self, path: ObjectPath, pointer: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            return exports.order(pointer)
        except ValueError as error:
            raise StagingError(
                f"{path} can't be compared: {error}. Let promote='always' replace it."
            ) from error
