"""What belongs to a trainer's tree, and when two trees are one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_trees import make_tree

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging import source_tree
from airflow_aiptraining.packaging.source_tree import Snapshot, take_snapshot
from airflow_aiptraining.packaging.trainer_project import find_trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    files = {"trainer/__init__.py": "", "trainer/task.py": "print('trained')"}
    return make_tree(tmp_path / "dags", files) / "trainer"


@pytest.fixture
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Snapshot]:
    def take(package_path: Path, **options: object) -> Snapshot:
        into = tmp_path_factory.mktemp("copy")
        return take_snapshot(find_trainer(package_path), into, **options)  # type: ignore[arg-type]

    return take


Take = Callable[..., Snapshot]


# --- what belongs to the tree


def test_sub_folders_and_data_belong_to_the_tree(trainer: Path, snapshot: Take) -> None:
    make_tree(trainer, {"sub/mod.py": "", "data/a.csv": "1", "build/x.py": "", ".hidden": ""})
    assert snapshot(trainer).files == (
        "trainer/.hidden",
        "trainer/__init__.py",
        "trainer/build/x.py",
        "trainer/data/a.csv",
        "trainer/sub/mod.py",
        "trainer/task.py",
    )


def test_leavings_of_tools_do_not_belong_to_the_tree(trainer: Path, snapshot: Take) -> None:
    before = snapshot(trainer)
    leavings = {
        "__pycache__/task.cpython-311.pyc": "",
        ".git/HEAD": "",
        ".venv/bin/python": "",
        "oldenv/pyvenv.cfg": "",
        "oldenv/lib/x.py": "",
        "trainer.egg-info/PKG-INFO": "",
        "sub/__pycache__/x.pyc": "",
        "node_modules/x.js": "",
        ".DS_Store": "",
        ".env": "PASSWORD=x",
    }
    make_tree(trainer, leavings)
    after = snapshot(trainer)
    assert (after.files, after.tree_hash) == (before.files, before.tree_hash)


def test_output_of_builds_at_a_projects_root_does_not_belong_to_it(
    trainer: Path, snapshot: Take
) -> None:
    make_tree(trainer.parent, {"setup.py": "", "build/lib/x.py": "", "dist/x-1.tar.gz": ""})
    files = snapshot(trainer).files
    assert files == ("setup.py", "trainer/__init__.py", "trainer/task.py")


def test_links_within_the_tree_are_copied_as_files(trainer: Path, snapshot: Take) -> None:
    make_tree(trainer, {"real/a.txt": "A"})
    (trainer / "link").symlink_to("real")
    (trainer / "b.txt").symlink_to("real/a.txt")
    taken = snapshot(trainer)
    assert "trainer/link/a.txt" in taken.files
    assert not (taken.folder / "trainer/b.txt").is_symlink()
    assert (taken.folder / "trainer/b.txt").read_text() == "A"


def test_mounted_config_map_is_packaged_by_its_visible_names(
    tmp_path: Path, snapshot: Take
) -> None:
    """Kubernetes mounts ``task.py -> ..data/task.py`` and ``..data -> ..2024_05_01``."""
    trainer = tmp_path / "trainer"
    make_tree(trainer, {"..2024_05_01/task.py": "t", "..2024_05_01/__init__.py": ""})
    (trainer / "..data").symlink_to("..2024_05_01")
    for name in ("task.py", "__init__.py"):
        (trainer / name).symlink_to(f"..data/{name}")
    assert snapshot(trainer).files == ("trainer/__init__.py", "trainer/task.py")


def test_link_as_package_path_keeps_its_own_name(tmp_path: Path, snapshot: Take) -> None:
    make_tree(tmp_path, {"release7/__init__.py": "", "release7/task.py": ""})
    (tmp_path / "trainer").symlink_to("release7")
    assert snapshot(tmp_path / "trainer").files == ("trainer/__init__.py", "trainer/task.py")


@pytest.mark.parametrize("target", ["/etc/hostname", "../secret.txt", "/etc", ".."])
def test_link_out_of_the_tree_is_refused_by_name(
    trainer: Path, snapshot: Take, target: str
) -> None:
    make_tree(trainer.parent, {"secret.txt": ""})
    (trainer / "leak").symlink_to(target)
    with pytest.raises(InvalidTrainerError, match=r"'leak' of the trainer is a link to .* outside"):
        snapshot(trainer)


def test_link_that_leads_to_nothing_is_refused_by_name(trainer: Path, snapshot: Take) -> None:
    (trainer / "gone").symlink_to("nowhere")
    with pytest.raises(InvalidTrainerError, match="'gone'"):
        snapshot(trainer)


@pytest.mark.parametrize("target", [".", "around"])
def test_link_without_end_is_refused_by_name(trainer: Path, snapshot: Take, target: str) -> None:
    (trainer / "around").symlink_to(target)
    with pytest.raises(InvalidTrainerError, match="'around'"):
        snapshot(trainer)


def test_pipes_and_sockets_are_refused_by_name(
    trainer: Path, snapshot: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(trainer / "pipe")
    with pytest.raises(InvalidTrainerError, match="'pipe' of the trainer is a device, pipe"):
        snapshot(trainer)
    (trainer / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(trainer)  # a socket's path is short
        listening.bind("sock")
        with pytest.raises(InvalidTrainerError, match="'sock'"):
            snapshot(trainer)


@pytest.mark.parametrize("name", [b"new\nline.py", b"latin-\xe9.txt", b"bell\x07"])
def test_names_that_are_not_legal_everywhere_are_refused(
    trainer: Path, snapshot: Take, name: bytes
) -> None:
    Path(os.fsdecode(os.fsencode(trainer) + b"/" + name)).write_text("")
    with pytest.raises(InvalidTrainerError, match="Rename it"):
        snapshot(trainer)


def test_too_many_bytes_are_refused_with_the_folder_that_has_them(
    trainer: Path, snapshot: Take
) -> None:
    make_tree(trainer, {"assets/images/a.bin": "", "small/b.txt": "x"})
    with (trainer / "assets/images/a.bin").open("wb") as sparse:
        sparse.truncate(201 * 1024**2)
    with pytest.raises(InvalidTrainerError, match="'assets/images'"):
        snapshot(trainer)


def test_too_many_files_are_refused_with_the_folder_that_has_them(
    trainer: Path, snapshot: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_tree, "MAX_TREE_FILES", 5)
    make_tree(trainer, {f"shards/{n}": "" for n in range(6)})
    with pytest.raises(InvalidTrainerError, match=r"more than 5 files.*'shards' \(6\)"):
        snapshot(trainer)


# --- identity


def test_equal_trees_have_one_identity_wherever_and_whenever_they_were_made(
    tmp_path: Path, snapshot: Take
) -> None:
    files = {"trainer/__init__.py": "", "trainer/task.py": "x", "trainer/d/e.txt": "e"}
    first = make_tree(tmp_path / "a", files) / "trainer"
    second = make_tree(tmp_path / "b", dict(reversed(files.items()))) / "trainer"
    os.utime(second / "task.py", (1, 1))
    (second / "task.py").chmod(0o600)
    (second / "empty").mkdir()
    assert snapshot(first).tree_hash == snapshot(second).tree_hash


@pytest.mark.parametrize(
    "change",
    [
        lambda t: (t / "task.py").write_text("print('trained!')"),
        lambda t: (t / "task.py").chmod(0o755),
        lambda t: (t / "task.py").rename(t / "main.py"),
        lambda t: (t / "new.txt").write_text(""),
        lambda t: (t.parent / "setup.py").write_text(""),
    ],
    ids=["bytes", "mode", "name", "new file", "project file"],
)
def test_change_of_the_tree_changes_its_identity(
    trainer: Path, snapshot: Take, change: Callable[[Path], object]
) -> None:
    before = snapshot(trainer).tree_hash
    change(trainer)
    assert snapshot(trainer).tree_hash != before


def test_format_of_the_archive_is_part_of_the_identity(trainer: Path, snapshot: Take) -> None:
    hashes = {snapshot(trainer, archive_format=f).tree_hash for f in ("auto", "wheel", "sdist")}
    assert len(hashes) == 3


def test_name_of_a_generated_project_is_part_of_the_identity(trainer: Path, snapshot: Take) -> None:
    before = snapshot(trainer).tree_hash
    assert snapshot(trainer.rename(trainer.with_name("other"))).tree_hash != before


def test_tree_that_changes_once_while_read_is_read_again(
    trainer: Path, snapshot: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_file = source_tree._copy_file
    passes = []

    def deploying(entry: source_tree._Entry, target: Path) -> str:
        digest = copy_file(entry, target)
        if entry.path == "__init__.py" and not passes:
            passes.append(1)
            (trainer / "task.py").write_text("print('the next release')")
        return digest

    monkeypatch.setattr(source_tree, "_copy_file", deploying)
    taken = snapshot(trainer)
    assert (taken.folder / "trainer/task.py").read_text() == "print('the next release')"


def test_tree_that_never_rests_is_refused_by_the_file_that_changes(
    trainer: Path, snapshot: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_file = source_tree._copy_file

    def logging(entry: source_tree._Entry, target: Path) -> str:
        with (trainer / "train.log").open("a") as log:
            log.write("another line\n")
        return copy_file(entry, target)

    monkeypatch.setattr(source_tree, "_copy_file", logging)
    with pytest.raises(InvalidTrainerError, match=r"keeps changing while it is read.*train\.log"):
        snapshot(trainer)


def test_temporary_folder_inside_the_tree_is_refused(trainer: Path) -> None:
    inside = trainer / "tmp"
    inside.mkdir()
    with pytest.raises(InvalidTrainerError, match="Set TMPDIR"):
        take_snapshot(find_trainer(trainer), inside)
