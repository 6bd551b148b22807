"""What was published, as the log has it, and what has been changed of it since."""
