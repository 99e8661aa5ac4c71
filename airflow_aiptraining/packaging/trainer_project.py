"""Which project a ``package_path`` names, and so what makes its archive."""

from __future__ import annotations

import keyword
import os
import sys
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from airflow_aiptraining.exceptions import InvalidTrainerError


class ProjectKind(StrEnum):
    """How a trainer's archive is made."""

    GENERATED = "generated"  # no project file: this package writes one
    SETUP_PY = "setup.py"
    PYPROJECT = "pyproject.toml"


@dataclass(frozen=True)
class Trainer:
    """A trainer as it lies on disk.

    :param kind: which project file makes its archive.
    :param root: the folder that is copied: the package's own for ``GENERATED``, else the project's.
    :param package: name of the package folder, None where a project's root was given.
    """

    kind: ProjectKind
    root: Path
    package: str | None


def find_trainer(package_path: str | os.PathLike[str]) -> Trainer:
    """Say what is at ``package_path`` and which project file makes its archive.

    As in gcloud, a package folder (with ``__init__.py``) belongs to the project in its *parent*;
    a folder with a project file and no ``__init__.py`` is taken as the project itself.

    :raises InvalidTrainerError: nothing there, a file, no package, or a name that can't be
        imported.

    Source: gcloud 528 ``--package-path``, measured.
    """
    given = Path(package_path)
    folder = Path(os.path.abspath(given))  # noqa: PTH100 - resolve() would lose a link's own name
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "doesn't exist"
        raise InvalidTrainerError(
            f"package_path {str(given)!r} {what} (looked at {folder}). Give the folder of a Python"
            " package, the one with __init__.py, or a project's root."
        )
    if not (folder / "__init__.py").is_file():
        kind = _project_kind(folder)
        if kind is None:
            raise InvalidTrainerError(
                f"package_path {str(given)!r} has no __init__.py, so it is not a Python package."
                f" Add an empty one ({folder / '__init__.py'}); or, if it is a project's root, give"
                " it a pyproject.toml or setup.py."
            )
        return Trainer(kind, folder, None)
    name = folder.name
    if not name.isidentifier() or keyword.iskeyword(name):
        guess = "".join(c if c.isalnum() else "_" for c in name)
        raise InvalidTrainerError(
            f"package_path {str(given)!r}: a folder called {name!r} can't be imported. Rename it,"
            f" for example to {guess!r}, and module_name with it."
        )
    if name in sys.stdlib_module_names:
        raise InvalidTrainerError(
            f"package_path {str(given)!r}: Python's own module {name!r} would be imported instead"
            " of this folder. Rename it, for example to 'trainer', and module_name with it."
        )
    kind = _project_kind(folder.parent)
    if kind is None:
        return Trainer(ProjectKind.GENERATED, folder, name)
    return Trainer(kind, folder.parent, name)


def _project_kind(folder: Path) -> ProjectKind | None:
    pyproject = folder / "pyproject.toml"
    if pyproject.is_file():
        try:
            tables = tomllib.loads(pyproject.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise InvalidTrainerError(f"{pyproject} can't be read: {error}") from error
        # Many repositories keep only the settings of linters there: that is no project.
        if "project" in tables or "build-system" in tables:
            return ProjectKind.PYPROJECT
    return ProjectKind.SETUP_PY if (folder / "setup.py").is_file() else None
