"""Namespaces, topics, subscriptions, producers and their policies, as the database records them."""
