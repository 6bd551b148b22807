"""Ready messages in the order of their priorities and due times."""
