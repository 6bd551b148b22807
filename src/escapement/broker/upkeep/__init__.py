"""Background tasks that keep index and log small, complete and durable."""
