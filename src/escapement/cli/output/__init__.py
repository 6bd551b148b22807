"""How commands print messages, tables and bars."""
