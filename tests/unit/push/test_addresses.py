"""The table against SSRF: which addresses posts may be sent to."""

from __future__ import annotations

import pytest

from escapement.errors import InvalidRequest
from escapement.push.addresses import is_allowed, network, refusal

PUBLIC = ["8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.0", "100.63.255.255",
          "100.128.0.0", "192.0.1.0", "11.0.0.0", "9.255.255.255", "223.255.255.255",
          "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]  # fmt: skip
REFUSED = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "this machine": ["127.0.0.1", "127.255.255.255", "::1"],
    "private": ["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.1",
                "fc00::1", "fdff::1"],
    "provider": ["100.64.0.0", "100.127.255.255"],
    "metadata": ["169.254.169.254", "169.254.170.2", "fd00:ec2::254"],
    "link-local": ["169.254.0.1", "fe80::1", "fe80::1%eth0", "febf::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.8", "198.18.0.1", "198.19.255.255",
                 "2001::1", "2001:1ff:ffff::", "100::1", "5f00::1", "fec0::1", "4000::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe"],
    "compatible": ["::127.0.0.1", "::10.0.0.1"],
    "translated": ["::ffff:0:127.0.0.1"],
    "6to4": ["2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:808:808::1", "192.88.99.1"],
    "teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "nat64": ["64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"],
}  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_may_be_reached(address: str) -> None:
    """B16"""
    assert refusal(address, []) == ""
    assert not is_allowed(address, [])


@pytest.mark.parametrize(
    "address", [address for addresses in REFUSED.values() for address in addresses]
)
def test_other_address_is_refused_in_each_of_its_forms(address: str) -> None:
    """B16"""
    assert refusal(address, [])
    assert refusal(address, [network("10.99.0.0/16"), network("fd99::/16")])


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", "10.1.0.0/16"),
        ("::ffff:10.1.2.3", "10.1.0.0/16"),
        ("64:ff9b::10.1.2.3", "10.1.0.0/16"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1/128"),
        ("fe80::7%eth0", "fe80::/10"),
    ],
)
def test_operator_can_allow_a_network(address: str, allowed: str) -> None:
    """B16"""
    assert refusal(address, [network(allowed)]) == ""
    assert is_allowed(address, [network(allowed)])


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "10.0.0.1/8", "shop.example", "::/129"])
def test_text_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="network"):
        network(text)
