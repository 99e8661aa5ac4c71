"""What the installer, and with it a package's setup.py, is given of the service's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_aiptraining.local.environments import _installer_environment

HOME = {"HOME": "/home/me"}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "GITHUB_TOKEN",
        "DATABASE_URL",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AIRFLOW_CONN_GOOGLE",
        "UV_PUBLISH_TOKEN",
        "PYTHONPATH",
        "XDG_CONFIG_HOME",
    ],
)
def test_nothing_of_the_user_passes(name: str) -> None:
    made = _installer_environment(HOME | {name: "/secret"})

    assert name not in made
    assert "HOME" not in made
    assert "/secret" not in made.values()


@pytest.mark.parametrize(
    "name",
    ["PATH", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "https_proxy", "NO_PROXY", "UV_INDEX",
     "PIP_INDEX_URL", "LD_LIBRARY_PATH"],
)  # fmt: skip
def test_what_an_install_needs_passes(name: str) -> None:
    assert _installer_environment(HOME | {name: "x"})[name] == "x"


def test_pips_index_is_uvs_too() -> None:
    assert _installer_environment(HOME | {"PIP_INDEX_URL": "x"})["UV_DEFAULT_INDEX"] == "x"


@pytest.mark.parametrize(
    ("base", "cache"),
    [
        ({}, "/home/me/.cache/uv"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/uv"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/uv"),
        ({"XDG_CACHE_HOME": "/xdg", "UV_CACHE_DIR": "/own"}, "/own"),
    ],
    ids=str,
)
def test_uv_keeps_the_users_cache(base: dict[str, str], cache: str) -> None:
    assert _installer_environment(HOME | base)["UV_CACHE_DIR"] == cache


def test_uv_keeps_the_users_settings(tmp_path: Path) -> None:
    base = {"HOME": str(tmp_path)}
    assert "UV_CONFIG_FILE" not in _installer_environment(base)
    settings = tmp_path / ".config" / "uv" / "uv.toml"
    settings.parent.mkdir(parents=True)
    settings.touch()

    assert _installer_environment(base)["UV_CONFIG_FILE"] == str(settings)
    assert "UV_CONFIG_FILE" not in _installer_environment(base | {"UV_NO_CONFIG": "1"})
    assert _installer_environment(base | {"UV_CONFIG_FILE": "/own"})["UV_CONFIG_FILE"] == "/own"
