"""Read topics into a DataFrame, as a batch or a stream."""
