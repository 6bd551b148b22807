"""The files in `deploy/` and `.github/`: valid by their schemas, and true to the program.

No test runs systemd, Docker, Kubernetes or GitHub's workflows.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from escapement.cli.main import escapement
from support.processes.broker import broker_process

ROOT: Final = Path(__file__).parents[3]
DEPLOY: Final = ROOT / "deploy"
UNIT: Final = DEPLOY / "systemd/escapement.service"
DOCKERFILE: Final = DEPLOY / "docker/Dockerfile"
COMPOSE: Final = DEPLOY / "docker/compose.yaml"
KUBERNETES: Final = DEPLOY / "kubernetes/escapement.yaml"
WORKFLOWS: Final = sorted((ROOT / ".github/workflows").glob("*.yaml"))
# The newest version of Kubernetes whose schemas the oldest allowed package has.
KUBERNETES_VERSION: Final = "1.32"


def check_command(words: list[str]) -> None:
    """Check that `escapement` accepts these words, without running the command.

    Raises:
      click.UsageError: if it does not.
    """
    command: click.Command = escapement
    context = click.Context(escapement)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
        assert command is not None
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(list(words))


def variables_of_serve() -> set[str]:
    command = escapement.get_command(click.Context(escapement), "serve")
    assert command is not None
    return {str(one.envvar) for one in command.params if one.envvar}


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


# -- systemd -------------------------------------------------------------------------


def test_unit_of_systemd_starts_the_broker_as_another_user_than_root() -> None:
    """O8."""
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/escapement")
    check_command(words)
    assert service["Type"] == "notify"
    assert service["User"] == "escapement"


def test_broker_tells_the_service_manager_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O8: by the protocol of ``Type=notify``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with broker_process(tmp_path / "data") as broker:
            assert manager.recv(100) == b"READY=1"
            with socket.create_connection(("127.0.0.1", broker.port), timeout=5):
                pass
            assert broker.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"


# -- containers ------------------------------------------------------------------------


def test_image_is_built_in_stages_from_files_that_exist_and_runs_without_root() -> None:
    """O8."""
    parser = DockerfileParser(str(DOCKERFILE))
    assert len(parser.parent_images) == 2
    steps = [(step["instruction"], step["value"]) for step in parser.structure]
    users = [value for name, value in steps if name == "USER"]
    assert users == ["7650:7650"]
    for name, value in steps:
        assert name != "ADD"
        if name == "COPY" and not value.startswith("--from"):
            for source in value.split()[:-1]:
                assert (ROOT / source).exists(), source
        if name == "RUN" and "pip install" in value:
            assert "--no-cache-dir" in value
    for image in parser.parent_images:
        assert re.search(r":\d", image), f"{image} has no version"
    last = dict(steps)
    assert json.loads(last["ENTRYPOINT"]) == ["escapement"]
    check_command(json.loads(last["CMD"]))
    known = set(parser.envs) & {name for name in parser.envs if name.startswith("ESCAPEMENT_")}
    assert known <= variables_of_serve()


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.compose-spec", [COMPOSE]), ("vendor.github-workflows", WORKFLOWS)],
    ids=["compose", "workflows"],
)
def test_files_of_compose_and_github_are_valid_by_their_schemas(
    schema: str, files: list[Path]
) -> None:
    """O8."""
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_services_of_compose_name_files_volumes_and_secrets_that_exist() -> None:
    """O8."""
    composed = yaml.safe_load(COMPOSE.read_text())
    build = composed["services"]["broker"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).exists()
    for service in composed["services"].values():
        assert {mount.split(":")[0] for mount in service["volumes"]} <= set(composed["volumes"])
        assert set(service["secrets"]) <= set(composed["secrets"])
    script = composed["services"]["broker"]["entrypoint"][-1]
    words = script.partition("exec escapement ")[2]
    check_command(shlex.split(words))
    assert set(re.findall(r"ESCAPEMENT_\w+", script)) <= variables_of_serve()


# -- Kubernetes ------------------------------------------------------------------------


def resources() -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all(KUBERNETES.read_text())


def test_resources_of_kubernetes_are_valid_by_their_schemas() -> None:
    """O8."""
    kinds = []
    for resource in resources():
        kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)
        kinds.append(resource["kind"])
    assert sorted(kinds) == ["PodDisruptionBudget", "Service", "StatefulSet"]


def test_pods_of_kubernetes_run_the_broker_without_root_and_are_selected() -> None:
    """O8."""
    by_kind = {resource["kind"]: resource for resource in resources()}
    stateful = by_kind["StatefulSet"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    pod = stateful["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    check_command(container["args"])
    assert {one["name"] for one in container["env"]} <= variables_of_serve()
    ports = {one["name"] for one in container["ports"]}
    (first,) = pod["initContainers"]
    (bootstrap,) = re.findall(r"escapement (admin bootstrap .*?) >", first["command"][-1])
    check_command(shlex.split(bootstrap))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        (check,) = [value for key, value in container[probe].items() if isinstance(value, dict)]
        assert check["port"] in ports
    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in stateful["volumeClaimTemplates"]}
    assert {one["name"] for one in container["volumeMounts"]} <= volumes
    # The pause before the stop, and the stop itself, fit into the grace period.
    (_, pause_s) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert int(pause_s) + 10 < pod["terminationGracePeriodSeconds"]
