"""What is asked of messages by those who publish: to take them, cancel them, move their times."""
