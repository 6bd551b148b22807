"""What pages read from the brokers with more than one request, or compute from answers."""
