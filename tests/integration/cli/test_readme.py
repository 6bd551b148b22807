"""Tests that run the code of the README and check its links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import trio

from support.processes.broker import broker_process

README = Path(__file__).parents[3] / "README.md"


async def test_the_readmes_client_delivers_its_message_when_it_is_due(tmp_path: Path) -> None:
    """P1: the code as it stands, with seconds instead of minutes."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    printed: list[tuple[Any, ...]] = []
    delivered = trio.Event()

    def note(*values: Any) -> None:
        printed.append(values)
        delivered.set()

    with broker_process(tmp_path / "data") as broker:
        code = found[1].replace("escapement://localhost:7650", broker.url)
        code = code.removesuffix("trio.run(main)\n")
        names: dict[str, Any] = {"print": note}
        exec(code.replace("minutes=3", "seconds=1"), names)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(names["main"])
                await delivered.wait()
                nursery.cancel_scope.cancel()
    assert printed == [("pay me", "order-7", 1)]


def test_links_of_the_readme_point_to_existing_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README.read_text()):
        assert (README.parent / target).exists(), target
