"""What moves messages towards consumers: the time that passes, the pump, the consumers' wishes."""
