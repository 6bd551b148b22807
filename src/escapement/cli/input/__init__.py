"""The input of commands: options, parsers of their values, and the connection to a broker."""
