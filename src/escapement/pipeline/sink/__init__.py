"""Write a DataFrame: from rows to staged batches in the inbox."""
