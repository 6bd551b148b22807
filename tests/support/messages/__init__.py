"""Messages that tests publish and receive, and subscriptions that hold them."""
