"""`escapement demo`: schedule messages, kill the broker, recover, and deliver on time."""
