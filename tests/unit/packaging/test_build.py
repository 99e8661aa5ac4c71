"""Archives as they are built, each by a real build and some installed for real.

These builds take about a second each; what needs none is tested beside this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from trainer_trees import listing, make_tree, run_installed

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging import ArchiveFormat, backends, build_package, inspect_archive

TRAINER = {
    "trainer/__init__.py": "",
    "trainer/task.py": """
        import pathlib, sys
        from trainer.sub.deep import model
        here = pathlib.Path(__file__).parent
        print(model.NAME, (here / "data/[v1.0] é.csv").read_text(), sys.argv[1:])
    """,
    "trainer/sub/__init__.py": "",
    "trainer/sub/deep/model.py": "NAME = 'net'",  # no __init__.py: a namespace
    "trainer/data/[v1.0] é.csv": "numbers",
    "trainer/data/.hidden": "",
    "trainer/conf.d/extra-lib/helper.py": "",
}

PLAIN_SETUP_PY = """
    from setuptools import setup
    setup(name="t", version="3", packages=["trainer"])
"""


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "dags", TRAINER)


@pytest.mark.parametrize("archive_format", ["auto", "sdist"])
def test_generated_project_runs_with_its_sub_packages_and_data(
    dags: Path, tmp_path: Path, archive_format: ArchiveFormat
) -> None:
    """gcloud drops both."""
    path = build_package(
        dags / "trainer",
        tmp_path / "out",
        module_name="trainer.task",
        archive_format=archive_format,
    )
    suffix = ".tar.gz" if archive_format == "sdist" else "-py3-none-any.whl"
    assert path.name == f"trainer-0.0.0{suffix}"
    assert set(TRAINER) <= inspect_archive(path).files
    said = run_installed(path, tmp_path, "trainer.task", "--job-dir", "gs://b/o")
    assert said == "net numbers ['--job-dir', 'gs://b/o']\n"


@pytest.mark.parametrize("archive_format", ["wheel", "sdist"])
def test_equal_trees_make_equal_bytes(
    dags: Path, tmp_path: Path, archive_format: ArchiveFormat
) -> None:
    again = make_tree(tmp_path / "elsewhere", dict(reversed(TRAINER.items())))
    os.utime(again / "trainer/task.py", (1_000_000_000, 1_000_000_000))
    first = build_package(dags / "trainer", tmp_path / "1", archive_format=archive_format)
    umask = os.umask(0o077)
    try:
        second = build_package(again / "trainer", tmp_path / "2", archive_format=archive_format)
    finally:
        os.umask(umask)
    assert first.read_bytes() == second.read_bytes()


def test_build_leaves_nothing_beside_the_sources_nor_in_the_temporary_folder(
    dags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(
        dags, {"setup.py": "from setuptools import setup\nsetup(name='t', packages=['trainer'])"}
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = listing(dags)
    build_package(dags / "trainer", tmp_path / "out")
    assert listing(dags) == before
    assert listing(temporary) == {}


def test_read_only_tree_is_built(dags: Path, tmp_path: Path) -> None:
    folders = [dags, *(path for path in dags.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert build_package(dags / "trainer", tmp_path / "out").exists()
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_executable_bit_is_kept(dags: Path, tmp_path: Path) -> None:
    make_tree(dags, {"trainer/tool.sh": "#!/bin/sh\n"})
    (dags / "trainer/tool.sh").chmod(0o700)
    path = build_package(dags / "trainer", tmp_path / "out")
    with zipfile.ZipFile(path) as wheel:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in wheel.infolist()}
    assert (modes["trainer/tool.sh"], modes["trainer/task.py"]) == (0o755, 0o644)


def test_setup_py_decides_name_version_and_contents(dags: Path, tmp_path: Path) -> None:
    make_tree(
        dags,
        {
            "setup.py": """
                from setuptools import find_packages, setup
                setup(name="my-Trainer", version="1.2", packages=find_packages(),
                      install_requires=["left-pad-of-python>=1"])
            """
        },
    )
    path = build_package(dags / "trainer", tmp_path / "out", module_name="trainer.task")
    assert path.name == "my_trainer-1.2-py3-none-any.whl"
    assert not [file for file in inspect_archive(path).files if "data" in file]


def test_setup_py_may_be_asked_for_gclouds_format(dags: Path, tmp_path: Path) -> None:
    make_tree(dags, {"setup.py": PLAIN_SETUP_PY})
    path = build_package(dags / "trainer", tmp_path / "out", archive_format="sdist")
    assert path.name == "t-3.tar.gz"


def test_pyproject_that_names_wheel_builds_with_the_installed_setuptools(tmp_path: Path) -> None:
    """Old files name it; setuptools has needed it no more since 70.1."""
    project = make_tree(
        tmp_path / "project",
        {
            "pyproject.toml": """
                [build-system]
                requires = ["setuptools>=61", "wheel"]
                build-backend = "setuptools.build_meta"
                [project]
                name = "census"
                version = "4"
            """,
            "src/census/__init__.py": "",
            "src/census/train.py": "print('from src')",
        },
    )
    path = build_package(project, tmp_path / "out", module_name="census.train")
    assert path.name == "census-4-py3-none-any.whl"
    assert run_installed(path, tmp_path, "census.train") == "from src\n"


def test_project_that_compiles_becomes_a_source_archive(dags: Path, tmp_path: Path) -> None:
    make_tree(
        dags,
        {
            "setup.py": """
                from setuptools import Extension, setup
                setup(name="fast", version="1", packages=["trainer"],
                      ext_modules=[Extension("trainer._fast", ["fast.c"], optional=True)])
            """,
            "fast.c": "int nothing;",
        },
    )
    path = build_package(dags / "trainer", tmp_path / "out", module_name="trainer.task")
    assert path.name == "fast-1.tar.gz"
    assert "fast.c" in inspect_archive(path).files


BACKEND = """
import pathlib, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "other-7-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as wheel:
        for file in sorted(pathlib.Path("trainer").rglob("*.py")):
            wheel.write(file)
        for file in ("METADATA", "WHEEL", "RECORD"):
            wheel.writestr(f"other-7.dist-info/{file}", "")
    return name
"""


def pyproject_with(requires: str, backend: str, rest: str = "") -> str:
    return f"[build-system]\nrequires = [{requires!r}]\nbuild-backend = {backend!r}\n{rest}"


def test_backend_in_the_project_itself_builds_it(dags: Path, tmp_path: Path) -> None:
    text = "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n"
    make_tree(dags, {"pyproject.toml": text, "own.py": BACKEND})
    path = build_package(dags / "trainer", tmp_path / "out", module_name="trainer.task")
    assert path.name == "other-7-py3-none-any.whl"


def test_backend_that_is_not_installed_is_fetched_into_an_isolated_environment(
    dags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"foreign_backend/__init__.py": BACKEND}
    build_package(make_tree(tmp_path / "b", files) / "foreign_backend", tmp_path / "links")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    make_tree(dags, {"pyproject.toml": pyproject_with("foreign-backend", "foreign_backend")})
    path = build_package(dags / "trainer", tmp_path / "out", module_name="trainer.task")
    assert path.name == "other-7-py3-none-any.whl"


def test_backend_that_cannot_be_had_is_told_with_the_cure(
    dags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    make_tree(dags, {"pyproject.toml": pyproject_with("foreign-backend>=2", "foreign_backend")})
    with pytest.raises(InvalidTrainerError) as caught:
        build_package(dags / "trainer", tmp_path / "out")
    assert "needs foreign-backend>=2 to be built, which is not installed" in str(caught.value)
    assert "packages=[...]" in str(caught.value)
    assert "\n  " in str(caught.value)  # what the installer said


def test_build_that_fails_tells_what_it_printed(dags: Path, tmp_path: Path) -> None:
    make_tree(dags, {"setup.py": "raise SystemExit('no compiler of mine')"})
    with pytest.raises(InvalidTrainerError, match="no compiler of mine"):
        build_package(dags / "trainer", tmp_path / "out")


def test_build_that_hangs_is_ended_with_all_that_it_started(
    dags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "BUILD_TIMEOUT", 1.0)
    text = f"""
        import pathlib, subprocess, time
        child = subprocess.Popen(["sleep", "60"])
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
        time.sleep(60)
    """
    make_tree(dags, {"setup.py": text})
    with pytest.raises(InvalidTrainerError, match="Given up after 1 s"):
        build_package(dags / "trainer", tmp_path / "out")
    stat = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    assert not stat.exists() or stat.read_text().split()[2] in "ZX"


def test_project_that_leaves_the_package_out_is_refused(dags: Path, tmp_path: Path) -> None:
    make_tree(dags, {"setup.py": "from setuptools import setup\nsetup(name='t', py_modules=[])"})
    with pytest.raises(InvalidTrainerError, match="leaves package 'trainer' out"):
        build_package(dags / "trainer", tmp_path / "out")


def test_missing_module_is_refused_before_the_build(dags: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidTrainerError, match=r"Did you mean 'trainer\.task'"):
        build_package(dags / "trainer", tmp_path / "out", module_name="trainer.tusk")
    assert not (tmp_path / "out").exists()


def test_version_from_git_is_told_with_the_cure(dags: Path, tmp_path: Path) -> None:
    text = "raise SystemExit('setuptools-scm was unable to detect version for this folder')"
    make_tree(dags, {"setup.py": text})
    with pytest.raises(InvalidTrainerError, match="state a version"):
        build_package(dags / "trainer", tmp_path / "out")


def test_package_named_with_underscores_or_other_scripts_is_built(tmp_path: Path) -> None:
    for name, built in {"_trainer": "trainer", "Обучение": "trainer", "My_T": "my_t"}.items():
        tree = make_tree(tmp_path, {f"{name}/__init__.py": "", f"{name}/task.py": ""})
        path = build_package(tree / name, tmp_path / "out", module_name=f"{name}.task")
        assert path.name == f"{built}-0.0.0-py3-none-any.whl"


def test_importing_the_package_brings_in_neither_google_nor_build() -> None:
    code = textwrap.dedent("""
        import sys, airflow_aiptraining.packaging
        print([m for m in ("google.cloud.storage", "build", "setuptools") if m in sys.modules])
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
