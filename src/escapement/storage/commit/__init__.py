"""The commit pipeline: items, group commits, lanes and their writers. Begin with ``commit.py``."""
