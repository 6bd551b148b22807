"""The connection to the database of the shop, which has the outbox too."""

import os
from urllib.parse import urlsplit

import pymysql

URL = os.environ.get("ESCAPEMENT_OUTBOX", "mysql://root@localhost/shop")


def connect(**options):
    at = urlsplit(URL)
    return pymysql.connect(
        host=at.hostname,
        port=at.port or 3306,
        user=at.username,
        password=at.password or "",
        database=at.path.strip("/"),
        **options,
    )
