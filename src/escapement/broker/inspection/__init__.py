"""Views of a topic that consume no message."""
