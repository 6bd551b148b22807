"""The wire protocol without I/O: frames, commands, and one state machine for both ends."""
