"""The writes of the Spark data source: rows of a DataFrame become messages in the inbox.

Begin with bulk_write.py. Spark calls the adapters in writer.py.
"""
