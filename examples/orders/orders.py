"""Creates and pays orders. An order that is not paid in time cancels itself.

Usage: orders.py setup | create [--pay-within 15m] | pay NUMBER | list
"""

import argparse
from contextlib import closing
from pathlib import Path

from database import connect

from escapement import JSON, sql

CANCELLATIONS = "shop/eu/cancellations"


def setup(cursor):
    cursor.execute(Path(__file__).with_name("schema.sql").read_text())
    print("the table orders is ready")


def create(cursor, pay_within):
    """Create an order, and schedule its cancellation in the same transaction."""
    cursor.execute("INSERT INTO orders () VALUES ()")
    number = cursor.lastrowid
    sql.schedule(
        cursor,
        CANCELLATIONS,
        {"order": number},
        key=f"order-{number}",
        delay=pay_within,
        serializer=JSON,
    )
    print(f"order {number} must be paid within {pay_within}")


def pay(cursor, number):
    """Mark an order as paid, and cancel its cancellation in the same transaction."""
    paid = "UPDATE orders SET status = 'paid' WHERE id = %s AND status = 'open'"
    if not cursor.execute(paid, (number,)):
        raise SystemExit(f"order {number} is not open")
    sql.cancel(cursor, CANCELLATIONS, key=f"order-{number}")
    print(f"order {number} is paid")


def show(cursor):
    cursor.execute("SELECT id, status FROM orders ORDER BY id")
    for number, status in cursor.fetchall():
        print(f"order {number}: {status}")


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("setup")
    verbs.add_parser("list")
    verbs.add_parser("create").add_argument("--pay-within", default="15m")
    verbs.add_parser("pay").add_argument("number", type=int)
    given = parser.parse_args()
    with closing(connect()) as connection:
        with connection.cursor() as cursor:
            match given.verb:
                case "setup":
                    setup(cursor)
                case "create":
                    create(cursor, given.pay_within)
                case "pay":
                    pay(cursor, given.number)
                case "list":
                    show(cursor)
        connection.commit()


if __name__ == "__main__":
    main()
