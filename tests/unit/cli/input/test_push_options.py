"""The options of commands that post messages."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from escapement.cli.input.push_options import push_switch, pusher, pusher_beside
from escapement.cli.input.remote import broker_addresses
from escapement.errors import InvalidRequest

BROKER = broker_addresses("127.0.0.1:7650")


@click.command()
@push_switch("gateway")
def server(push: bool, networks: tuple[str, ...], target_ca: str | None) -> None:
    click.echo(pusher_beside(push, BROKER, networks, target_ca) is not None)


@pytest.mark.parametrize(
    ("words", "variables", "pushes"),
    [
        ([], {}, False),
        (["--push"], {}, True),
        (["--push", "--allow-network", "10.0.0.0/8", "--allow-network", "fd00::/8"], {}, True),
        ([], {"ESCAPEMENT_GATEWAY_PUSH": "1"}, True),
        # These may be those of an `escapement push` beside it.
        ([], {"ESCAPEMENT_PUSH_ALLOW_NETWORK": "10.0.0.0/8"}, False),
        ([], {"ESCAPEMENT_PUSH_TARGET_CA": "none.pem"}, False),
    ],
)
def test_server_pushes_only_if_it_is_told_to(
    words: list[str], variables: dict[str, str], pushes: bool
) -> None:
    """B16"""
    result = CliRunner().invoke(server, words, env=variables)
    assert (result.exit_code, result.output) == (0, f"{pushes}\n")


@pytest.mark.parametrize("option", ["--allow-network", "--target-ca"])
def test_option_of_the_pusher_needs_the_switch(option: str) -> None:
    """B16: a server that was to push, and does not, would keep messages waiting."""
    result = CliRunner().invoke(server, [option, "10.0.0.0/8"])
    assert result.exit_code == 2
    assert f"{option} needs --push." in result.output


@pytest.mark.parametrize("variable", ["ALLOW_NETWORK", "TARGET_CA"])
def test_wrong_value_from_the_environment_is_refused(variable: str) -> None:
    """B16"""
    variables = {f"ESCAPEMENT_PUSH_{variable}": "none.pem"}
    result = CliRunner().invoke(server, ["--push"], env=variables)
    assert isinstance(result.exception, InvalidRequest)
    assert "none.pem" in str(result.exception)


def test_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B16: of `escapement push`, and of servers with --push."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"httpcore.*pip install 'escapement\[push\]'"):
        pusher(BROKER, (), None)
