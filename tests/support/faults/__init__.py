"""Crashes, held calls, damaged bytes and lost packets that tests choose."""
