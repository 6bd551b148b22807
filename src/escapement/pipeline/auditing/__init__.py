"""What an audit counts again."""
