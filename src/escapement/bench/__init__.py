"""`escapement bench`: measure a broker on this machine through the real client."""
