"""The status of one topic, read from the database."""

from __future__ import annotations

from escapement.names import TopicName
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.state.topic_state import TopicState, read_topics


def read_topic(engine: Engine, connection: Connection, name: TopicName) -> TopicState:
    """Return the status of a topic. Raises ``NotFound`` if it does not exist."""
    (state,) = read_topics(engine, connection, [name])
    if not isinstance(state, TopicState):
        raise state
    return state
