"""Steps of the application, which changes rows by SQL, and alters the table."""

from __future__ import annotations

import pymysql

from random_tables.lives import LAST_NS, NS, Lives, RowModel


class Changes(Lives):
    """Steps in SQL. Rows that are locked are left as they are."""

    locked: frozenset[int] = frozenset()  # ids of rows that the application has locked

    def time(self) -> tuple[int | None, int]:
        """Return a value for ``time_next``, and when it lets a row be sent."""
        now_ms = self.now_ms
        ahead_ms = self.rng.choice([1, 15, 300, 999, 2_000, 20_000, 90_000])
        due_ns = (now_ms + ahead_ms) * NS - self.rng.choice([0, 1, 999_999])
        return self.rng.choice(
            [
                (None, now_ms),
                (0, now_ms),
                (0, now_ms),
                ((now_ms - ahead_ms) * NS, now_ms),
                (due_ns, -(-due_ns // NS)),
                (due_ns, -(-due_ns // NS)),
                (LAST_NS, LAST_NS // NS),
            ]
        )

    async def insert(self) -> None:
        with self.shop.session() as cursor:
            for _ in range(self.rng.choice([1, 1, 3, 12])):
                id, (time_next, allowed_ms) = self.next_id, self.time()
                self.next_id += 1
                priority = self.rng.choice([50, 50, 50, 0, 7, 120, -3])
                epoch = self.rng.choice([0, 0, 0, 2])
                cursor.execute(
                    "INSERT INTO mails (id, priority, epoch, time_next) VALUES (%s, %s, %s, %s)",
                    (id, priority, epoch, time_next),
                )
                self.rows[id] = RowModel(allowed_ms, epoch, changed_ms=self.now_ms)
            cursor.connection.commit()

    def some(self) -> list[int]:
        """Return the ids of some rows that are not locked."""
        free = [id for id in self.rows if id not in self.locked]
        return self.rng.sample(free, min(len(free), self.rng.choice([1, 2, 5])))

    def change(self, what: str, id: int, *values: object) -> bool:
        """Change a row unless it is acknowledged; return whether it was changed."""
        with self.shop.session() as cursor:
            # By another index, the server may scan the table, and wait for rows that are locked.
            sql = (
                f"UPDATE mails FORCE INDEX (PRIMARY) SET {what}"
                " WHERE id = %s AND time_acked IS NULL"
            )
            changed = cursor.execute(sql, (*values, id))
            cursor.connection.commit()
        self.rows[id].changed_ms = self.now_ms
        return bool(changed)

    async def reschedule(self) -> None:
        for id in self.some():
            time_next, allowed_ms = self.time()
            if self.change("time_next = %s", id, time_next):
                self.rows[id].allowed_ms = allowed_ms

    async def give_priority(self) -> None:
        for id in self.some():
            self.change("priority = %s", id, self.rng.choice([50, 0, 7, 120, -3, 99]))

    async def set_epoch(self) -> None:
        for id in self.some():
            epoch = self.rng.choice([0, 1, 3])
            if self.change("epoch = %s", id, epoch):
                row = self.rows[id]
                row.epoch = epoch

    async def acknowledge(self) -> None:
        for id in self.some():
            self.change("time_acked = %s, time_next = NULL", id, self.now_ms * NS)

    async def delete(self) -> None:
        for id in self.some()[:2]:
            self.shop.run("DELETE FROM mails WHERE id = %s", id)
            del self.rows[id]

    async def alter(self) -> None:
        if not self.locked:
            self.shop.run(f"ALTER TABLE mails COMMENT '{self.directives()}'")

    async def lock(self) -> None:
        """Lock some rows in a transaction, let other things happen, and commit it."""
        if self.locked:
            return
        ids = self.some()
        if not ids:
            return
        with self.shop.session() as cursor:
            # Gap locks would hinder the application itself.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            for id in ids:  # a scan would lock other rows, too
                cursor.execute("SELECT id FROM mails WHERE id = %s FOR UPDATE", (id,))
            self.locked = frozenset(ids)
            try:
                for _ in range(self.rng.choice([1, 2])):
                    step = self.rng.choice([self.consume, self.insert, self.reschedule, self.wait])
                    await step()
            finally:
                self.locked = frozenset()
            cursor.connection.commit()
        self.calm_ms = self.now_ms + 1

    async def wait(self) -> None:
        await self.world.clock.advance(seconds=self.rng.choice([0.2, 1]))

    async def break_connections(self) -> None:
        """End all connections of the broker to the database."""
        name = self.shop.address.database
        with self.shop.session() as cursor:
            own = cursor.connection.thread_id()
            cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = %s", (name,))
            for (id,) in cursor.fetchall():
                if id != own:
                    try:
                        cursor.execute(f"KILL CONNECTION {id}")
                    except pymysql.err.OperationalError:
                        continue  # it has ended
        self.calm_ms = self.now_ms + 1
