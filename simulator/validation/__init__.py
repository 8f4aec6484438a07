"""Replays of servers that were measured, and how far they lie from the measurements."""
