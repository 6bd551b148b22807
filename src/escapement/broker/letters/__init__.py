"""Letters: what goes into a topic's log by way of the inbox, who writes it and who carries it."""
