"""Answers of the brokers that pages put together from several requests, and figures from them."""
