"""The commit pipeline, which makes changes durable in group commits. Begin with ``commit.py``."""
