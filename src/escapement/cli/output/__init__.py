"""The output of commands: messages, tables and bar charts."""
