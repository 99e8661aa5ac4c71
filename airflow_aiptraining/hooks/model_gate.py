"""The gate itself: looks at a job, its folder and its metrics once, and remembers nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_aiptraining.core import job_ids
from airflow_aiptraining.core.attempts import SPEC
from airflow_aiptraining.core.conditions import (
    MAX_METRICS_BYTES,
    Condition,
    Outcome,
    figures,
    look_up,
    parse_metrics,
)
from airflow_aiptraining.core.gates import (
    FoundModel,
    find_model,
    parse_time,
    utc,
    wait_until_stable,
    written_since,
)
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.core.trials import best_trial, objective_value
from airflow_aiptraining.exceptions import AIPTrainingError, GateNotPassedError, StagingError
from airflow_aiptraining.hooks import storage
from airflow_aiptraining.hooks.storage import ObjectPath

if TYPE_CHECKING:
    from google.cloud.storage import Client

#: The tag of a study that names none.  Source: ML v1 ``HyperparameterSpec``.
DEFAULT_TAG = "training/hptuning/metric"


class NotYetError(AIPTrainingError):
    """The gate can't be passed now, but may be later."""


class ConditionFailedError(GateNotPassedError):
    """The model's figures aren't good enough."""


@dataclass(frozen=True)
class GatedJob:
    """The job that a gate is about.

    :param job: the Job resource.
    :param project_id: whose it is.
    :param logical_date: that the job was trained for; ``None`` for a job trained by hand.
    :param attempt: at that date.
    """

    job: Mapping[str, Any]
    project_id: str
    logical_date: datetime | None = None
    attempt: int = 1

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.job["jobId"])

    @cached_property
    def since(self) -> datetime:
        """Before this, nothing was written by this job."""
        started = self.job.get("startTime")
        return written_since(
            parse_time(self.job["createTime"]), parse_time(started) if started else None
        )

    @cached_property
    def ended(self) -> datetime | None:
        """When the service says that the job ended."""
        return parse_time(self.job["endTime"]) if self.job.get("endTime") else None

    @cached_property
    def input(self) -> Mapping[str, Any]:
        """The job's ``trainingInput``."""
        given: Mapping[str, Any] = self.job.get("trainingInput", {})
        return given

    @cached_property
    def trial(self) -> Mapping[str, Any] | None:
        """The best trial of a tuning job; ``None`` for other jobs.

        :raises GateNotPassedError: no trial reported a metric.
        """
        spec = self.input.get("hyperparameters")
        if not spec:
            return None
        trials = self.job.get("trainingOutput", {}).get("trials", [])
        best = best_trial(trials, spec.get("goal"))
        if best is None:
            raise GateNotPassedError(
                f"No trial of tuning job {self.job_id!r} reported a final metric, so none is the "
                f"best ({len(trials)} trials). Does the trainer report the metric that "
                "hyperparameterMetricTag names?"
            )
        return best


@dataclass(frozen=True)
class ModelGate:
    """What an author asks of a model.

    The arguments are those of
    :class:`~airflow_aiptraining.sensors.model_export.AIPModelExportSensor`, where they are told.
    """

    job_dir: str | None = None
    model_uri: str | None = None
    model_files: Sequence[str] = ()
    metrics: str | None = "metrics.json"
    conditions: Sequence[Condition] = ()
    settle_time: float = 30.0
    grace_period: float | None = 900.0

    def judge(self, work: GatedJob, client: Client, now: datetime) -> dict[str, Any]:
        """Return the verdict on a model that passes: plain JSON, of bounded size.

        :param now: aware; compared with the job's endTime and with when objects were written.
        :raises NotYetError: it may pass later.
        :raises ConditionFailedError: the model is whole, its figures aren't good enough.
        :raises GateNotPassedError: it will never pass.
        """
        self._check_state(work)
        job_dir = self._job_dir(work)
        given = job_ids.fill_in(self.model_uri, work.job_id)
        root = storage.parse_folder(str(given), "model_uri") if given else job_dir
        if root is None:
            raise GateNotPassedError(
                f"Job {work.job_id!r} has no jobDir, so nothing says where its model lies: "
                "give the sensor model_uri (or job_dir)."
            )
        objects = storage.list_objects(client, root)
        model, reasons = find_model(objects, since=work.since, model_files=self.model_files)
        if model is None:
            raise self._incomplete(work, f"no whole model in {root}: {'; '.join(reasons)}", now)
        quiet = timedelta(seconds=self.settle_time)
        if restless := wait_until_stable(model, ended=work.ended, now=now, quiet=quiet):
            raise NotYetError(f"The model of job {work.job_id!r} in {root}: {restless}.")
        place = root.at(model.folder)
        if not given:
            self._check_not_later(work, model.written, f"The model in {place}")
        metrics, origin = self._read_metrics(client, work, (place, root, job_dir), now)
        self._check_conditions(metrics, f"{origin} of job {work.job_id!r}")
        return self._verdict(work, place, model, metrics)

    def _check_state(self, work: GatedJob) -> None:
        state = JobState.of(work.job)
        if state.is_successful:
            return
        if not state.is_terminal:
            raise NotYetError(f"Job {work.job_id!r} is {state}.")
        raise GateNotPassedError(
            f"Job {work.job_id!r} ended {state}, so it has no model to pass on: "
            f"{work.job.get('errorMessage') or 'the service gave no reason'}"
        )

    def _check_not_later(self, work: GatedJob, written: datetime, what: str) -> None:
        """Refuse what was written when the job was over: another job shares its job_dir.

        Where the author names ``model_uri``, another task may write there on purpose.
        """
        if work.ended is None:
            return
        # The service may cut endTime to whole seconds.
        late = (written - work.ended).total_seconds() - max(self.settle_time, 1.0)
        if late > 0:
            raise GateNotPassedError(
                f"{what} was written at {utc(written)}, after job {work.job_id!r} had ended "
                f"({utc(work.ended)}), so by another job that has the same job_dir. Put {{job_id}} "
                "into job_dir and train again; or name model_uri if another task writes the model."
            )

    def _job_dir(self, work: GatedJob) -> ObjectPath | None:
        """Return the folder that the job, or its best trial, wrote to."""
        trial = work.trial
        uri = job_ids.fill_in(self.job_dir, work.job_id) or work.input.get("jobDir")
        if not uri:
            return None
        folder = storage.parse_folder(str(uri), "job_dir")
        # Source: ML v1, the job-dir of trial n is <jobDir>/<n>.
        return folder.at(f"{trial['trialId']}/") if trial else folder

    def _incomplete(self, work: GatedJob, what: str, now: datetime) -> AIPTrainingError:
        """Return the error for a model that isn't whole: is there still hope?"""
        told = f"Job {work.job_id!r} SUCCEEDED, but {what}"
        if self.grace_period is None or work.ended is None:
            return NotYetError(told)
        waited = (now - work.ended).total_seconds()
        if waited <= self.grace_period:
            return NotYetError(told)
        return GateNotPassedError(
            f"{told}. The job ended {waited:.0f} s ago; grace_period is {self.grace_period:g} s."
        )

    def _read_metrics(
        self,
        client: Client,
        work: GatedJob,
        folders: Sequence[ObjectPath | None],
        now: datetime,
    ) -> tuple[dict[str, Any], str]:
        """Return the job's metrics and where they are from."""
        final = _final_metric(work)
        told = "the final metric" if work.trial else "the metrics"
        if not self.metrics:
            return final, told
        name = str(job_ids.fill_in(self.metrics, work.job_id))
        if name.startswith("gs://"):
            places = [storage.parse_uri(name, "metrics")]
        else:
            places = list(dict.fromkeys(folder.at(name) for folder in folders if folder))
        reasons = []
        for place in places:
            there = storage.get_object(client, place)
            if there is None:
                reasons.append(f"there is no {place}")
            elif there.created < work.since:
                reasons.append(f"{place} was written before the job was created")
            else:
                if not self.model_uri and not name.startswith("gs://"):
                    self._check_not_later(work, there.created, str(place))
                return {**final, **self._parsed(client, work, place, there.generation)}, str(place)
        if self.conditions and not final:
            raise self._incomplete(work, "; ".join(reasons), now)
        return final, told

    def _parsed(
        self, client: Client, work: GatedJob, place: ObjectPath, generation: int
    ) -> dict[str, Any]:
        try:
            return parse_metrics(storage.read_bytes(client, place, generation, MAX_METRICS_BYTES))
        except storage.ObjectGoneError as error:
            raise NotYetError(f"{place} is being replaced: {error}") from error
        except (StagingError, ValueError) as error:
            if not self.conditions:
                return {}
            raise GateNotPassedError(f"Job {work.job_id!r}: {place} {error}.") from error

    def _check_conditions(self, metrics: Mapping[str, Any], origin: str) -> None:
        judgements = [condition.judge(metrics, origin) for condition in self.conditions]
        reasons = [judgement.reason for judgement in judgements if judgement.reason]
        if not reasons:
            return
        told = "The model doesn't pass: " + " ".join(reasons)
        # A metric that isn't there is a mistake, which as a "skip" would hide itself for ever.
        if any(judgement.outcome is Outcome.UNKNOWN for judgement in judgements):
            raise GateNotPassedError(told)
        raise ConditionFailedError(told)

    def _verdict(
        self, work: GatedJob, place: ObjectPath, model: FoundModel, metrics: Mapping[str, Any]
    ) -> dict[str, Any]:
        judged = {each.metric: look_up(metrics, each.metric) for each in self.conditions}
        return {
            "job_id": work.job_id,
            "project_id": work.project_id,
            "model_uri": str(place),
            "objects": [
                {
                    "name": part.name,
                    "generation": part.generation,
                    "size": part.size,
                    "crc32c": part.crc32c,
                }
                for part in model.objects
            ],
            "metrics": {**judged, **dict(figures(metrics))},
            "conditions": [str(condition) for condition in self.conditions],
            "logical_date": utc(work.logical_date) if work.logical_date else None,
            "attempt": work.attempt,
            "spec": work.job.get("labels", {}).get(SPEC),
            "create_time": work.job["createTime"],
            "end_time": work.job.get("endTime"),
            "trial_id": work.trial["trialId"] if work.trial else None,
        }


def _final_metric(work: GatedJob) -> dict[str, Any]:
    """Return a tuning job's own metric under its tag; nothing for other jobs."""
    if work.trial is None:
        return {}
    tag = work.input["hyperparameters"].get("hyperparameterMetricTag") or DEFAULT_TAG
    return {tag: objective_value(work.trial)}
