"""Ready messages in the order of priorities and due times, and how they are read from the index."""
