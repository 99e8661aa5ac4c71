"""The table of runtime versions: read, judged, and what jobs get of it."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from pathlib import Path

import pytest
from training_client import sdist, wheel

from airflow_aiptraining.local import interpreters
from airflow_aiptraining.local.environments import Base, Environments, Package
from airflow_aiptraining.local.interpreters import OWN, find, inspect
from airflow_aiptraining.local.package_imports import imported
from airflow_aiptraining.local.runtimes import Runtimes, RuntimeTableError, advice

SUPPORTED = "is not supported or is deprecated. "


def table(tmp_path: Path, text: str) -> Runtimes:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return Runtimes(file)


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[runtimes."2.11"\nx', "is not a TOML file: .*line 1"),
        ("a = 1", "own.toml: a: unknown"),
        ("runtimes = 3", "own.toml: runtimes: it holds sections"),
        ("[runtimes.2.11]", "own.toml: runtimes.2: .* with quotes"),
        ('[runtimes]\n"2.11" = ["numpy"]', 'own.toml: runtimes."2.11": it is a section'),
        ('[runtimes."2.11"]\nrequire = []', 'own.toml: runtimes."2.11".require: unknown'),
        ('[runtimes."2.11"]\nrequirements = "numpy"', '"2.11".requirements: a list of texts'),
        (
            '[runtimes."2.11"]\nrequirements = ["numpy", "-r x"]',
            r'"2.11".requirements\[1\]: \'-r x\' is not a requirement',
        ),
        ('[runtimes."2.11"]\npython = "/no/python"', "\"2.11\".python: '/no/python' is no Python"),
        ('[runtimes."2.11"]\npython = 3.11', '"2.11".python: 3.11 is no Python'),
        ("default = 2.11", "own.toml: default: 2.11 is not a text"),
        ('default = "3.0"', "own.toml: default: '3.0' is no runtime of this table"),
        ('[on_import]\n"a b" = "x"', 'own.toml: on_import."a b": not the name of a module'),
        ("[on_import]\nnumpy = 3", 'own.toml: on_import."numpy": a list of texts'),
    ],
)
def test_bad_table_is_told_with_its_line_or_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(RuntimeTableError, match=told):
        table(tmp_path, text)


def test_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeTableError, match=r"none\.toml: No such file"):
        Runtimes(tmp_path / "none.toml")


def test_own_table_lies_over_the_packages_one(tmp_path: Path) -> None:
    runtimes = table(
        tmp_path,
        f"""
        default = "2026.1"
        [runtimes."2.11"]
        requirements = ["numpy==1.*"]
        [runtimes."2026.1"]
        requirements = []
        python = "{sys.executable}"
        """,
    )

    replaced = runtimes.choose({"runtimeVersion": "2.11"})
    kept = runtimes.choose({"runtimeVersion": "2.10"})
    added = runtimes.choose({})
    assert replaced.base([]).requirements == ("numpy==1.*",)
    assert kept.base([]).requirements == ()
    assert added.runtime.version == "2026.1"
    assert added.notes[0] == ("No runtimeVersion is given: the default, 2026.1, is used.", "I")
    assert added.python.path == sys.executable


# --- pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "python"),
    [
        ("2.11", "3.7"),
        ("1.15", "3.7"),
        ("1.15", "2.7"),
        ("1.14", "3.5"),
        ("2.11", ""),
        ("", "3.11"),
        ("", ""),
        # No versions at all: that is told by the job's rules.
        ("tf2", "3.7"),
        ("2.11", "3"),
        (2.11, 3.7),
        (None, None),
    ],
)
def test_pair_that_the_service_had_is_taken(runtime: object, python: object) -> None:
    assert Runtimes().problem(runtime, python) == ""


@pytest.mark.parametrize(
    ("runtime", "python", "why"),
    [
        ("1.9", "", "This service has the runtime versions 1.13, 1.14, "),
        ("1.9", "3.5", "This service has the runtime versions"),
        ("2.12", "3.7", "This service has the runtime versions"),
        ("1.14", "3.7", "Python 3.7 never was in runtime 1.14; it is in runtimes 1.15 or later."),
        ("1.15", "3.5", "Python 3.5 never was in runtime 1.15; it is in runtimes 1.4 to 1.14."),
        ("2.1", "2.7", "Python 2.7 never was in runtime 2.1; it is in runtimes 1.15 or earlier."),
        ("2.11", "3.11", "Runtime 2.11 had Python 3.7; leave the Python version out"),
        ("1.15", "3.8", "Runtime 1.15 had Python 2.7 and 3.7; leave"),
    ],
)
def test_pair_that_the_service_had_not_is_refused(runtime: str, python: str, why: str) -> None:
    told = Runtimes().problem(runtime, python)

    start = f"The specified runtime version '{runtime}' with the Python version '{python}' "
    assert told.startswith(start + SUPPORTED + why)


def test_runtime_of_an_own_table_takes_pythons_of_today(tmp_path: Path) -> None:
    runtimes = table(tmp_path, '[runtimes."2.11"]\n[runtimes."1.9"]')

    assert runtimes.problem("2.11", "3.11") == ""
    assert runtimes.problem("2.11", "3.7") == ""
    assert runtimes.problem("1.9", "3.12") == ""
    assert "had Python 3.7" in runtimes.problem("2.10", "3.11")
    assert "never was in runtime 2.11" in runtimes.problem("2.11", "2.7")


# --- interpreters --------------------------------------------------------------------------------


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(interpreters, "_found_by_uv", lambda version: "")
    for cached in (find, inspect):
        cached.cache_clear()
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_python_on_path_is_found_by_its_version(on_path: Path) -> None:
    script(on_path / "python3.99", """echo '[[3, 99], "3.99.1 (main)"]'""")

    found = find("3.99.1")

    assert found == interpreters.Interpreter(str(on_path / "python3.99"), "3.99", "3.99.1 (main)")
    choice = Runtimes().choose({"runtimeVersion": "2.11", "pythonVersion": "3.99"})
    assert choice.python == found
    assert choice.notes[-1] == (f"The job runs on Python 3.99, {on_path}/python3.99.", "I")


@pytest.mark.parametrize(
    "text",
    ["echo 'pyenv: python3.98: command not found' >&2; exit 127", "echo '[[3, 11], \"\"]'"],
    ids=["shim that stands for nothing", "another version"],
)
def test_python_that_is_not_what_its_name_says_is_not_taken(on_path: Path, text: str) -> None:
    script(on_path / "python3.98", text)

    choice = Runtimes().choose({"pythonVersion": "3.98"})

    assert choice.python == OWN
    assert choice.notes[-1] == (
        "pythonVersion 3.98 isn't on this machine: the job runs on the service's own, "
        f"{OWN.version}.",
        "W",
    )


@pytest.mark.parametrize("version", ["2.7", "3.5"])
def test_python_too_old_for_environments_is_not_taken(on_path: Path, version: str) -> None:
    numbers = version.replace(".", ", ")
    script(on_path / f"python{version}", f"""echo '[[{numbers}], "old"]'""")

    assert find(version) is None
    assert inspect(f"python{version}") is None


def test_interpreter_of_the_table_wins_and_says_so(tmp_path: Path) -> None:
    runtimes = table(tmp_path, f'[runtimes."2.11"]\npython = "{sys.executable}"')

    choice = runtimes.choose({"runtimeVersion": "2.11", "pythonVersion": "3.7"})

    assert choice.python == OWN
    told, severity = choice.notes[-1]
    assert told.startswith(f"Not pythonVersion 3.7: the job runs on Python {OWN.version}")
    assert severity == "W"


# --- what is installed ---------------------------------------------------------------------------

MODULES = ("sklearn", "google.cloud.storage", "numpy")


def package(tmp_path: Path, data: bytes, name: str) -> Package:
    path = tmp_path / name
    path.write_bytes(data)
    return Package(f"gs://b/{name}", path, "0" * 64)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import sklearn", {"sklearn"}),
        ("import sklearn.svm as svm", {"sklearn"}),
        ("import os, sklearn", {"sklearn"}),
        ("import os as o, numpy as np, sklearn", {"sklearn", "numpy"}),
        ("from sklearn.svm import SVC", {"sklearn"}),
        ("def f():\n\tfrom sklearn import svm", {"sklearn"}),
        ("from google.cloud import storage", {"google.cloud.storage"}),
        ("from google.cloud import (bigquery, storage)", {"google.cloud.storage"}),
        ("import google.cloud.storage", {"google.cloud.storage"}),
        ("from google.cloud.storage import Client", {"google.cloud.storage"}),
        ("print 'Python 2'\nimport numpy", {"numpy"}),
        ("from google.cloud import bigquery", set()),
        ("import sklearn_extra, numpyro", set()),
        ("from .sklearn import x", set()),
        ("from trainer import sklearn", set()),
        ("# import sklearn\nx = 'import sklearn'", set()),
    ],
)
def test_imports_are_found_in_sources(tmp_path: Path, source: str, found: set[str]) -> None:
    path = tmp_path / "trainer-0.1-py3-none-any.whl"
    path.write_bytes(wheel("") if not source else sdist({"task.py": source}))
    archive = path.rename(tmp_path / "trainer-0.1.tar.gz")

    assert imported(archive, MODULES) == found


def test_imports_are_found_in_wheels_and_nothing_in_what_is_broken(tmp_path: Path) -> None:
    good = package(tmp_path, wheel("import numpy"), "a-0.1-py3-none-any.whl")
    bad = package(tmp_path, b"no archive", "b-0.1.zip")
    whole = sdist({"task.py": "x = 1\n" * 10_000})
    packer = zlib.compressobj(wbits=31)
    # Its first file begins well and goes on with a block of a kind that there isn't.
    damaged = packer.compress(gzip.decompress(whole)[:40_000]) + packer.flush(zlib.Z_FULL_FLUSH)

    assert imported(good.path, MODULES) == {"numpy"}
    assert imported(bad.path, MODULES) == frozenset()
    for number, data in enumerate((damaged + b"\x07" * 9, whole[: len(whole) // 2])):
        name = f"c-0.{number}.tar.gz"
        assert imported(package(tmp_path, data, name).path, MODULES) == frozenset()


def test_only_what_is_imported_comes_with_a_runtime_of_the_package(tmp_path: Path) -> None:
    trainer = package(tmp_path, wheel("import sklearn"), "a-0.1-py3-none-any.whl")
    own = table(tmp_path, '[runtimes."2.10"]\nrequirements = []\n')

    assert Runtimes().choose({}).base([trainer]).on_import == (("sklearn", ("scikit-learn",)),)
    assert own.choose({"runtimeVersion": "2.10"}).base([trainer]).on_import == ()
    none = table(tmp_path, "[on_import]")
    assert none.choose({}).base([trainer]).on_import == ()
    assert "nothing but the packages" in none.choose({}).notes[1][0]


def test_environment_is_named_by_all_that_is_in_it(tmp_path: Path) -> None:
    environments = Environments(tmp_path / "environments")
    file = tmp_path / "a-1-py3-none-any.whl"
    file.write_bytes(b"1")
    base = Base(requirements=(f"a @ file://{file}",))

    keys = {
        environments.key([], Base()),
        environments.key([], base),
        environments.key([], Base(requirements=("a",))),
        environments.key([], Base(on_import=(("a", ("a",)),))),
        environments.key([], Base(python=interpreters.Interpreter("/other", "3.9", "3.9.1"))),
        environments.key([Package("gs://b/a", file, "0" * 64)], Base()),
    }
    again = environments.key([], base)
    file.write_bytes(b"22")

    assert len(keys) == 6
    assert again in keys
    assert environments.key([], base) not in keys


def test_module_that_is_missing_is_told_with_the_cure() -> None:
    told = advice(
        ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'x.y'"]
    )

    assert told.startswith("Nothing that was installed has the module x.y: name its package in")
    assert advice(["ModuleNotFoundError: No module named 'x'", "ValueError: other"]) == ""
    assert advice([]) == ""
