"""README.md says what there is, and its code can be used."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest
from airflow.sdk import DAG, BaseOperator, Connection

import airflow_aiptraining.operators
import airflow_aiptraining.sensors
from airflow_aiptraining import cli
from airflow_aiptraining.hooks.settings import ConnectionSettings
from airflow_aiptraining.provider_info import get_provider_info

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = "\n".join(path.read_text() for path in sorted((ROOT / "dags_examples").glob("*.py")))


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def public_classes() -> list[type]:
    """Return all operators and sensors of this package."""
    found = {}
    for package in (airflow_aiptraining.operators, airflow_aiptraining.sensors):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, BaseOperator):
                    found[value.__name__] = value
    return [found[name] for name in sorted(found) if name.startswith("AIP")]


def commands() -> list[str]:
    """Return the subcommands of ``aiptraining``, nested ones with their parents."""

    def below(parser: argparse.ArgumentParser, prefix: str) -> list[str]:
        found = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    found += below(sub, f"{prefix} {name}") or [f"{prefix} {name}"]
        return found

    return below(cli._parser(), "aiptraining")


@pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__name__)
def test_every_operator_and_sensor_is_in_the_readme(cls: type) -> None:
    assert f"| `{cls.__name__}` |" in README


@pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__name__)
def test_every_operator_and_sensor_is_in_an_example_dag(cls: type) -> None:
    assert re.search(rf"\b{cls.__name__}(\.partial)?\(", EXAMPLES)


@pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__name__)
def test_every_operator_and_sensor_is_in_the_provider_info(cls: type) -> None:
    info = get_provider_info()
    modules = [m for kind in ("operators", "sensors") for m in info[kind][0]["python-modules"]]

    assert cls.__module__ in modules


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"{command} " in README or f"{command}`" in README


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_is_a_dag_with_tasks(block: str) -> None:
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)

    dag = names["dag"]
    assert isinstance(dag, DAG)
    dag.validate()
    assert dag.tasks


@pytest.mark.parametrize("block", blocks("json"))
def test_every_json_block_is_a_connection_that_can_be_used(block: str) -> None:
    connection = Connection.from_json(block, conn_id="readme")
    fields = get_provider_info()["connection-types"][0]["conn-fields"]

    assert connection.conn_type == "aiptraining"
    assert set(connection.extra_dejson) <= set(fields)
    settings = ConnectionSettings.of(
        connection.extra_dejson, conn_id="readme", conn_type=connection.conn_type
    )
    assert settings.service == json.loads(block)["extra"]["service"]


def test_there_is_a_block_of_each_kind() -> None:
    assert [len(blocks(language)) for language in ("python", "json")] == [3, 2]


def test_every_link_to_a_file_leads_to_one() -> None:
    links = re.findall(r"\]\(((?!https?:|#)[^)]+)\)", README)

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_picture_is_small() -> None:
    assert (ROOT / "dags_examples" / "retrain_daily.png").stat().st_size < 300_000
