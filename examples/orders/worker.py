"""Cancels the orders that were not paid in time."""

import argparse
import os
from contextlib import closing
from itertools import count

from database import connect
from orders import CANCELLATIONS

import escapement.sync

BROKER = os.environ.get("ESCAPEMENT_BROKER", "localhost:7650")


def cancel_order(cursor, number):
    """Cancel an order, unless it was paid at the last moment. Return whether it was open."""
    return cursor.execute(
        "UPDATE orders SET status = 'cancelled' WHERE id = %s AND status = 'open'", (number,)
    )


def work(most):
    with (
        closing(connect()) as connection,
        escapement.sync.connect(f"escapement://{BROKER}", name="orders") as broker,
        broker.consumer(CANCELLATIONS, "orders", serializer=escapement.JSON) as inbox,
    ):
        for done in count(1):
            message = inbox.receive()
            number = message.value["order"]
            with connection.cursor() as cursor:
                cancelled = cancel_order(cursor, number)
            connection.commit()
            # If the worker is killed here, the message comes again, and finds no open order.
            message.ack()
            print(f"order {number} {'is cancelled' if cancelled else 'was not open'}", flush=True)
            if done == most:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", help="end after this many messages")
    work(parser.parse_args().count)
