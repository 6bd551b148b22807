"""The load of a comparison on beanstalkd: `beanstalkd_client.py WORK PORT MESSAGES PARALLEL`.

See ``run.py`` for the loads. Each of the PARALLEL publishers or workers has a connection. A command
waits for its answer, which beanstalkd sends when the change is on disk (with `-f 0`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

TUBE = b"bench-%d" % os.getpid()
PAYLOAD = b"." * 100
PUT = b"put 1024 0 3600 %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD)
# Jobs put before the clock starts are sent in groups of this size.
GROUP = 500


class Connection:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def use(self) -> None:
        """Use the tube of this process for jobs in both directions."""
        self._writer.write(b"use %s\r\nwatch %s\r\nignore default\r\n" % (TUBE, TUBE))
        answers = [await self._reader.readline() for _ in range(3)]
        assert answers[2] == b"WATCHING 1\r\n", answers

    async def put(self, count: int) -> None:
        """Put jobs, all of them before the answers."""
        self._writer.write(PUT * count)
        for _ in range(count):
            answer = await self._reader.readline()
            assert answer.startswith(b"INSERTED"), answer

    async def reserve(self) -> bytes:
        """Wait for a job, and return its id."""
        self._writer.write(b"reserve\r\n")
        word, job, size = (await self._reader.readline()).split()
        assert word == b"RESERVED", word
        await self._reader.readexactly(int(size) + 2)
        return job

    async def delete(self, job: bytes) -> None:
        self._writer.write(b"delete %s\r\n" % job)
        answer = await self._reader.readline()
        assert answer == b"DELETED\r\n", answer


async def run(work: str, port: int, messages: int, parallel: int) -> None:
    found = [await asyncio.open_connection("127.0.0.1", port) for _ in range(parallel)]
    connections = [Connection(*one) for one in found]
    for one in connections:
        await one.use()
    left = messages

    async def publish(one: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one.put(1)

    async def take(one: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one.delete(await one.reserve())

    if work == "workers":
        for low in range(0, messages, GROUP):
            await connections[0].put(min(GROUP, messages - low))
    act = take if work == "workers" else publish
    print("begin", flush=True)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(act, connections))
    seconds = time.perf_counter() - began_s
    print(json.dumps({"seconds": seconds, "client_cpu_s": time.process_time() - cpu_s}))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], *map(int, sys.argv[2:5])))
