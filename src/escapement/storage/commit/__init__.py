"""The commit pipeline: what is handed in, the groups it makes, and how they become durable."""
