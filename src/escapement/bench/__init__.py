"""`escapement bench`: what this machine does with its broker, measured through the real client."""
