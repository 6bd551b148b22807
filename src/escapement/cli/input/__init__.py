"""What commands take: options, values, and the connection to a broker."""
