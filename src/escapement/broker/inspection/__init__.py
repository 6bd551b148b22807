"""Views of a topic's messages, which deliver nothing and change nothing."""
