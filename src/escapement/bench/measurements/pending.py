"""Publish throughput on a full topic, with many messages pending, against an empty topic.

Runs alternate between the full topic and a new one, so that other load on the machine affects
both.
"""

from __future__ import annotations

from escapement.bench.filling import fill_pending
from escapement.bench.measurements.publish import Load, publish_once
from escapement.bench.outcome import Outcome, Run
from escapement.bench.stage import Setting, stage


async def measure(setting: Setting, load: Load) -> Outcome:
    """Fill a topic. Then publish to it and to an empty topic in turn, for each run."""
    async with stage(setting) as on:
        full, _ = await on.new_subscription()
        await fill_pending(on, full, load.window_ms)
        runs = []
        for number in range(setting.runs):
            setting.progress("publishing", number, setting.runs)
            empty, _ = await on.new_subscription()
            on_full = await publish_once(on, [full], load)
            on_empty = await publish_once(on, [empty], load)
            runs.append(_pair(on_full, on_empty))
    described = setting.described() | {"window-ms": load.window_ms}
    return Outcome("pending", on.engine, described, runs)


def _pair(full: Run, empty: Run) -> Run:
    ratio = empty.seconds / full.seconds  # the ratio of the rates: both runs send equally many
    more = {"empty_messages_per_second": round(full.messages / empty.seconds), "ratio": ratio}
    return Run(full.messages, full.seconds, more=more)
