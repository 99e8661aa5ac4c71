"""Airflow's REST API, as much of it as the demo and the tests read and write."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
from processes import wait_for

END_STATES = frozenset({"success", "failed"})
TASK_END_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class AirflowApiError(RuntimeError):
    """Airflow refused a call."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AirflowApi:
    """A client that is logged in.

    :param base_url: of the api-server, without a slash at the end.
    :param user: name known to the simple auth manager.
    :param password: of that user.
    """

    def __init__(self, base_url: str, user: str, password: str) -> None:
        # trust_env: a proxy of this machine has no business with a loopback address.
        self._client = httpx.Client(base_url=base_url, timeout=30, trust_env=False)
        token = self.call("POST", "/auth/token", json={"username": user, "password": password})
        self._client.headers["Authorization"] = f"Bearer {token['access_token']}"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(self, method: str, path: str, **kwargs: Any) -> Any:
        """Return the JSON answer of one call.

        :raises AirflowApiError: any status of 400 or more.  SQLite is busy now and then, which
            Airflow answers with 500 or 503: such calls are repeated for some seconds.
        """
        for wait in (0.5, 1.0, 2.0, 4.0, None):
            try:
                answer = self._client.request(method, path, **kwargs)
            except httpx.TransportError:
                if wait is None:
                    raise
            else:
                if answer.status_code < 400:
                    return answer.json() if answer.content else None
                if answer.status_code < 500 or wait is None:
                    raise AirflowApiError(
                        f"{method} {path}: {answer.status_code} {answer.text[:500]}",
                        answer.status_code,
                    )
            time.sleep(wait)
        raise AssertionError("not reached")

    def call_once(self, method: str, path: str, *, timeout: float = 5, **kwargs: Any) -> Any:
        """Return the JSON answer of one call, without the patience of :meth:`call`.

        :param timeout: seconds.
        :raises AirflowApiError: any status of 400 or more.
        :raises httpx.HTTPError: no answer.
        """
        answer = self._client.request(method, path, timeout=timeout, **kwargs)
        if answer.status_code >= 400:
            text = f"{method} {path}: {answer.status_code} {answer.text[:500]}"
            raise AirflowApiError(text, answer.status_code)
        return answer.json() if answer.content else None

    def get(self, path: str, **params: Any) -> Any:
        """Return the answer to GET of a path below /api/v2."""
        return self.call("GET", f"/api/v2{path}", params=params)

    # -- DAGs and runs ---------------------------------------------------------------------------

    def import_errors(self) -> str:
        """Return the stack traces of DAG files that can't be parsed; empty is good."""
        errors = self.get("/importErrors")["import_errors"]
        return "\n".join(f"{error['filename']}\n{error['stack_trace']}" for error in errors)

    def wait_for_dags(self, dag_ids: Sequence[str], *, timeout: float = 60) -> None:
        """Wait until all these DAGs are parsed."""

        def parsed() -> bool:
            known = {dag["dag_id"] for dag in self.get("/dags", limit=100)["dags"]}
            return set(dag_ids) <= known

        wait_for(
            parsed,
            timeout=timeout,
            what=lambda: f"the DAGs {', '.join(dag_ids)} to be parsed.\n{self.import_errors()}",
        )

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run this DAG."""
        self.call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False})

    def trigger(
        self,
        dag_id: str,
        *,
        conf: dict[str, Any] | None = None,
        logical_date: str | None = None,
        run_id: str | None = None,
    ) -> str:
        """Start a run by hand.

        :param logical_date: ISO 8601; without it the run has none.
        :return: its run id.
        """
        body: dict[str, Any] = {"logical_date": logical_date, "conf": conf or {}}
        if run_id:
            body["dag_run_id"] = run_id
        return str(self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return a DAG's runs, oldest first."""
        answer = self.get(f"/dags/{dag_id}/dagRuns", limit=100, order_by="id")
        return list(answer["dag_runs"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return one run."""
        return dict(self.get(f"/dags/{dag_id}/dagRuns/{run_id}"))

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout: float = 120) -> dict[str, Any]:
        """Return the run once it has ended, whatever its state."""

        def ended() -> dict[str, Any] | None:
            run = self.run(dag_id, run_id)
            return run if run["state"] in END_STATES else None

        return wait_for(
            ended,
            timeout=timeout,
            interval=0.5,
            what=lambda: f"run {run_id} of {dag_id} to end: {self.task_states(dag_id, run_id)}",
        )

    # -- task instances --------------------------------------------------------------------------

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        return list(
            self.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
        )

    def all_task_instances(self, **params: Any) -> list[dict[str, Any]]:
        """Return the task instances of all DAGs and runs, filtered by query parameters."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.get(
                "/dags/~/dagRuns/~/taskInstances", limit=100, offset=len(found), **params
            )
            found += page["task_instances"]
            if not page["task_instances"] or len(found) >= page["total_entries"]:
                return found

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task of a run (the last instance's for a mapped one)."""
        return {ti["task_id"]: ti["state"] for ti in self.task_instances(dag_id, run_id)}

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        *,
        states: frozenset[str] = TASK_END_STATES,
        timeout: float = 120,
    ) -> dict[str, Any]:
        """Return the instance of an unmapped task once it is in one of ``states``."""

        def there() -> dict[str, Any] | None:
            for instance in self.task_instances(dag_id, run_id):
                if instance["task_id"] == task_id and instance["state"] in states:
                    return instance
            return None

        return wait_for(
            there,
            timeout=timeout,
            what=lambda: (
                f"task {task_id} of {dag_id} {run_id} to be one of {sorted(states)}: "
                f"{self.task_states(dag_id, run_id)}"
            ),
        )

    def clear(
        self,
        dag_id: str,
        run_id: str,
        tasks: Sequence[str | tuple[str, int]],
        *,
        downstream: bool = False,
        reset_run: bool = True,
    ) -> None:
        """Clear tasks of a run, as a person does in the UI.

        :param tasks: task ids; with a map index where only one instance is meant.
        :param downstream: and all tasks after them.
        :param reset_run: have the run go on; ``False`` leaves its state as it is.
        """
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(tasks),
            "only_failed": False,
            "include_downstream": downstream,
            "reset_dag_runs": reset_run,
        }
        self.call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", json=body)

    def clear_run(self, dag_id: str, run_id: str, *, only_failed: bool) -> None:
        """Clear a run: all its tasks, or those that failed."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/clear"
        self.call("POST", path, json={"dry_run": False, "only_failed": only_failed})

    def set_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task as ``success`` or ``failed``, as a person does in the UI."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.call("PATCH", path, json={"new_state": state})

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """Return a value that a task pushed."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        value = self.get(path, map_index=map_index, deserialize="false")["value"]
        if isinstance(value, str):
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value

    def log(
        self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1
    ) -> str:
        """Return the text of one try's log, as the UI shows it."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.call(
            "GET",
            path,
            params={"full_content": "true", "map_index": map_index},
            headers={"Accept": "application/json"},
        )
        lines = []
        for entry in answer["content"]:
            if isinstance(entry, str):
                lines.append(entry)
                continue
            lines.append(str(entry.get("event", "")))
            for error in entry.get("error_detail") or ():
                lines.append(f"{error.get('exc_type')}: {error.get('exc_value')}")
        return "\n".join(lines)

    # -- pools and backfills ---------------------------------------------------------------------

    def set_pool(self, name: str, slots: int) -> None:
        """Make a pool, or change its size."""
        size = {"slots": slots, "include_deferred": False}
        try:
            self.call("POST", "/api/v2/pools", json={"name": name, **size})
        except AirflowApiError as error:
            if error.status != 409:
                raise
            self.call("PATCH", f"/api/v2/pools/{name}", json={"pool": name, **size})

    def backfill(
        self, dag_id: str, first: str, last: str, *, reprocess: str, conf: dict[str, Any]
    ) -> int:
        """Start a backfill.

        :param first: ISO 8601; both ends are included.
        :param reprocess: ``none``, ``failed`` or ``completed``: which runs that exist run again.
        :return: its number.
        """
        body = {
            "dag_id": dag_id,
            "from_date": first,
            "to_date": last,
            "reprocess_behavior": reprocess,
            "dag_run_conf": conf,
        }
        return int(self.call("POST", "/api/v2/backfills", json=body)["id"])

    def backfills(self, dag_id: str) -> list[dict[str, Any]]:
        """Return a DAG's backfills."""
        return list(self.get("/backfills", dag_id=dag_id, limit=100)["backfills"])

    def backfill_is_over(self, number: int) -> bool:
        """Tell whether all runs of a backfill have ended."""
        return self.get(f"/backfills/{number}")["completed_at"] is not None

    # -- assets and connections ------------------------------------------------------------------

    def asset_events(self, **params: Any) -> list[dict[str, Any]]:
        """Return the events of all assets, oldest first."""
        answer = self.get("/assets/events", limit=100, order_by="timestamp", **params)
        return list(answer["asset_events"])

    def add_connection(self, connection_id: str, conn_type: str, extra: dict[str, Any]) -> None:
        """Add a connection, or replace it."""
        body = {"connection_id": connection_id, "conn_type": conn_type, "extra": json.dumps(extra)}
        try:
            self.call("POST", "/api/v2/connections", json=body)
        except AirflowApiError as error:
            if error.status != 409:
                raise
            self.call("PATCH", f"/api/v2/connections/{connection_id}", json=body)
