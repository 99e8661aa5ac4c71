"""How the rules look at a job: values that may be unknown, and problems that point at fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from airflow_aiptraining.core.job_scalars import Unread


@dataclass(frozen=True)
class Problem:
    """A broken rule, before it is known where the value was written.

    :param path: the field, from the job's root.
    :param message: rule, finding and cure.
    :param cause: for a missing field, the one that makes it necessary; it has a source.
    :param meant: the fields that an unknown key may have stood for: they aren't called missing.
    """

    path: str
    message: str
    cause: str = ""
    meant: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """A message inside a job, seen with what is known of its values.

    :param values: the message as typed Python values with camelCase keys.
    :param path: the message's own path, empty for the job.
    :param broken: paths from the job's root whose values were dropped, and reported.
    :param complete: whether missing fields are problems.
    :param default_runtime: whether the service has a runtime of its own for jobs that name none.
    """

    values: Mapping[str, Any]
    path: str
    broken: Set[str]
    complete: bool
    default_runtime: bool = False

    def at(self, field: str) -> str:
        """Return the path of a field from the job's root."""
        return f"{self.path}.{field}" if self.path else field

    def get(self, field: str) -> Any:
        """Return a field's value (dotted for nested ones), ``None`` where missing or unknown."""
        value = self._find(field)
        return None if isinstance(value, Unread) else value

    def given(self, field: str) -> bool:
        """True when somebody wrote a value, be it one that can't be judged.

        Empty lists and blank texts say nothing, as to the API.
        """
        value = self._find(field)
        if isinstance(value, Unread):
            return True
        said = value.strip() != "" if isinstance(value, str) else value not in (None, [])
        if said:
            return True
        path = self.at(field)
        return any(path == broken or path.startswith(f"{broken}.") for broken in self.broken)

    def missing(self, field: str) -> bool:
        """True when the job is complete and has no such field."""
        return self.complete and not self.given(field)

    def texts(self, field: str) -> Iterator[tuple[str, str]]:
        """Yield path and text of each known item of a list of texts."""
        for index, item in enumerate(self.get(field) or ()):
            if not isinstance(item, Unread):
                yield f"{self.at(field)}[{index}]", item

    def inside(self, field: str) -> View:
        """Return the view of a nested message; of an empty one where it is missing."""
        return self._view(self.get(field) or {}, self.at(field))

    def each(self, field: str) -> Iterator[View]:
        """Yield a view of each message in a list."""
        for index, item in enumerate(self.get(field) or ()):
            if isinstance(item, Mapping):
                yield self._view(item, f"{self.at(field)}[{index}]")

    def _view(self, values: Mapping[str, Any], path: str) -> View:
        return View(values, path, self.broken, self.complete, self.default_runtime)

    def _find(self, field: str) -> Any:
        value: Any = self.values
        for key in field.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value
