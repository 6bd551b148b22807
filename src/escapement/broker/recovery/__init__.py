"""From stored state to runtimes: the whole broker at a start, and a topic at its first use."""
