"""Producing: values in, receipts out."""
