"""Tests of the example that schedules 50,000 reminders from a CSV with many time zones."""

from __future__ import annotations

import csv
import json
import random
import runpy
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pytest
import trio
from pyspark.sql import SparkSession

import escapement
from support.processes.broker import PATIENT, broker_process

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "spark_reminders.py"
ROWS: Final = 50_000
TOPIC: Final = "shop/eu/reminders"
ZONES: Final = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC")
FIRST: Final = datetime(datetime.now(UTC).year + 1, 1, 2)


def write_appointments(file: Path) -> dict[str, tuple[int, str]]:
    """Write the CSV, and return the due time in Unix ms and the zone of each customer."""
    rng = random.Random(3)
    wanted: dict[str, tuple[int, str]] = {}
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["customer", "phone", "at", "zone"])
        for number in range(ROWS):
            zone = rng.choice(ZONES)
            # From 9:00 to 18:00, when no change to or from daylight saving time happens.
            at = FIRST + timedelta(days=rng.randrange(360), minutes=rng.randrange(540, 1080))
            customer = f"c{number}, of {zone}"
            writer.writerow([customer, f"+{number}", at.strftime("%Y-%m-%d %H:%M"), zone])
            due = (at - timedelta(days=1)).replace(tzinfo=ZoneInfo(zone))
            wanted[customer] = (round(due.timestamp() * 1000), zone)
    return wanted


async def stored(broker: escapement.Broker) -> AsyncIterator[tuple[str, int, str]]:
    """Yield the customer, due time and zone of each message in the log of the topic."""
    async for page in broker.read(TOPIC):
        for entry in page:
            assert json.loads(entry.payload)["customer"] == entry.key
            yield entry.key, entry.due_ms, entry.properties["zone"]


async def test_fifty_thousand_reminders_of_a_file_are_scheduled_once(
    spark: SparkSession, mysql_url: str, tmp_path: Path
) -> None:
    """B7: also if the example runs twice for the same file."""
    file = tmp_path / "appointments.csv"
    wanted = write_appointments(file)
    with broker_process(tmp_path / "data", mysql_url) as process:
        example = runpy.run_path(str(EXAMPLE))
        for _ in range(2):
            example["schedule"](spark, file, mysql_url, TOPIC)
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            with trio.fail_after(60):
                while (await broker.admin("jobs.list"))[0]["state"] != "adopted":  # noqa: ASYNC110
                    await trio.sleep(0.05)
            found = [one async for one in stored(broker)]
            assert len(found) == ROWS
            assert {customer: (at, zone) for customer, at, zone in found} == wanted
            coming = await broker.forecast(TOPIC, by=(1, "day"), within=(800, "days"))
            assert coming.total == ROWS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("customer,phone,at,zone\nc1,+1,2030-03-31 09:30,\n", "missing values"),
        ("customer,phone,at,zone\nc1,+1,,Europe/Berlin\n", "missing values"),
        ("phone,customer,at,zone\n+1,c1,2030-03-31 09:30,Europe/Berlin\n", "header"),
    ],
)
def test_file_with_missing_times_or_a_wrong_header_is_refused(
    spark: SparkSession, tmp_path: Path, text: str, said: str
) -> None:
    """The example refuses the file and shows the row."""
    file = tmp_path / "appointments.csv"
    file.write_text(text)
    reminders = runpy.run_path(str(EXAMPLE))["reminders"]
    with pytest.raises(Exception, match=said):
        reminders(spark, file).collect()
