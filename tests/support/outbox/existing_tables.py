"""Outbox tables as other projects create them, and mappings of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from escapement.storage.outbox.mapping import OutboxMapping, of_profile
from escapement.storage.outbox.mapping_table import add_mapping, checked, install, remove_mapping
from support.outbox.outboxes import Application

# The table that Debezium's outbox event router expects, with the types of MySQL.
DEBEZIUM: Final = """CREATE TABLE outbox (
    id CHAR(36) NOT NULL,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL,
    payload JSON NULL,
    PRIMARY KEY (id)
)"""
# The table of Eventuate Tram, whose ids its clients generate.
EVENTUATE: Final = """CREATE TABLE message (
    id VARCHAR(255) PRIMARY KEY,
    destination LONGTEXT NOT NULL,
    headers LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL,
    published SMALLINT DEFAULT 0,
    message_partition SMALLINT,
    creation_time BIGINT,
    INDEX message_published_idx (published, id)
)"""
# The table of Eventuate Tram, whose ids the database generates.
EVENTUATE_DBID: Final = """CREATE TABLE message (
    dbid BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id LONGTEXT,
    destination LONGTEXT NOT NULL,
    headers LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL,
    published SMALLINT DEFAULT 0,
    message_partition SMALLINT,
    creation_time BIGINT,
    INDEX message_published_idx (published, dbid)
)"""
# The table of watermill-sql for the topic "orders".
WATERMILL: Final = """CREATE TABLE watermill_orders (
    `offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `uuid` VARCHAR(36) NOT NULL,
    `created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    `payload` JSON DEFAULT NULL,
    `metadata` JSON DEFAULT NULL
)"""
# The table of the queue schema of watermill-sql.
WATERMILL_QUEUE: Final = """CREATE TABLE watermill_orders (
    `offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `uuid` VARCHAR(36) NOT NULL,
    `payload` JSON DEFAULT NULL,
    `metadata` JSON DEFAULT NULL,
    `acked` BOOLEAN NOT NULL DEFAULT FALSE,
    `created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""
# The table of MassTransit's bus outbox, as Entity Framework creates it for MySQL.
MASSTRANSIT: Final = """CREATE TABLE `OutboxMessage` (
    `SequenceNumber` bigint NOT NULL AUTO_INCREMENT,
    `EnqueueTime` datetime(6) NULL,
    `SentTime` datetime(6) NOT NULL,
    `Headers` longtext CHARACTER SET utf8mb4 NULL,
    `Properties` longtext CHARACTER SET utf8mb4 NULL,
    `InboxMessageId` char(36) COLLATE ascii_general_ci NULL,
    `InboxConsumerId` char(36) COLLATE ascii_general_ci NULL,
    `OutboxId` char(36) COLLATE ascii_general_ci NULL,
    `MessageId` char(36) COLLATE ascii_general_ci NOT NULL,
    `ContentType` varchar(256) CHARACTER SET utf8mb4 NOT NULL,
    `MessageType` longtext CHARACTER SET utf8mb4 NOT NULL,
    `Body` longtext CHARACTER SET utf8mb4 NOT NULL,
    `ConversationId` char(36) COLLATE ascii_general_ci NULL,
    `CorrelationId` char(36) COLLATE ascii_general_ci NULL,
    `InitiatorId` char(36) COLLATE ascii_general_ci NULL,
    `RequestId` char(36) COLLATE ascii_general_ci NULL,
    `SourceAddress` varchar(256) CHARACTER SET utf8mb4 NULL,
    `DestinationAddress` varchar(256) CHARACTER SET utf8mb4 NULL,
    `ResponseAddress` varchar(256) CHARACTER SET utf8mb4 NULL,
    `FaultAddress` varchar(256) CHARACTER SET utf8mb4 NULL,
    `ExpirationTime` datetime(6) NULL,
    CONSTRAINT `PK_OutboxMessage` PRIMARY KEY (`SequenceNumber`),
    INDEX `IX_OutboxMessage_EnqueueTime` (`EnqueueTime`),
    INDEX `IX_OutboxMessage_ExpirationTime` (`ExpirationTime`),
    UNIQUE INDEX `IX_OutboxMessage_InboxMessageId_InboxConsumerId_SequenceNumber`
        (`InboxMessageId`, `InboxConsumerId`, `SequenceNumber`),
    UNIQUE INDEX `IX_OutboxMessage_OutboxId_SequenceNumber` (`OutboxId`, `SequenceNumber`)
) CHARACTER SET=utf8mb4"""
# A table of nobody's making, whose moved rows are deleted or stay.
EVENTS: Final = """CREATE TABLE events (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    k VARCHAR(64) NULL,
    body VARCHAR(200) NOT NULL,
    sent BOOLEAN NOT NULL DEFAULT FALSE,
    INDEX (sent)
)"""
DELETED: Final = OutboxMapping("events", topic="t", key_column="k", payload_column="body")
KEPT: Final = replace(DELETED, done_column="sent", done_value="1")
# How many rows of ``events`` wait.
WAITING: Final = "SELECT COUNT(*) FROM events WHERE sent = 0"


def mapped(application: Application, mapping: OutboxMapping) -> None:
    """Map a table of an application, as `escapement outbox add` does."""
    connection = application.engine.connect()
    try:
        install(connection)
        checked(connection, mapping)
        add_mapping(connection, mapping)
    finally:
        connection.close()


def unmapped(application: Application, table: str) -> None:
    """Remove the mapping of a table, as `escapement outbox remove` does."""
    connection = application.engine.connect()
    try:
        remove_mapping(connection, table)
    finally:
        connection.close()


def profile(name: str, table: str, **changes: Any) -> OutboxMapping:
    """Return the mapping of a profile with other values for some fields."""
    return replace(of_profile(name, table), **changes)
