"""Messages and commands that tests send, and subscriptions that hold the messages."""
