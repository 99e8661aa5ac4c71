"""Source tree → archive → object addressed by the tree's content.

``package_trainer`` for a source folder, ``stage_archives`` for ready archives, ``build_package``
for an archive on disk only. Imported when a task runs; Google's and build's libraries come in
with the first call that needs them.
"""

from __future__ import annotations

from airflow_aiptraining.packaging.archives import (
    ArchiveContents,
    check_module,
    check_module_name,
    inspect_archive,
)
from airflow_aiptraining.packaging.bucket import check_staging, split_uri
from airflow_aiptraining.packaging.build import build_package
from airflow_aiptraining.packaging.source_tree import ArchiveFormat
from airflow_aiptraining.packaging.staging import (
    PackagedTrainer,
    check_base_names,
    package_trainer,
    stage_archives,
)

__all__ = [
    "ArchiveContents",
    "ArchiveFormat",
    "PackagedTrainer",
    "build_package",
    "check_base_names",
    "check_module",
    "check_module_name",
    "check_staging",
    "inspect_archive",
    "package_trainer",
    "split_uri",
    "stage_archives",
]
