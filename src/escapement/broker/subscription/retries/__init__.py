"""Retries: how long a message waits for its next attempt, and the timers of these waits."""
