"""Parts that tests share: servers, broker processes, and parts that fail on purpose."""
