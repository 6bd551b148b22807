"""How the log becomes a delayed index, on one machine or by Spark tasks."""
