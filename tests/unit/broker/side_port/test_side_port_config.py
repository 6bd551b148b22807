"""The side port refuses addresses that other machines reach, unless it is told to allow them."""

from __future__ import annotations

import pytest

from escapement.broker.side_port.config import SidePortConfig
from escapement.errors import InvalidRequest


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_address_is_allowed(host: str) -> None:
    SidePortConfig(host, 7651).check(insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_other_address_is_refused_unless_allowed(host: str) -> None:
    """O4: names of topics are not shown to other machines by mistake."""
    with pytest.raises(InvalidRequest, match="--http-insecure"):
        SidePortConfig(host, 7651).check(insecure=False)
    SidePortConfig(host, 7651).check(insecure=True)


def test_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"starlette.*pip install 'escapement\[http\]'"):
        SidePortConfig("127.0.0.1", 7651).check(insecure=False)
