"""The wire format, sans I/O: frames, commands, and one state machine for both ends."""
