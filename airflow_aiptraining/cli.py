"""The console script ``aiptraining``.

Exit codes: 0 done; 1 the input breaks rules, or the work failed; 2 wrong usage, or a file that
can't be read.  Results go to standard output; notes and errors, one line each, to standard error.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_aiptraining import __version__, cli_jobs
from airflow_aiptraining.cli_jobs_flags import split_trainer_args
from airflow_aiptraining.exceptions import AIPTrainingError, InvalidJobError, Violation

if TYPE_CHECKING:
    from airflow_aiptraining.core.config import Layer

_ANY_JOB_ID = "job"
PROBLEMS = 1
USAGE = 2


class UsageError(Exception):
    """The command can't be run as it was given."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _tell(f"{self.prog}: error: {message} (see {self.prog} --help)")
        raise SystemExit(USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: arguments without the program's name; default: the process's.
    :return: the exit code.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names and labels may hold what the terminal can't show; that is no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    words, trainer_args = split_trainer_args(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words, argparse.Namespace(args=trainer_args))
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except InvalidJobError as error:
        for violation in error.violations:
            _tell(_one_line(violation))
        return PROBLEMS
    except AIPTrainingError as error:
        _tell(f"aiptraining: error: {error}")
        return PROBLEMS
    except UsageError as error:
        _tell(f"aiptraining: error: {error}")
        return USAGE
    except BrokenPipeError:
        # The reader (head, less) has gone; what is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEMS
    except OSError as error:
        _tell(f"aiptraining: error: {_os_error(error)}")
        return PROBLEMS
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="aiptraining", description="Training jobs of AI Platform (ML v1).")
    parser.add_argument("--version", action="version", version=f"aiptraining {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )

    validate = commands.add_parser(
        "validate",
        help="check config files",
        description="Check config files. Prints 'file:line: field: problem' for each problem.",
    )
    validate.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON")
    validate.add_argument(
        "--complete",
        action="store_true",
        help="the file is the whole job: missing fields are problems too",
    )
    validate.set_defaults(run=_validate)

    render = commands.add_parser(
        "render",
        help="show the request that a config makes",
        description="Print, as JSON, the body that would be sent to the service.",
    )
    render.add_argument("--config", metavar="FILE", help="YAML or JSON")
    render.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="set one field, e.g. workerCount=3, labels.team=ads, args='[--epochs, 3]'; "
        "wins over the config; may be repeated",
    )
    render.add_argument(
        "--origins", action="store_true", help="tell on standard error where each value comes from"
    )
    render.add_argument("job_id", nargs="?", metavar="JOB_ID")
    render.set_defaults(run=_render)

    package = commands.add_parser(
        "package",
        help="build a trainer's archive",
        description="Build the archive of a trainer package and print its path.",
    )
    package.add_argument("folder", metavar="DIR", help="package folder, or its project's root")
    package.add_argument("--out", default="dist", metavar="DIR", help="default: dist")
    package.add_argument("--module-name", metavar="MODULE", help="must be in the archive")
    package.set_defaults(run=_package)

    serve = commands.add_parser(
        "serve",
        help="run the embedded training service",
        description="Run the embedded training service. It runs the code it is sent.",
    )
    serve.add_argument("--data", required=True, type=Path, metavar="DIR", help="where it keeps all")
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    serve.add_argument(
        "--port", type=_port, default=0, help="default: the last one, else any free one"
    )
    serve.add_argument(
        "--token-file", type=Path, metavar="FILE", help="callers must send the token in it"
    )
    serve.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="gets the JSON line with the URLs too"
    )
    serve.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name, beside loopback ones, by which callers reach it; may be repeated",
    )
    serve.add_argument(
        "--capacity",
        type=_positive,
        metavar="N",
        help="replicas that run at once; default: by CPUs",
    )
    serve.add_argument(
        "--max-replicas",
        type=_positive,
        metavar="N",
        help="replicas that one job may have; default: 32",
    )
    serve.add_argument(
        "--stop-jobs", action="store_true", help="at the end cancel the jobs that still run"
    )
    serve.add_argument(
        "--runtimes",
        type=Path,
        metavar="FILE",
        help="TOML: what runtime versions have installed, over the package's own table",
    )
    serve.set_defaults(run=_serve)

    cli_jobs.add_commands(commands)
    return parser


def _validate(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.core.config import check, layer_from, merge

    code = 0
    for name in arguments.files:
        try:
            # A file has no id (the task makes it), and isn't incomplete for it.
            job_id = layer_from("JOB_ID", {"jobId": _ANY_JOB_ID})
            merged = merge([_config_layer(name), job_id])
            violations = check(merged, complete=arguments.complete)
            for note in merged.notes:
                _tell(f"note: {note}")
        except InvalidJobError as error:
            violations = list(error.violations)
        except UsageError as error:
            _tell(f"aiptraining: error: {error}")
            code = USAGE
            continue
        for violation in sorted(violations, key=_line):
            print(_one_line(violation, name))
        if violations:
            code = max(code, PROBLEMS)
        else:
            print(f"{name}: ok")
    return code


def _render(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.core.config import finish, layer_from, merge

    layers = [_config_layer(arguments.config)] if arguments.config is not None else []
    layers += [_set_layer(setting) for setting in arguments.set]
    if not layers:
        raise UsageError("nothing to render: give --config FILE or --set PATH=VALUE")
    job_id = arguments.job_id
    layers.append(layer_from("JOB_ID", {"jobId": _ANY_JOB_ID if job_id is None else job_id}))
    merged = merge(layers)
    body = finish(merged)
    if job_id is None:
        del body["jobId"]
    print(json.dumps(body, indent=2, ensure_ascii=False))
    for note in merged.notes:
        _tell(f"note: {note}")
    if arguments.origins:
        for path, origin in merged.origins.items():
            is_mapping = any(other.startswith(f"{path}.") for other in merged.origins)
            if not is_mapping and "[" not in path:
                _tell(f"# {path}: {origin}")
    return 0


def _package(arguments: argparse.Namespace) -> int:
    from airflow_aiptraining.packaging import build_package

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    path = build_package(arguments.folder, arguments.out, module_name=arguments.module_name)
    print(path)
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from airflow_aiptraining.local.serve import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("airflow_aiptraining"):
            raise
        raise UsageError(
            f"the embedded service needs {error.name}: pip install 'airflow-aiptraining[local]'"
        ) from error
    serve(
        arguments.data,
        host=arguments.host,
        port=arguments.port,
        ready_file=arguments.ready_file,
        token_file=arguments.token_file,
        allowed_hosts=arguments.allowed_host,
        capacity=arguments.capacity,
        max_replicas=arguments.max_replicas,
        stop_jobs=arguments.stop_jobs,
        runtimes=arguments.runtimes,
    )
    return 0


def _config_layer(name: str) -> Layer:
    from airflow_aiptraining.core.config import parse_config
    from airflow_aiptraining.core.config_file import MAX_BYTES

    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = _os_error(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"can't read the config: {reason}") from error
    return parse_config(data, name)


def _set_layer(setting: str) -> Layer:
    """Return the layer of one ``--set PATH=VALUE``."""
    from airflow_aiptraining.core.config import layer_from
    from airflow_aiptraining.core.config_file import read_document
    from airflow_aiptraining.core.overridable import normal_path

    path, equals, text = setting.partition("=")
    if not equals or not path.strip() or "" in path.strip().split("."):
        raise UsageError(f"--set {setting!r}: PATH=VALUE is expected, e.g. workerCount=3")
    if "[" in path:
        raise UsageError(f"--set {setting!r}: a list is set as a whole, e.g. args='[--epochs, 3]'")
    name = f"--set {path}"
    value: Any = text
    if text.startswith(("[", "{")) and not text.startswith(("{{", "{%")):
        value = read_document(f"value: {text}".encode("utf-8", "surrogateescape"), name).values[
            "value"
        ]
    first, dot, rest = path.strip().partition(".")
    is_label = first == "labels" and dot
    keys = ["labels", rest] if is_label else ["trainingInput", *normal_path(path).split(".")]
    for key in reversed(keys):
        value = {key: value}
    return layer_from(name, value)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is 0 to 65535, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is expected, not {text!r}")
    return int(text)


def _line(violation: Violation) -> int:
    found = re.search(r":(\d+)\b[^:]*$", violation.source)
    return int(found[1]) if found else sys.maxsize


def _one_line(violation: Violation, name: str = "") -> str:
    """Return ``file:line: field: message``; the file's name where no place is known."""
    parts = (violation.source or name, violation.path, violation.message)
    return " ".join(": ".join(part for part in parts if part).split("\n"))


def _os_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _tell(line: str) -> None:
    print(" ".join(line.splitlines()), file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
