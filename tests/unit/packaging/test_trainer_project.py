"""What is at ``package_path``."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_trees import make_tree

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging.trainer_project import ProjectKind, find_trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    files = {"trainer/__init__.py": "", "trainer/task.py": "print('trained')"}
    return make_tree(tmp_path / "dags", files) / "trainer"


def test_folder_with_init_and_no_project_file_gets_a_generated_project(trainer: Path) -> None:
    found = find_trainer(str(trainer) + "/")
    assert (found.kind, found.root, found.package) == (ProjectKind.GENERATED, trainer, "trainer")


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("setup.py", "", ProjectKind.SETUP_PY),
        ("pyproject.toml", "[project]\nname='x'", ProjectKind.PYPROJECT),
        ("pyproject.toml", "[build-system]\nrequires=[]", ProjectKind.PYPROJECT),
    ],
)
def test_project_file_beside_the_package_makes_its_parent_the_project(
    trainer: Path, file: str, text: str, kind: ProjectKind
) -> None:
    (trainer.parent / file).write_text(text)
    found = find_trainer(trainer)
    assert (found.kind, found.root, found.package) == (kind, trainer.parent, "trainer")


def test_pyproject_with_settings_of_linters_only_is_no_project(trainer: Path) -> None:
    (trainer.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert find_trainer(trainer).kind is ProjectKind.GENERATED


def test_project_root_itself_may_be_given(trainer: Path) -> None:
    (trainer.parent / "setup.py").write_text("")
    found = find_trainer(trainer.parent)
    assert (found.kind, found.root, found.package) == (ProjectKind.SETUP_PY, trainer.parent, None)


def test_broken_pyproject_is_told_with_its_path(trainer: Path) -> None:
    (trainer.parent / "pyproject.toml").write_text("[project\n")
    with pytest.raises(InvalidTrainerError, match=r"pyproject.toml can't be read"):
        find_trainer(trainer)


def test_missing_folder_is_refused_with_the_place_looked_at(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrainerError, match=f"doesn't exist .looked at {tmp_path}/nowhere"):
        find_trainer(tmp_path / "nowhere")


def test_file_is_refused(trainer: Path) -> None:
    with pytest.raises(InvalidTrainerError, match="is a file"):
        find_trainer(trainer / "task.py")


def test_missing_init_is_told_with_its_cure(trainer: Path) -> None:
    (trainer / "__init__.py").unlink()
    with pytest.raises(InvalidTrainerError, match=r"Add an empty one \(.*trainer/__init__\.py\)"):
        find_trainer(trainer)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-trainer", "'my_trainer'"),
        ("class", "can't be imported"),
        ("code", "Python's own module"),
    ],
)
def test_folder_that_python_cannot_import_is_refused(tmp_path: Path, name: str, said: str) -> None:
    make_tree(tmp_path, {f"{name}/__init__.py": ""})
    with pytest.raises(InvalidTrainerError, match=said):
        find_trainer(tmp_path / name)
