"""The code of the guide to tracing, in processes of their own: a process has one provider (O5)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from support.code_blocks import DOCS, blocks
from support.processes.broker import BrokerProcess, broker_process

URL = "escapement://localhost:7650"
WITHOUT_PROVIDER = """
import sys
import escapement.sync
with escapement.sync.connect("escapement://localhost:7650") as broker:
    broker.producer("untraced").send(b"x")
    with broker.consumer("untraced", "s", position="earliest") as inbox:
        with next(iter(inbox)) as message:
            assert message.properties == {}
print([name for name in sys.modules if name.split(".")[0] == "opentelemetry"])
"""


def run(program: str, broker: BrokerProcess) -> str:
    command = [sys.executable, "-W", "error", "-c", program.replace(URL, broker.url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_code_of_the_guide_traces_and_no_provider_costs_no_import(tmp_path: Path) -> None:
    """O5: with the provider of the process."""
    code = {block.title: block.text for block in blocks(DOCS / "guides" / "tracing.md", "python")}
    with broker_process(tmp_path / "data") as broker:
        printed = run("".join(code.values()), broker)
        assert run(WITHOUT_PROVIDER, broker) == "[]\n"
    spans = [json.loads(text) for text in re.findall(r"^\{$.*?^\}$", printed, re.S | re.M)]
    names = [span["name"].partition(" ")[0] for span in spans]
    assert sorted(names[:3]) == ["process", "receive", "send"]
    assert names[3:7] == ["create", "create", "send", "import"]
    assert (names[7], names[-1]) == ("receive", "audit")
    first = dict(zip(names[:3], spans[:3], strict=True))
    sent = first["send"]["context"]
    for name in ("receive", "process"):
        (link,) = first[name]["links"]
        assert link["context"] == sent
    assert spans[-1]["links"]
