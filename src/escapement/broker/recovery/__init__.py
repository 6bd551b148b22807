"""From stored state to objects in memory: the whole broker at a start, a topic at its first use."""
