"""The tasks that keep index and log short, whole and durable, beside what messages do."""
