"""Dead letters: messages that failed too often, expired or were dropped."""
