"""The connection to a broker, and how a client stays connected."""
