"""A consumer that moves money between accounts, each message in one transaction with its ack.

Its arguments are the URL of the broker, the URL of the application's database, a file that gets a
byte for each message that another consumer had processed, and a seed. Each message is a JSON
object: its number, the accounts, and the amount. The consumer fails and hesitates at random, and
tells the broker only of some acknowledgements.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

import pymysql

import escapement.sync
from escapement import AlreadyProcessed, Disconnected, sql
from escapement.sync import Message
from support.outbox.outboxes import Application
from support.processes.broker import PATIENT

TOPIC, SUBSCRIPTION = "transfers", "bank"


class Bank:
    """The consumer's connection to the database of the accounts."""

    def __init__(self, url: str, refused: int, seed: int) -> None:
        self._application = Application(url)
        self._session: pymysql.Connection[pymysql.cursors.Cursor] | None = None
        self._refused = refused
        self._rng = random.Random(seed)

    def handle(self, messages: Sequence[Message]) -> None:
        """Process messages in one transaction, or give them back."""
        try:
            committed = self._transact(messages)
        except AlreadyProcessed:
            if len(messages) > 1:
                for message in messages:
                    self.handle([message])
            else:
                os.write(self._refused, b"x")
                messages[0].ack()
        except pymysql.err.MySQLError:
            # The transaction may be committed, if the error is a lost reply.
            self._session = None
            for message in messages:
                message.nack(delay="20ms")
        else:
            self._tell(messages, committed)

    def chunk(self) -> int:
        return self._rng.choice([1, 1, 1, 4, 16])

    def _transact(self, messages: Sequence[Message]) -> bool:
        """Commit, or roll back at random. Return whether the transaction is committed."""
        connection = self._connection()
        changes: Counter[int] = Counter()
        with connection.cursor() as cursor:
            try:
                sql.ack(cursor, messages)
            except AlreadyProcessed:
                connection.rollback()
                raise
            for message in messages:
                transfer = json.loads(message.payload)
                changes[transfer["from"]] -= transfer["amount"]
                changes[transfer["to"]] += transfer["amount"]
                cursor.execute("INSERT INTO effects VALUES (%s)", (transfer["number"],))
            for account, amount in sorted(changes.items()):
                cursor.execute(
                    "UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, account)
                )
        if self._rng.random() < 0.01:
            time.sleep(self._rng.random() / 10)
        if self._rng.random() < 0.02:
            connection.rollback()
            return False
        connection.commit()
        return True

    def _tell(self, messages: Sequence[Message], committed: bool) -> None:
        for message in messages:
            if not committed:
                message.nack(delay="20ms")
            elif self._rng.random() < 0.02:
                message.release()  # as if the consumer had died after the commit
            elif self._rng.random() < 0.3:
                message.ack()

    def _connection(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        while self._session is None:
            try:
                self._session = self._application.connect()
            except pymysql.err.MySQLError:
                time.sleep(0.05)  # the server is being restarted
        return self._session


def main() -> None:
    broker_url, database_url, refused, seed = sys.argv[1:]
    bank = Bank(database_url, os.open(refused, os.O_WRONLY | os.O_APPEND), int(seed))
    while True:
        try:
            work(broker_url, bank)
        except Disconnected:
            time.sleep(0.05)  # the broker is being started


def work(broker_url: str, bank: Bank) -> None:
    with escapement.sync.connect(broker_url, settings=PATIENT) as broker:
        with broker.consumer(TOPIC, SUBSCRIPTION, permits=200, ack_wait="2s") as consumer:
            for batch in consumer.batches():
                messages = list(batch)
                while messages:
                    some = bank.chunk()
                    bank.handle(messages[:some])
                    del messages[:some]


if __name__ == "__main__":
    main()
