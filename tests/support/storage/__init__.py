"""Commit pipelines, logs, index checkpoints, inbox entries and staged jobs for tests."""
