"""A topic: its messages and what is to come of them, its producers, how much of it waits. Pure."""
