"""Tests that run the code of the guide for Spark against a broker on MySQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession

import escapement
from support.code_blocks import DOCS, blocks
from support.processes.broker import PATIENT, broker_process

URL = "mysql://db/escapement"


async def test_code_of_the_guide_prints_what_the_guide_says(
    spark: SparkSession, mysql_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B7: in page order. The broker adopts the jobs of each block before the next one."""
    names: dict[str, Any] = {"spark": spark}
    found = blocks(DOCS / "guides" / "spark.md", "python")
    with broker_process(tmp_path / "data", mysql_url) as process:
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            for block in found:
                if "only" in block.title:
                    block.compiled()
                    continue
                exec(block._replace(text=block.text.replace(URL, mysql_url)).compiled(), names)
                printed = capsys.readouterr().out.splitlines()
                assert [line for line in printed if line in block.printed()] == block.printed()
                with trio.fail_after(60):
                    while not await all_adopted(broker):  # noqa: ASYNC110 (another process changes it)
                        await trio.sleep(0.05)


async def all_adopted(broker: escapement.Broker) -> bool:
    return all(job["state"] == "adopted" for job in await broker.admin("jobs.list"))
