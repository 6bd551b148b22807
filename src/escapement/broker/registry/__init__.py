"""The named objects: namespaces, topics, subscriptions and producers, active or passive."""
