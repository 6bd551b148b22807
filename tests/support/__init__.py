"""What tests share: servers, broker processes, and things that fail on purpose."""
