"""Database servers for tests, their outages, and the rows of a broker in them."""
