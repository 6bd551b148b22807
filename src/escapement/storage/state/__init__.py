"""The state of a broker at its last checkpoint."""
