"""Processes that tests start: brokers, command lines and a Spark cluster."""
