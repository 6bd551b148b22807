"""What a client asks of a broker besides producing and consuming."""
