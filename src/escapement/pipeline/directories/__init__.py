"""Local directories, and directories that Spark's driver shares with all tasks."""
