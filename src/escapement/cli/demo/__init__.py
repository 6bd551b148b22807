"""`escapement demo`: schedule, kill the broker, recover, deliver on time."""
