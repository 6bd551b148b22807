"""Which addresses a post may be sent to.

Push targets are set by administrators of a topic, and the process that posts may stand in a network
in which other services trust each other. So it connects only to public addresses, and to networks
that its operator has allowed. An IPv6 address that contains an IPv4 address is judged as that one.

The lists are those of the registries of special-purpose addresses at IANA. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from escapement.errors import InvalidRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_V4: Final = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "the network of a provider",
    "127.0.0.0/8": "this machine",
    "169.254.0.0/16": "a link-local network, which has the metadata of cloud machines",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "reserved for protocols",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a relay to IPv6",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, or broadcast",
}
# Inside 2000::/3, the only part of IPv6 with public addresses.
_V6: Final = {
    "2001::/23": "reserved for protocols, such as Teredo",
    "2001:db8::/32": "for documentation",
    "2002::/16": "a tunnel (6to4) to an IPv4 address",
    "3fff::/20": "for documentation",
}
_REFUSED_V4: Final = [(IPv4Network(text), why) for text, why in _V4.items()]
_REFUSED_V6: Final = [(IPv6Network(text), why) for text, why in _V6.items()]
_PUBLIC_V6: Final = IPv6Network("2000::/3")
# Networks whose addresses end in an IPv4 address to which packets go: mapped, and NAT64.
_ENDS_IN_V4: Final = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))


def network(text: str) -> Network:
    """Parse a network such as 10.0.0.0/8, or an address. Raises ``InvalidRequest``."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is not a network such as 10.0.0.0/8: {error}.") from None


def is_allowed(text: str, allowed: Sequence[Network]) -> bool:
    """Return whether an address is in one of these networks."""
    address = _real(text)
    return any(address in one for one in allowed)


def refusal(text: str, allowed: Sequence[Network]) -> str:
    """Return why an address must not be connected to; "" if it may be.

    Args:
      text: the address, as a resolver returns it.
      allowed: the networks that the operator has allowed.
    """
    if is_allowed(text, allowed):
        return ""
    address = _real(text)
    if isinstance(address, IPv4Address):
        return next((why for one, why in _REFUSED_V4 if address in one), "")
    if address not in _PUBLIC_V6:
        return "not a public address"
    return next((why for one, why in _REFUSED_V6 if address in one), "")


def _real(text: str) -> Address:
    """Return the address to which packets go."""
    address = ip_address(text.partition("%")[0])  # without the zone of a link-local address
    if isinstance(address, IPv6Address) and any(address in one for one in _ENDS_IN_V4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
